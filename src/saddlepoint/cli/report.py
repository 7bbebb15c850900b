"""`saddlepoint report`: draw a run's page again, or rank the runs of a folder."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .errors import UsageError, usage

__all__ = ["report"]


def report(
    *runs: Path,
    out: Path | None = None,
    max_megabytes: float = 2.0,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Draw the report of a run, or one page that ranks the runs of a folder.

    Attacks, evaluations and trainings are ranked only with runs that answer the same question: same kind,
    images, labels, threats and suite. A rank is claimed only as far as the rows allow; runs that are not
    comparable are shown on their own, with the reason.

    Args:
        runs: One run directory: its report. Several, or folders that hold runs at any depth: a leaderboard.
        out: The HTML file of a leaderboard. [default: leaderboard.html in the folder, comparison.html beside
            the first of several runs]
        max_megabytes: Size of a report; the gallery shows fewer rows where they would not fit.
        json: Print metrics and rankings as JSON.
    """
    if not runs:
        raise UsageError(
            "`report` must be given a run directory, such as runs/demo, or a folder of them, such as runs."
        )
    if max_megabytes < 0.2:
        raise UsageError(f"`--max-megabytes` must be at least 0.2, got {max_megabytes}.")
    from saddlepoint import report as room
    from saddlepoint import runs as store

    if len(runs) == 1 and (runs[0] / store.RECORD).is_file():
        if out is not None:
            raise UsageError(
                "`--out` must be left out for a single run: its report is report.html in it."
            )
        return _one(runs[0], int(max_megabytes * 1e6), as_json=json)
    if out is not None and out.suffix != ".html":
        raise UsageError(f"`--out` must be an HTML file, such as board.html, got {out}.")
    with usage():
        board = store.rank_runs(runs, strict=True)
    if out is None:
        folders = [folder for folder in runs if not (folder / store.RECORD).is_file()]
        out = folders[0] / "leaderboard.html" if folders else runs[0].parent / "comparison.html"
    with usage():
        path = room.write_comparison(board, out)
    if json:
        return _print(board.plain())
    from . import printing

    printing.board(board)
    print(f"report: {path}")
    return 0


def _one(folder: Path, max_bytes: int, *, as_json: bool) -> int:
    """Draw a run again, and say what came out."""
    from saddlepoint import report as room
    from saddlepoint import runs as store

    with usage():
        run = store.finished(folder)
        path = room.write_report(folder, max_bytes=max_bytes)
    if as_json:
        return _print({str(folder): store.metrics_of(run).plain()})
    from . import printing

    printing.outcome(run)
    print(f"report: {path}")
    return 0


def _print(values: object) -> int:
    import json

    print(json.dumps(values, indent=2))
    return 0
