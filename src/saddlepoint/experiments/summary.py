"""Tables of an experiment: the paper's line first, ours below it."""

from __future__ import annotations

from collections.abc import Sequence

from saddlepoint.experiments.block_parts import domain_names
from saddlepoint.experiments.finished import Attacked, Results, lowered
from saddlepoint.experiments.image_weights import correlations, images
from saddlepoint.experiments.measurements import NetworkAccuracy, Residuals, Times
from saddlepoint.experiments.networks import REPORTED_NETWORKS
from saddlepoint.experiments.pairs import pair_table
from saddlepoint.experiments.plan import (
    AVERAGE,
    UNREPORTED,
    Block,
    Experiment,
    Ordered,
    Row,
    Static,
)
from saddlepoint.report.tables import Cell, Column, Table
from saddlepoint.runs import texts
from saddlepoint.runs.settings import UniversalSettings

__all__ = ["tables_of"]


def tables_of(results: Results, skipped: Sequence[str] = ()) -> list[Table]:
    """The tables of an experiment.

    Args:
        results: What is finished.
        skipped: Why blocks are missing; becomes notes.

    Returns:
        One table, or several where the experiment measures different things.
    """
    experiment = results.experiment
    notes = tuple(dict.fromkeys([*_notes(experiment), *skipped]))
    if experiment.figure == "images":
        return [correlations(results, _heading(experiment), notes), images(results)]
    if experiment.measurements:
        kind = experiment.measurements[0].what
        return [{"residuals": _rates, "accuracy": _networks}.get(kind, _costs)(results, notes)]
    return [_attacks(results, notes), *pair_table(results)]


def _attacks(results: Results, notes: tuple[str, ...]) -> Table:
    experiment = results.experiment
    names = domain_names(experiment.blocks[0])
    columns = (
        Column("Setting"),
        Column("Opt."),
        Column("Source"),
        Column("Labels"),
        Column("Images"),
        *(Column(f"Acc_{name}") for name in names),
        Column("ASR_avg"),
        Column("ASR_all"),
        Column("ASR_all 95 %", 1),
        Column("Lift %", sign=True),
        Column("Evaluations", 1),
    )
    lines: list[tuple[Cell, ...]] = []
    for block in experiment.blocks:
        for row in block.rows:
            ours = [
                item
                for source in results.sources
                if (item := results.one(block, row.strategy.key, source)) is not None
            ]
            if row.paper != UNREPORTED:
                lines.append(_paper_line(block, row, len(names)))
            lines += [_our_line(results, item, names) for item in ours]
    notes = (*notes, *found_weights(results), *_missing_lifts(results), *lowered(results))
    return Table(_heading(experiment), columns, tuple(lines), notes)


def _missing_lifts(results: Results) -> list[str]:
    """A sentence where a row that could have a lift has none."""
    rows = (
        item
        for item in results.attacks
        if AVERAGE.key in {row.strategy.key for row in item.block.rows} - {item.row.strategy.key}
    )
    if all(results.lift(item) is not None for item in rows):
        return []
    return [
        "Lift is the gain in ASR_all relative to the average of the same setting and source; there is none "
        "where that row has not been run on the same images, or where the average fools nothing."
    ]


def found_weights(results: Results) -> list[str]:
    """Sentences on the weights that were found from other rows: the order of the domains, and w_static."""
    sentences = []
    for block in results.experiment.blocks:
        rules = [row.strategy.rule for row in block.rows]
        orders, statics = [], []
        for source in results.sources:
            average = results.one(block, AVERAGE.key, source)
            if average is not None and any(isinstance(rule, Ordered) for rule in rules):
                accuracy = [average.accuracy[name] for name in average.domains]
                order = [average.domains[k] for k in Ordered.order(accuracy)]
                orders.append(f"{', '.join(order)} ({source.name})")
        for item in results.attacks:
            if item.block.key == block.key and isinstance(item.row.strategy.rule, Static):
                weights = texts.split(item.rule.removeprefix("fixed:"))
                shown = ", ".join(f"{texts.number(weight):.3f}" for weight in weights)
                statics.append(f"{shown} ({item.source.name})")
        if orders:
            sentences.append(
                "Our networks from the hardest to the easiest, by their accuracy under the average: "
                f"{'; '.join(orders)}."
            )
        if statics:
            names = ", ".join(results.attacks[0].domains)
            sentences.append(f"Our w_static, for {names}: {'; '.join(statics)}.")
    return sentences


def _paper_line(block: Block, row: Row, domains: int) -> tuple[Cell, ...]:
    paper = row.paper
    accuracy: tuple[Cell, ...] = paper.accuracy or (None,) * domains
    rates = (paper.asr_avg, paper.asr_all, None, paper.lift, None)
    images = 10_000 if isinstance(block.settings, UniversalSettings) else None  # not said of others
    return (block.label, row.strategy.label, "paper", None, images, *accuracy, *rates)


def _our_line(results: Results, item: Attacked, names: Sequence[str]) -> tuple[Cell, ...]:
    return (
        item.block.label,
        item.row.strategy.label,
        item.source.method_name,
        item.source.labels,
        item.images,
        *(item.accuracy[name] for name in names),
        item.asr_mean,
        item.asr_all,
        item.interval,
        results.lift(item),
        item.evaluations,
    )


# ------------------------------------------------------------------------------- rate and cost


def _rates(results: Results, notes: tuple[str, ...]) -> Table:
    columns = (
        Column("Setting"),
        Column("Source"),
        Column("Images"),
        *(Column(f"S({step})", 4) for step in (1, 10, 100)),
        Column("S(T)", 4),
        Column("T"),
        Column("Slope", 2),
    )
    # The theorem's 1/T is that of the squared norm, as usual, or of the norm, as its footnote says.
    lines: list[tuple[Cell, ...]] = [
        (f"smooth losses, 1/T of {what}", "paper", *(None,) * 6, slope)
        for what, slope in (("the squared norm", -1.0), ("the norm, as in the footnote", -2.0))
    ]
    for item, result in results.having(Residuals):
        best = result.best
        picked = (best[step - 1] if step <= len(best) else None for step in (1, 10, 100))
        last = (best[-1], len(best), result.slope)
        lines.append((item.measurement.label, item.method, item.images, *picked, *last))
    return Table(_heading(results.experiment), columns, tuple(lines), notes)


def _costs(results: Results, notes: tuple[str, ...]) -> Table:
    columns = (
        Column("Setting"),
        Column("Source"),
        Column("Images"),
        Column("average, us per evaluation", 1),
        Column("min-max, us per evaluation", 1),
        Column("min-max / average", 3),
        Column("smallest and largest", 3),
    )
    lines: list[tuple[Cell, ...]] = [("attack of the paper", "paper", None, None, None, 1.31, None)]
    for item, result in results.having(Times):
        first, *_, last = result.microseconds.values()
        cells = (first, last, result.ratio, (result.low, result.high))
        lines.append((item.measurement.label, item.method, item.images, *cells))
    return Table(_heading(results.experiment), columns, tuple(lines), notes)


def _networks(results: Results, notes: tuple[str, ...]) -> Table:
    columns = (
        Column("Data"),
        Column("Network"),
        Column("Source"),
        Column("Images"),
        Column("Clean"),
        Column("FGSM, true labels"),
        Column("FGSM, predicted labels"),
    )
    ours = {m.measurement.key: (m, found) for m, found in results.having(NetworkAccuracy)}
    lines: list[tuple[Cell, ...]] = []
    for (data, letter), (clean, fgsm) in REPORTED_NETWORKS.items():
        lines.append((data, letter, "paper", None, clean, fgsm, None))
        for family, source in ((data, "ours"), (f"{data}-paper", "ours, the paper's recipe")):
            if (both := ours.get(f"{family}-{letter.lower()}")) is not None:
                item, result = both
                numbers = (result.clean, result.fgsm, result.fgsm_predicted)
                lines.append((data, letter, source, item.images, *numbers))
    return Table(_heading(results.experiment), columns, tuple(lines), notes)


def _heading(experiment: Experiment) -> str:
    return f"{experiment.title} ({experiment.source})"


def _notes(experiment: Experiment) -> list[str]:
    own = [experiment.note] if experiment.note else []
    return own + [block.note for block in experiment.blocks if block.note]
