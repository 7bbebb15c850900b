"""The bar of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from saddlepoint.bars import bar

from .batches import TrainingProgress

__all__ = ["training_bar"]

_Told = Callable[[TrainingProgress], None]


@contextmanager
def training_bar(
    title: str = "training",
    *,
    quiet: bool = False,
    also: Callable[[Callable[[str], None]], _Told] | None = None,
) -> Iterator[_Told]:
    """A bar over all steps with epoch, time left, and what else there is room for, and one line per epoch.

    Args:
        title: What is trained.
        quiet: Neither bar nor lines.
        also: Gets what says a line, and gives who else is told of every step.
    """
    from rich.progress import TaskProgressColumn

    with bar(title, TaskProgressColumn(), quiet=quiet) as shown:
        other = None if also is None else also(shown.say)

        def report(state: TrainingProgress) -> None:
            done, columns = (state.epoch - 1) * state.steps + state.step, shown.shown.console.width
            epoch, figures = f"epoch {state.epoch}/{state.epochs}", _figures(state)
            first = f"{title}  {epoch}" if columns >= 120 and len(title) < 25 else epoch
            shown.move(done, state.epochs * state.steps, figures, first)
            if state.step == state.steps:
                shown.say(f"{title}  {epoch}  {figures}")
            if other is not None:
                other(state)

        yield report


def _figures(state: TrainingProgress) -> str:
    """Loss and accuracy in training, the mean weight of every threat, and the accuracy on held-out images.

    Example:
        >>> from saddlepoint.training import TrainingProgress
        >>> stats = {"loss": 2.25, "accuracy": 0.0625, "loss/linf": 2.25}
        >>> _figures(TrainingProgress(1, 2, 4, 4, stats, {"clean": 0.25, "union": 0.125}))
        'loss 2.2500  accuracy under the training attack 6.2 %  held out clean 25.0 union 12.5 %'
    """
    stats = state.stats
    attacked = any("/" in key for key in stats)
    parts = [f"{key} {value:.4f}" for key, value in stats.items() if key == "loss"]
    if "accuracy" in stats:
        which = "accuracy under the training attack" if attacked else "training accuracy"
        parts.append(f"{which} {100 * stats['accuracy']:.1f} %")
    prefix = "weight/"
    weights = {k.removeprefix(prefix): v for k, v in stats.items() if k.startswith(prefix)}
    if len(weights) > 1:
        parts.append("weights " + " ".join(f"{name} {w:.2f}" for name, w in weights.items()))
    if state.validation:
        shares = (f"{name} {100 * share:.1f}" for name, share in state.validation.items())
        parts.append("held out " + " ".join(shares) + " %")
    return "  ".join(parts)
