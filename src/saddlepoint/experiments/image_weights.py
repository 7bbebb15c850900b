"""Image robustness: weights of the images of a group beside how far each has to be moved on its own.

Compared are only attacks and measurements of the same groups, by images and seed of their records; that their
networks are the same is what `finished.collect` sees to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from saddlepoint.experiments.finished import Attacked, Measured, Results, Source
from saddlepoint.experiments.image_groups import IMAGE_GROUPS
from saddlepoint.experiments.measurements import Distances
from saddlepoint.experiments.ranks import spearman_within
from saddlepoint.report.tables import Cell, Column, Table
from saddlepoint.runs import Run

__all__ = ["NORMS", "correlations", "group_weights", "images"]

NORMS = ("l0", "l1", "l2", "linf")
"""Of the interpretability tables, in their order."""


class _Groups(NamedTuple):
    """What groups are made of, in the words of a complaint."""

    images: tuple[str, int, int]  # their hash, groups, images of a group
    seed: int

    @classmethod
    def of(cls, run: Run) -> _Groups:
        return cls((run.hashes.data, run.rows, len(run.domains)), run.seed)

    def unlike(self, other: _Groups) -> list[str]:
        """What differs."""
        return [name for name in self._fields if getattr(self, name) != getattr(other, name)]


class _Beside(NamedTuple):
    """A finished attack, and what of its groups differs from those of a measurement."""

    norm: str
    item: Attacked
    unlike: list[str]


def _beside(results: Results, measured: Measured) -> list[_Beside]:
    """The attacks by the method of a measurement, norm by norm."""
    found = []
    for block in results.experiment.blocks:
        item = results.one(block, block.rows[0].strategy.key, Source(measured.method))
        if item is not None and item.folder is not None:
            # FOLDER/LABELS/METHOD/BLOCK/STRATEGY beside FOLDER/LABELS/METHOD/KEY
            other = Run.read(item.folder.parents[1] / measured.measurement.key)
            unlike = _Groups.of(Run.read(item.folder)).unlike(_Groups.of(other))
            found.append(_Beside(block.key, item, unlike))
    return found


def group_weights(results: Results, measured: Measured) -> dict[str, list[list[float]]]:
    """Final weights of every group, (B, K), under every norm that is finished on those of a measurement."""
    return {
        norm: item.tensors()["weights"].tolist()
        for norm, item, unlike in _beside(results, measured)
        if not unlike
    }


def _left_out(results: Results, measured: Measured) -> list[str]:
    """A sentence on the weights that cannot be compared with a measurement."""
    others = [each for each in _beside(results, measured) if each.unlike]
    if not others:
        return []
    norms = ", ".join(each.norm for each in others)
    unlike = " and ".join(dict.fromkeys(what for each in others for what in each.unlike))
    return [
        f"Weights in {norms} by {Source(measured.method).method_name} are compared with nothing, because the "
        f"{measured.measurement.label} was measured with other {unlike}; run both with the same flags."
    ]


def correlations(results: Results, title: str, notes: Sequence[str]) -> Table:
    """Mean rank correlation inside groups between the weight in a norm and the two distances.

    Args:
        results: Of the experiment.
        title: Of the table.
        notes: Below it, before those on what is measured.
    """
    columns = (
        Column("Weights in"),
        Column("Source"),
        Column("Groups"),
        Column("rank correlation with C&W l2 distance", 3),
        Column("95 % of it", 3),
        Column("rank correlation with eps_min", 3),
        Column("95 % of that", 3),
        *(Column(f"with weights in {norm}", 3) for norm in NORMS),
    )
    lines: list[tuple[Cell, ...]] = []
    measurements = [(*pair, group_weights(results, pair[0])) for pair in results.having(Distances)]
    for norm in NORMS:
        printed = [getattr(group, norm) for group in IMAGE_GROUPS]
        lines.append(
            _correlation_line(
                norm,
                "paper",
                printed,
                [group.distance for group in IMAGE_GROUPS],
                [group.eps_min for group in IMAGE_GROUPS],
            )
            + _across(norm, {n: [getattr(g, n) for g in IMAGE_GROUPS] for n in NORMS})
        )
        for item, measured, found in measurements:
            if norm in found:
                distances, radii = measured.distance, measured.eps_min
                line = _correlation_line(norm, item.method, found[norm], distances, radii)
                lines.append(line + _across(norm, found))
    said = [result.note for _, result, _ in measurements if result.note]
    said += [sentence for item, _, _ in measurements for sentence in _left_out(results, item)]
    return Table(title, columns, tuple(lines), (*notes, *dict.fromkeys(said)))


def _correlation_line(
    norm: str,
    source: str,
    weights: Sequence[Sequence[float]],
    distances: Sequence[Sequence[float | None]],
    radii: Sequence[Sequence[float | None]],
) -> tuple[Cell, ...]:
    cells: list[Cell] = []
    for values in (distances, radii):
        # A group with a distance that could not be found is left out.
        pairs = [
            (w, [v for v in row if v is not None])
            for w, row in zip(weights, values, strict=True)
            if None not in row
        ]
        mean, half, count = spearman_within(pairs)
        cells += [mean if count else None]
        cells += [(max(-1.0, mean - half), min(1.0, mean + half)) if half == half else None]
    return (norm, source, len(weights), *cells)


def _across(norm: str, weights: Mapping[str, Sequence[Sequence[float]]]) -> tuple[Cell, ...]:
    """Mean rank correlation inside groups of the weights in a norm with those in every other norm."""
    cells: list[Cell] = []
    for other in NORMS:
        known = other != norm and other in weights
        pairs = zip(weights[norm], weights[other], strict=True) if known else ()
        mean, _, count = spearman_within(pairs)
        cells.append(mean if count else None)
    return tuple(cells)


def images(results: Results) -> Table:
    """Every image: its weights under the norms, its distances."""
    columns = (
        Column("Source"),
        Column("Group"),
        Column("Digit"),
        Column("Image"),
        *(Column(f"w {norm}", 3) for norm in NORMS),
        Column("C&W l2 distance", 3),
        Column("eps_min linf", 3),
    )
    lines: list[tuple[Cell, ...]] = []
    for number, group in enumerate(IMAGE_GROUPS, start=1):
        for k in range(len(group.l0)):
            weights = (getattr(group, norm)[k] for norm in NORMS)
            cells = (*weights, group.distance[k], group.eps_min[k])
            lines.append(("paper", number, group.digit, k + 1, *cells))
    for item, result in results.having(Distances):
        found = group_weights(results, item)
        for number, labels in enumerate(result.labels):
            for k, digit in enumerate(labels):
                weights = (found[n][number][k] if n in found else None for n in NORMS)
                cells = (*weights, result.distance[number][k], result.eps_min[number][k])
                lines.append((item.method, number + 1, digit, k + 1, *cells))
    return Table("Weights and distances of every image", columns, tuple(lines))
