"""Figures of an experiment as data: what is drawn, without how. `drawing` renders it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from saddlepoint import data
from saddlepoint.experiments import block_parts
from saddlepoint.experiments.finished import Attacked, Results, Source
from saddlepoint.experiments.image_weights import NORMS, group_weights
from saddlepoint.experiments.measurements import Distances, Residuals
from saddlepoint.experiments.plan import AVERAGE
from saddlepoint.experiments.ranks import spearman_within
from saddlepoint.runs.settings import UniversalSettings

__all__ = ["Box", "Curve", "Panel", "Sheet", "Thumbnail", "sheets"]

_PERCENTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BOX_STEPS = 6
_BLACK = 4  # its place in the palette


@final
@dataclass(frozen=True)
class Curve:
    """A line, or points, with an optional band.

    Attributes:
        label: In the legend.
        x, y: Coordinates.
        low, high: Of the band; empty for none.
        style: "line", "points", or "reference" for a thin dashed line.
        colour: Index into the palette.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    style: str = "line"
    colour: int = 0


@final
@dataclass(frozen=True)
class Box:
    """A box at x: the 5th, 25th, 50th, 75th and 95th percentile of a domain's weight."""

    label: str
    x: float
    marks: tuple[float, ...]
    colour: int = 0


@final
@dataclass(frozen=True)
class Thumbnail:
    """A grey image, (H, W), and the words below it."""

    image: tuple[tuple[float, ...], ...] = field(repr=False)
    caption: str = ""


@final
@dataclass(frozen=True)
class Panel:
    """One pair of axes, or a grid of thumbnails with so many `columns`."""

    title: str
    x_label: str = ""
    y_label: str = ""
    curves: tuple[Curve, ...] = ()
    boxes: tuple[Box, ...] = ()
    thumbnails: tuple[Thumbnail, ...] = ()
    columns: int = 1
    log: bool = False
    log_x: bool = False
    y_range: tuple[float, float] | None = None


@final
@dataclass(frozen=True)
class Sheet:
    """Panels side by side, in one file called `name`."""

    name: str
    panels: tuple[Panel, ...]


def sheets(results: Results) -> list[Sheet]:
    """The figures of an experiment, as far as its rows are finished.

    Args:
        results: What is finished.

    Returns:
        One sheet per method and label; none where the experiment has no figure.
    """
    found = []
    # Measurements without attacks are about the true class.
    for source in results.sources or [Source(method) for method in results.methods]:
        panels = _PANELS[results.experiment.figure](results, source)
        suffix = "" if source.labels == "true" else f"-{source.labels}"
        if panels:
            name = f"{results.experiment.name}-{source.method}{suffix}"
            found.append(Sheet(name, tuple(panels)))
    if results.experiment.figure == "images":
        found += _thumbnails(results)
    return found


def _none(results: Results, source: Source) -> list[Panel]:
    del results, source  # experiments without a figure
    return []


# ------------------------------------------------------------------------------- steps of an attack


def _steps(results: Results, source: Source) -> list[Panel]:
    panels: list[Panel] = []
    for block in results.experiment.blocks:
        for row in block.rows:
            item = results.one(block, row.strategy.key, source)
            if item is None:
                continue
            tensors = item.tensors()
            fooled = tensors["history.losses"] < 0
            panels.append(_success_panel(item, fooled))
            if row.strategy.key == "minmax":
                panels.append(_weights_panel(item, tensors["history.weights"]))
    return panels


def _success_panel(item: Attacked, fooled: Tensor) -> Panel:
    steps = tuple(float(step) for step in range(len(fooled)))
    rates = 100 * fooled.double().mean(dim=1)
    curves = [
        Curve(name, steps, tuple(rates[:, k].tolist()), colour=k)
        for k, name in enumerate(item.domains)
    ]
    together = 100 * fooled.all(dim=2).double().mean(dim=1)
    colour = max(_BLACK, len(curves))
    curves.append(Curve("all at once", steps, tuple(together.tolist()), colour=colour))
    return Panel(
        title=item.row.strategy.label,
        x_label="step of the attack",
        y_label="success rate (%)",
        curves=tuple(curves),
        y_range=(0, 100),
    )


def _weights_panel(item: Attacked, weights: Tensor) -> Panel:
    """Boxes at a few steps, the domains side by side."""
    last = len(weights) - 1
    places = sorted({round(last * i / (_BOX_STEPS - 1)) for i in range(_BOX_STEPS)})
    levels = torch.tensor(_PERCENTILES, dtype=torch.float64)
    domains = len(item.domains)
    gap = (places[1] - places[0]) if len(places) > 1 else 1
    boxes = []
    for step in places:
        marks = weights[step].double().quantile(levels, dim=0)
        for k, name in enumerate(item.domains):
            x = step + gap * 0.8 * ((k + 0.5) / domains - 0.5)
            boxes.append(Box(name, x, tuple(marks[:, k].tolist()), colour=k))
    return Panel(
        title="weights",
        x_label="step of the attack",
        y_label="weight (quartiles, 5 and 95 %)",
        boxes=tuple(boxes),
        y_range=(0, 1),
    )


# ------------------------------------------------------------------------------- radii and gamma


def _radii(results: Results, source: Source) -> list[Panel]:
    return _panel("linf radius eps", source, _over_blocks(results, source))


def _alphas(results: Results, source: Source) -> list[Panel]:
    panels = _panel("step size alpha", source, _over_blocks(results, source))
    return [replace(panel, log_x=True) for panel in panels]


def _over_blocks(results: Results, source: Source) -> list[Curve]:
    """Success of every strategy against the number that varies from block to block."""
    curves = []
    blocks = results.experiment.blocks
    for colour, row in enumerate(blocks[0].rows if blocks else ()):
        items = [results.one(block, row.strategy.key, source) for block in blocks]
        points = [(i.block.value or 0.0, i) for i in items if i is not None]
        curves.append(_rate_curve(row.strategy.label, points, colour))
    return curves


def _sweeps(results: Results, source: Source) -> list[Panel]:
    """Success against the number that is varied, which strategies have in their key."""
    name, points, base = results.experiment.figure, [], None
    for item in results.attacks:
        if item.source == source and item.row.strategy.key == AVERAGE.key:
            base = item
        elif item.source == source:
            points.append((float(item.row.strategy.key.removeprefix(f"{name}-")), item))
    curves = [_rate_curve("min-max", points, 1)]
    if base is not None and points:
        ends = (points[0][0], points[-1][0])
        level = base.asr_all
        curves.append(Curve("average", ends, (level, level), style="reference"))
    panels = _panel(name, source, curves)
    return [replace(panel, log_x=name == "beta") for panel in panels]


def _rate_curve(label: str, points: Sequence[tuple[float, Attacked]], colour: int) -> Curve:
    return Curve(
        label,
        tuple(x for x, _ in points),
        tuple(item.asr_all for _, item in points),
        tuple(item.interval[0] for _, item in points),
        tuple(item.interval[1] for _, item in points),
        colour=colour,
    )


def _panel(x_label: str, source: Source, curves: list[Curve]) -> list[Panel]:
    kept = tuple(curve for curve in curves if curve.x)
    if not kept:
        return []
    return [Panel(source.name, x_label, "ASR_all (%), 95 % interval", kept, y_range=(0, 100))]


# ------------------------------------------------------------------------------- image robustness


def _images(results: Results, source: Source) -> list[Panel]:
    """For every norm the weight of an image against its distance, and the correlation inside groups."""
    panels = []
    for item, measured in results.having(Distances):
        if item.method != source.method:
            continue
        weights = group_weights(results, item)
        for colour, norm in enumerate(norm for norm in NORMS if norm in weights):
            pairs = zip(weights[norm], measured.distance, strict=True)
            groups = [(w, [v for v in d if v is not None]) for w, d in pairs if None not in d]
            mean, _, count = spearman_within(groups)
            points = [pair for w, d in groups for pair in zip(d, w, strict=True)]
            xs, ys = tuple(x for x, _ in points), tuple(y for _, y in points)
            title = f"{norm}: mean rank correlation {mean:.2f} ({count} groups)"
            curve = Curve("image", xs, ys, style="points", colour=colour)
            if points:
                panels.append(
                    Panel(title, "C&W l2 distance", "weight in its group", (curve,), y_range=(0, 1))
                )
    return panels


def _thumbnails(results: Results) -> list[Sheet]:
    """The first group of every digit, with the linf weight and the two distances below each image."""
    found = []
    for item, measured in results.having(Distances):
        block = item.measurement.block
        weights = group_weights(results, item).get("linf")
        if weights is None or not isinstance(block.settings, UniversalSettings):
            continue
        images = block_parts.load_images(block.settings.data, item.images)
        size = block.settings.group_size
        groups, _ = data.group(images.x, images.y, size, seed=item.seed, by_class=True)
        firsts: dict[int, int] = {}
        for number, labels in enumerate(measured.labels):
            firsts.setdefault(labels[0], number)
        tiles = []
        for number in firsts.values():
            for k in range(block.settings.group_size):
                distance, radius = measured.distance[number][k], measured.eps_min[number][k]
                caption = f"w {weights[number][k]:.2f}\n{_short(distance)} / {_short(radius)}"
                grey = tuple(tuple(line) for line in groups[number, k, 0].tolist())
                tiles.append(Thumbnail(grey, caption))
        title = "weight in linf, C&W l2 distance / smallest eps"
        panel = Panel(title, thumbnails=tuple(tiles), columns=2 * block.settings.group_size)
        found.append(Sheet(f"{results.experiment.name}-{item.method}-digits", (panel,)))
    return found


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# ------------------------------------------------------------------------------- convergence


def _convergence(results: Results, source: Source) -> list[Panel]:
    curves = []
    found = [pair for pair in results.having(Residuals) if pair[0].method == source.method]
    for colour, (item, measured) in enumerate(found):
        steps, slope = tuple(float(step) for step in measured.steps), measured.slope
        label = item.measurement.label + ("" if slope is None else f": slope {slope:.2f}")
        curves.append(Curve(label, steps, measured.best, colour=colour))
    if not curves:
        return []
    top = max(curve.y[0] for curve in curves)
    end = max(curve.x[-1] for curve in curves)
    curves.append(Curve("slope -1", (1.0, end), (top, top / end), style="reference"))
    label = "S(T), squared residual"
    return [Panel("stationarity", "number of steps T", label, tuple(curves), log=True)]


_PANELS = {
    "": _none,
    "steps": _steps,
    "eps": _radii,
    "gamma": _sweeps,
    "beta": _sweeps,
    "alpha": _alphas,
    "images": _images,
    "convergence": _convergence,
}
