"""How long `saddlepoint reproduce` will take, said before, and how right that was, said after."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .cluster import processes
from .errors import usage

if TYPE_CHECKING:
    from saddlepoint.experiments import Experiment, Setup

    from .experiments_shown import Work

__all__ = ["Told", "minutes_of", "tell_at_most"]

_SHORT = 60  # seconds: what is shorter is not tried, and not told before


def minutes_of(minutes: float) -> str:
    """Minutes as they are shown, "-" for none.

    Example:
        >>> minutes_of(0), minutes_of(2.54), minutes_of(254.4)
        ('-', '2.5', '254')
    """
    return "-" if minutes == 0 else f"{minutes:.1f}" if minutes < 100 else f"{minutes:.0f}"


def tell_at_most(works: "Sequence[tuple[Path, Work]]") -> None:
    """Say how long all experiments will take together at most, if that is long.

    Args:
        works: What is run in which folder.
    """
    rest = [each for folder, work in works for each in _left(folder, work)]
    if not rest:
        return
    print("all: measuring networks for a moment, up to a minute", file=sys.stderr, flush=True)
    seconds = _at_most(rest, processes())
    if seconds >= _SHORT:
        print(
            f"all: {minutes_of(seconds / 60)} minutes at most, as if every image took all steps in float32; "
            "each experiment is tried before it begins",
            file=sys.stderr,
            flush=True,
        )


class Told:
    """What was told of experiments before they were run, and the time that they took.

    Attributes:
        forecast: Seconds, of all that were tried.
        at_most: Seconds, of all that were too short for that.
        took: Seconds, of both.
    """

    def __init__(self) -> None:
        self.forecast = self.at_most = self.took = 0.0

    @contextmanager
    def of(self, name: str, folder: Path, work: "Work", command: str) -> Iterator[None]:
        """Say how long an experiment will take, if that is a minute or more, and after it how long it took.

        Nothing is said if all of it is in the folder already, or if it is not run to its end.

        Args:
            name: Of the experiment.
            folder: Where its results are.
            work: What is run.
            command: The line that runs it, which is kept in the folder with both times.
        """
        from saddlepoint import experiments as room
        from saddlepoint.experiments.places import keep_times

        if not (rest := _left(folder, work)):
            yield
            return
        print(f"{name}: measuring networks for a moment", file=sys.stderr, flush=True)
        forecast, at_most = 0.0, _at_most(rest, processes())
        if _at_most(rest, 1) >= _SHORT:
            tried = (room.forecast(part, folder, s, jobs=processes()) for part, s in work)
            forecast, at_most = sum(tried), 0.0
        if forecast >= _SHORT:
            print(f"{name}: about {minutes_of(forecast / 60)} minutes", file=sys.stderr, flush=True)
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        self.forecast, self.at_most = self.forecast + forecast, self.at_most + at_most
        self.took += took
        _tell(name, forecast, at_most, took)
        with usage():
            told = {"at_most": at_most} if at_most else {"forecast": forecast}
            keep_times(folder, command, **told, took=took)

    def tell(self, name: str) -> None:
        """Say both of all that were run."""
        if self.took:
            _tell(name, self.forecast, self.at_most, self.took)


def _left(folder: Path, work: "Work") -> "list[tuple[Experiment, Setup]]":
    """What is not in a folder yet, and how it is run."""
    from saddlepoint import experiments as room

    pairs = ((part, setup) for part, setups in work for setup in setups)
    rest = ((room.left(part, folder, setup), setup) for part, setup in pairs)
    return [(part, setup) for part, setup in rest if part.blocks or part.measurements]


def _at_most(rest: "list[tuple[Experiment, Setup]]", jobs: int) -> float:
    """Seconds that this takes at most."""
    from saddlepoint import experiments as room

    return sum(room.at_most(part, setup, jobs) for part, setup in rest)


def _tell(name: str, forecast: float, at_most: float, took: float) -> None:
    told = {"forecast": forecast, "at most": at_most}
    before = " and ".join(f"{what} {_time(seconds)}" for what, seconds in told.items() if seconds)
    print(f"{name}: {before}, took {_time(took)}", file=sys.stderr, flush=True)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _SHORT else f"{minutes_of(seconds / 60)} min"
