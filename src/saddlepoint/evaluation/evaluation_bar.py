"""The bar of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from saddlepoint.bars import bar
from saddlepoint.display import attack_text
from saddlepoint.evaluation.work import EvaluationProgress

__all__ = ["evaluation_bar"]

_Told = Callable[[EvaluationProgress], None]


@contextmanager
def evaluation_bar(title: str = "evaluation", *, quiet: bool = False) -> Iterator[_Told]:
    """A bar for the attack that is running, with images left and images that are not fooled yet.

    Elsewhere than on a terminal there is one plain line per attack.
    """
    now = -1
    with bar(title, quiet=quiet) as shown:

        def report(state: EvaluationProgress) -> None:
            nonlocal now
            who = " ".join(
                part for part in (state.domain, state.threat, attack_text(state.attack)) if part
            )
            where = f"{who} ({state.index + 1}/{state.attacks})"
            figures = f"{state.not_fooled}/{state.images} not fooled yet"
            left = max(state.total - state.done, 0)
            again = " in all restarts" if state.total > state.images else ""
            if state.index != now:  # the time left is that of this attack
                now = state.index
                shown.shown.reset(shown.task)
            shown.move(state.done, state.total, f"{left} images left{again}, {figures}", where)
            if not shown.live and state.done >= state.total:
                shown.say(f"{title}: {where}: {figures}")

        yield report
