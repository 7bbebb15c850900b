"""`saddlepoint report`: draw a run's page again, or compare several runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from .errors import UsageError, library, usage

__all__ = ["report"]


def report(
    *runs: Path,
    out: Path | None = None,
    max_megabytes: float = 2.0,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Write the report of a run, or one page that compares several.

    Args:
        runs: Run directories.
        out: The HTML file of a comparison. [default: comparison.html beside the first run]
        max_megabytes: Size of a report; the gallery shows fewer rows where they would not fit.
        json: Print the metrics of all runs as JSON.
    """
    if not runs:
        raise UsageError("`report` must be given at least one run directory, such as runs/demo.")
    if max_megabytes < 0.2:
        raise UsageError(f"`--max-megabytes` must be at least 0.2, got {max_megabytes}.")
    from saddlepoint import report as room
    from saddlepoint import runs as store
    from saddlepoint.report.training import write_training_report

    with usage():
        records = [store.Run.read(folder) for folder in runs]
    for folder, record in zip(runs, records, strict=True):
        if record.status != "complete":
            raise UsageError(
                f"`{folder}` must be a finished run, got one that is {record.status}; "
                f"continue it with: {record.command} --out {folder} --resume"
            )
    if len(runs) == 1 and records[0].kind == "train":
        with usage():
            print(f"report: {write_training_report(runs[0])}")
        return 0
    kinds = {record.kind == store.EVALUATE for record in records}
    if len(kinds) > 1:
        shown = ", ".join(f"{f} ({r.kind})" for f, r in zip(runs, records, strict=True))
        raise UsageError(
            f"`report` must compare attacks with attacks and evaluations with evaluations, got {shown}."
        )
    with library():
        if len(runs) == 1 and out is None:
            path = room.write_report(runs[0], max_bytes=int(max_megabytes * 1e6))
        elif len(runs) == 1:
            raise UsageError(
                "`--out` must be left out for a single run: its report is report.html in it."
            )
        else:
            path = room.write_comparison(runs, out or runs[0].parent / "comparison.html")
    if json:
        import json as text

        print(
            text.dumps(
                {str(f): dict(r.metrics) for f, r in zip(runs, records, strict=True)}, indent=2
            )
        )
        return 0
    from . import show

    names = [str(folder) for folder in runs]
    if kinds == {True}:
        from .tables import write_tables

        if len(runs) == 1:
            write_tables(records[0], runs[0])
        show.evaluations(names, records)
    else:
        show.comparison(names, records)
    print(f"report: {path}")
    return 0
