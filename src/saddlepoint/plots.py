"""Curves with matplotlib, for whoever asks for them. It is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from saddlepoint.extras import install

__all__ = ["PALETTE", "plot_steps", "plot_survival", "pyplot"]

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
            f"plots need matplotlib; install it with {install('show')}",
            name="matplotlib",
        ) from error
    return plt


def plot_steps(
    curves: dict[str, Tensor], names: Sequence[str], axes: Sequence[Any] | None = None
) -> Any:
    """Means over rows at every step, one panel per quantity, one line per domain.

    Args:
        curves: Quantities by name, (T, B, K); rows that hold no numbers are left out.
        names: Of the K domains.
        axes: One for each quantity; new ones side by side if None.

    Returns:
        The figure of matplotlib; its panels are `figure.axes`.
    """
    panels = _panels(curves, axes)
    for panel, (title, values) in zip(panels, curves.items(), strict=True):
        means = values.double().nanmean(dim=1).cpu()
        for k, name in enumerate(names):
            panel.plot(means[:, k].tolist(), **_style(k), label=name)
        panel.set_xlabel("step")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylabel(title)
        panel.grid(visible=True, alpha=0.3)
    return _with_legend(panels, own=axes is None)


def plot_survival(
    distances: Mapping[str, Mapping[str, Tensor]],
    radii: Mapping[str, float],
    axes: Sequence[Any] | None = None,
) -> Any:
    """The share of images whose nearest wrong image is farther than a radius, one panel per threat.

    Args:
        distances: For every threat the distances by the name of the line, (N,); inf where there is none.
        radii: Of the threats, marked in the panels.
        axes: One for each threat; new ones side by side if None.

    Returns:
        The figure of matplotlib; its panels are `figure.axes`.
    """
    panels = _panels(distances, axes)
    for panel, (threat, lines) in zip(panels, distances.items(), strict=True):
        for k, (name, values) in enumerate(lines.items()):
            known = values[values.isfinite()].double().sort().values
            left = len(values) - torch.arange(len(known) + 1, dtype=torch.float64)
            end = torch.tensor([max(1.25 * radii[threat], *known.tolist(), 0.0)])
            x = torch.cat([torch.zeros(1), known, end]).tolist()
            share = (left / max(len(values), 1)).tolist()
            panel.step(x, [share[0], *share[1:], share[-1]], where="post", **_style(k), label=name)
        panel.axvline(radii[threat], color="grey", linestyle=":")
        panel.set_xlim(0, 4 * radii[threat])
        panel.set_ylim(0, 1)
        panel.set_xlabel(f"{threat} radius")
        panel.set_ylabel("share still right")
        panel.grid(visible=True, alpha=0.3)
    return _with_legend(panels, own=axes is None)


def _panels(wanted: Mapping[str, Any], axes: Sequence[Any] | None) -> Sequence[Any]:
    if axes is None:
        size = (4.6 * len(wanted) + 1.2, 3.2)
        _, made = pyplot().subplots(1, len(wanted), figsize=size, layout="constrained")
        return tuple(made) if len(wanted) > 1 else (made,)
    if len(axes) != len(wanted):
        raise ValueError(
            f"`axes` must be {len(wanted)}, for {' and '.join(wanted)}, got {len(axes)}."
        )
    return axes


def _style(k: int) -> dict[str, str]:
    style = _DASHES[k // len(PALETTE) % len(_DASHES)]
    return {"color": PALETTE[k % len(PALETTE)], "linestyle": style}


def _with_legend(panels: Sequence[Any], *, own: bool) -> Any:
    """The figure, with one legend for all panels beside them where they are ours, else in the last."""
    lines, names = panels[-1].get_legend_handles_labels()
    figure = panels[-1].figure
    if own:
        figure.legend(lines, names, loc="outside right upper", fontsize="small")
    else:
        panels[-1].legend(fontsize="small")
    figure._ipython_display_ = partial(_shown_once, figure)
    return figure


def _shown_once(figure: Any) -> None:
    """Of a figure that a notebook is about to show: take it from those that it shows at the end of a cell.

    Jupyter asks a value for this method first, and shows it as it usually does if that declines. Without it the
    last line of a cell, `result.plot()`, is shown as a value and once more as a figure that is open.
    """
    from matplotlib import get_backend

    if "inline" in get_backend():
        pyplot().close(figure)
    raise NotImplementedError
