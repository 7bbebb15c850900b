"""Curves with matplotlib, for whoever asks for them. It is imported when it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

__all__ = ["PALETTE", "plot_steps", "pyplot"]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#F0E442")
"""Okabe and Ito's colours, which people with colour vision deficiencies can tell apart."""

_DASHES = ("-", "--", "-.", ":")


def pyplot() -> Any:
    """`matplotlib.pyplot`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib; install it with pip install 'saddlepoint[show]'",
            name="matplotlib",
        ) from error
    return plt


def plot_steps(
    curves: dict[str, Tensor], names: Sequence[str], axes: Sequence[Any] | None = None
) -> tuple[Any, ...]:
    """Means over rows at every step, one panel per quantity, one line per domain.

    Args:
        curves: Quantities by name, (T, B, K); rows that hold no numbers are left out.
        names: Of the K domains.
        axes: One for each quantity; new ones side by side if None.

    Returns:
        The axes.
    """
    if axes is None:
        _, made = pyplot().subplots(
            1, len(curves), figsize=(4.6 * len(curves), 3.2), layout="constrained"
        )
        axes = tuple(made) if len(curves) > 1 else (made,)
    if len(axes) != len(curves):
        raise ValueError(
            f"`axes` must be {len(curves)}, for {' and '.join(curves)}, got {len(axes)}."
        )
    for panel, (title, values) in zip(axes, curves.items(), strict=True):
        means = values.double().nanmean(dim=1).cpu()
        for k, name in enumerate(names):
            style = _DASHES[k // len(PALETTE) % len(_DASHES)]
            colour = PALETTE[k % len(PALETTE)]
            panel.plot(means[:, k].tolist(), color=colour, linestyle=style, label=name)
        panel.set_xlabel("step")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylabel(title)
        panel.grid(visible=True, alpha=0.3)
    axes[-1].legend(fontsize="small")  # losses fall: there is room above them
    return tuple(axes)
