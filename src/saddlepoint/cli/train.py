"""`saddlepoint train`: data and a network by name, a checkpoint every epoch, parameters, card and report.

Under torchrun all processes train together; the first one writes and shows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from saddlepoint.runs.settings import TrainSettings

from .flags import Running, check_models, given, takes

if TYPE_CHECKING:
    from saddlepoint.runs import Execution, Run
    from saddlepoint.runs.trainings import Work
    from saddlepoint.training import TrainingProgress

__all__ = ["train"]


@Parameter(name="*")
@dataclass(kw_only=True)
class TrainRunning(Running):
    """What decides where things go and how much is said, and where the network is trained."""

    checkpoint_every: int | None = None
    """Write a checkpoint after every so many steps too, for long epochs."""
    device: str = "cpu"
    """cpu, gpu, cuda, cuda:1, mps; under torchrun every process takes its own GPU if there is one."""

    def flags(self) -> dict[str, object]:
        """Those that the line names which repeats the training."""
        device = None if self.device == "cpu" else self.device
        return {"device": device, "checkpoint_every": self.checkpoint_every}


@takes(TrainSettings)
def train(*, settings: Any = None, running: TrainRunning | None = None) -> int:
    """Train a network; keep parameters, card, history, report and checkpoints in a folder.

    With threats there are TensorBoard scalars too where it is installed.

    Under torchrun, processes train together:

    torchrun --nproc-per-node 4 -m saddlepoint train ...

    Args:
        settings: What decides the parameters.
        running: Where things go and how much is said.
    """
    from . import cluster, folders

    running = running or TrainRunning()
    if not str(given(settings).get("model") or "").isidentifier():
        check_models(given(settings))
    loaded = TrainSettings.load(given(settings), running.config, trust=running.trust)
    if running.print_config:
        print(loaded.to_yaml(), end="")
        return 0
    folders.check_shared(running)
    name = f"train-{Path(loaded.data).stem}-{Path(loaded.model.partition(':')[0]).stem}"
    out = folders.run_folder(name, running)
    with cluster.joined() as rank:
        return _train(
            loaded, replace(running, out=out, quiet=running.quiet or rank != 0), out, rank
        )


def _train(loaded: TrainSettings, running: TrainRunning, out: Path, rank: int) -> int:
    """Load images and network, train, test, and show what came out."""
    from saddlepoint import runs
    from saddlepoint.runs import trainings

    from . import folders, progress, show

    quiet, asked = running.quiet, loaded
    with show.warnings_as_notes(quiet=quiet):
        with progress.downloads() if rank == 0 else nullcontext() as report:
            ready = trainings.load(asked, report)
        show.size_used(asked.size, ready.settings.size, ready.settings.crop, quiet=quiet)
        show.limit_used(asked.limit, len(ready.images[0].x), quiet=quiet)
        loaded, work = trainings.prepare(ready, running.device, out, resume=running.resume)
        show.precision_used([asked.precision], [loaded.precision], quiet=quiet)
        run = trainings.record_training(loaded, work, loaded.command(**running.flags()))
        try:
            ask = partial(trainings.first_answers, work)
            with folders.opened(run, out, running, quiet=quiet, ask=ask) as execution:
                if not execution.complete:
                    every: Any = {"checkpoint_every": running.checkpoint_every}
                    with _shown(loaded, work, execution, quiet=quiet) as callback:
                        trainings.train_and_test(
                            loaded, work, execution, callback=callback, **every
                        )
                run = execution.run
        except runs.RunInterrupted as stop:
            saved = f"{stop.run.done} of {run.rows} epochs are saved"
            if stop.run.done == run.rows:
                saved += " (the tests of the network begin again)"
            elif not running.checkpoint_every:
                saved += (
                    " (the one under way begins again; --checkpoint-every N saves inside epochs)"
                )
            return folders.stopped(saved, run, out, running)
    return 0 if rank else _finish(loaded, run, out, running)


@contextmanager
def _shown(
    settings: TrainSettings, work: "Work", execution: "Execution", *, quiet: bool
) -> "Iterator[Callable[[TrainingProgress], None]]":
    """Progress on the terminal, and for adversarial training in TensorBoard where it is installed."""
    from saddlepoint.runs.record import BOARD
    from saddlepoint.training import TensorBoard

    from . import progress

    words = [settings.data, settings.model, str(settings.method)]
    title = " ".join(words if settings.method != "clean" else words[:2])
    with progress.training(title, quiet=quiet, shorter=_shorter(settings, work)) as bar:
        shown: list[Callable[[TrainingProgress], None]] = [bar]
        if execution.world.rank == 0 and settings.threat and TensorBoard.available():
            shown.append(TensorBoard(execution.folder / BOARD))

        def callback(state: "TrainingProgress") -> None:
            for show in shown:
                show(state)

        yield callback


def _shorter(settings: TrainSettings, work: "Work") -> str:
    """What makes a training shorter, in flags."""
    ways = [f"a tenth with --limit {max(1, len(work.train[1]) // 10)}"]
    if work.recipe.epochs > 1:
        ways.append(f"--epochs {max(1, work.recipe.epochs // 4)}")
    if settings.method != "clean" and settings.steps > 1:
        ways.append(f"--steps {settings.steps // 2}")
    if settings.model == "mnist_cnn":
        ways.append("--model mnist_cnn_small")
    return ", ".join(ways[:-1]) + f" or {ways[-1]}" if len(ways) > 1 else ways[0]


def _finish(loaded: TrainSettings, run: "Run", out: Path, running: Running) -> int:
    """Draw the report, and say what came out."""
    from saddlepoint import report
    from saddlepoint.report import words
    from saddlepoint.runs.training_parts import line_to_evaluate

    from . import show

    path = report.write_report(out)
    if running.json:
        print(show.metrics_json(run))
    elif not running.quiet:
        print("\n".join(words.training_lines(run)))
        print(f"evaluate it with: {line_to_evaluate(loaded, out)}")
        print(f"\n{run.seconds:.1f} s; report: {path}")
    return 0
