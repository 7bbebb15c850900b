"""The page of an examination: what the doctor saw in every model, what it means and what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saddlepoint.doctor import Finding, worst
from saddlepoint.report.sentences import VERDICTS
from saddlepoint.report.template import render_template
from saddlepoint.runs.drawn import write_drawn
from saddlepoint.runs.record import versions

__all__ = ["write_findings"]


def write_findings(
    findings: Mapping[str, Sequence[Finding]],
    path: str | os.PathLike[str],
    *,
    about: str = "",
    command: str = "",
) -> Path:
    """Write the findings of the doctor on one or more models as a page.

    Args:
        findings: By the name of the model, from `saddlepoint.doctor.examine`.
        path: The HTML file to write.
        about: What the models were asked about, such as "64 images of mnist-sample, linf 0.2".
        command: The line that repeats the examination, if there is one.

    Returns:
        The path.

    Raises:
        ValueError: There is no model, or something at the path that is no page of ours.

    Example:
        >>> import tempfile
        >>> found = [Finding("outputs", "fail", "rows sum to one", "these are probabilities", "return logits")]
        >>> page = write_findings({"mine": found}, Path(tempfile.mkdtemp()) / "doctor.html")
        >>> "mine is not fit to be evaluated" in page.read_text()
        True
    """
    path = Path(path)
    if not findings:
        raise ValueError("`findings` must be of at least one model, got none.")
    examined = [_examined(name, each) for name, each in findings.items()]
    html = render_template(
        "doctor.html",
        title="Doctor: " + ", ".join(findings),
        heading=_heading(examined),
        about=about,
        examined=examined,
        command=command,
        versions=versions(),
    )
    write_drawn(path.parent, {path.name: html.encode()})
    return path


def _examined(name: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """A model, with its worst findings first."""
    state = worst(findings)
    order = ("fail", "warn", "ok")
    counts = {each: sum(found.status == each for found in findings) for each in order}
    words = {"fail": "failed", "warn": "to look at", "ok": "fine"}
    return {
        "name": name,
        "state": state,
        "verdict": VERDICTS[state],
        "counts": ", ".join(f"{n} {words[each]}" for each, n in counts.items() if n),
        "findings": sorted(findings, key=lambda found: order.index(found.status)),
    }


def _heading(examined: Sequence[Mapping[str, Any]]) -> str:
    if len(examined) == 1:
        (only,) = examined
        said = {
            "ok": "is fit to be evaluated",
            "warn": "can be evaluated, with doubts",
            "fail": "is not fit to be evaluated",
        }
        return f"{only['name']} {said[only['state']]}"
    unfit = sum(each["state"] == "fail" for each in examined)
    doubtful = sum(each["state"] == "warn" for each in examined)
    if not unfit:
        every = "Both" if len(examined) == 2 else f"All {len(examined)}"
        doubts = f", {doubtful} with doubts" if doubtful else ""
        return f"{every} models can be evaluated{doubts}"
    verb = "is" if unfit == 1 else "are"
    return f"{unfit} of {len(examined)} models {verb} not fit to be evaluated"
