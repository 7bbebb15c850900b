"""Evaluations as small tables, for notebooks, and as pages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saddlepoint.display import hardest, html_table, percent, percents
from saddlepoint.evaluation.rates import share, wilson
from saddlepoint.problems import AbstractProblem

if TYPE_CHECKING:
    from saddlepoint.evaluation.domain_results import DomainAccuracy
    from saddlepoint.evaluation.results import RobustAccuracy

__all__ = ["domains_table", "threats_table", "write_page"]


def threats_table(result: RobustAccuracy) -> str:
    """Every threat, all of them, and the hardest one."""
    clean = percents(wilson(int(result.correct.sum()), result.count))
    rows = [("no attack", percent(result.clean), clean)]
    for name in (*result.balls, None):
        rows.append((name or "union", _share(result, name), percents(result.interval(name))))
    shares = result.per_threat
    hard = hardest([-value for value in shares.values()])
    note = "" if hard is None else f"hardest: {list(shares)[hard]}"
    return html_table(("threat", "accuracy", "95 %"), rows, note)


def domains_table(result: DomainAccuracy) -> str:
    """Every domain under every threat, all of them, and the one that is hardest to fool."""
    parts: dict[str, RobustAccuracy | DomainAccuracy] = {
        **result.per_domain,
        "every one right": result,
    }
    rows = [
        (name, percent(each.clean), *(_share(each, threat) for threat in (*result.balls, None)))
        for name, each in parts.items()
    ]
    hard = hardest([each.union for each in result.per_domain.values()])
    note = "" if hard is None else f"hardest to fool: {list(result.per_domain)[hard]}"
    return html_table(("domain", "no attack", *result.balls, "union"), rows, note)


def _share(result: RobustAccuracy | DomainAccuracy, threat: str | None) -> str:
    """What is still right under a threat, or under all."""
    bound = ("union" if threat is None else f"robust.{threat}") in result.at_most
    return percent(share(result.still_right(threat)), at_most=bound)


def write_page(
    result: DomainAccuracy | RobustAccuracy,
    path: str | os.PathLike[str],
    problem: AbstractProblem | None,
    options: Mapping[str, Any],
) -> Path:
    """The page of the command line; see `saddlepoint.report.write_result`."""
    import saddlepoint  # as in `AttackResult.report`: the package knows the rooms above

    return saddlepoint.report.write_result(result, path, problem, **options)
