"""Summaries of experiments: a small file for each, from which the tables of a document are written.

A summary holds what tables show, and hashes of the settings and networks behind it: rows of other settings than
those of this code are refused. The hash of a measurement is also one of images and networks, which nothing is
compared with here; its line has to be one of the table, with numbers that can be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from saddlepoint import models
from saddlepoint.experiments.block_parts import describe, load_network
from saddlepoint.experiments.finished import Attacked, Results, Source, collect
from saddlepoint.experiments.places import publishing
from saddlepoint.experiments.plan import LABELS, METHODS, Block, Experiment, Ordered, Row
from saddlepoint.experiments.stored_lines import in_order, lines_without
from saddlepoint.experiments.summary import tables_of
from saddlepoint.experiments.summary_files import SUMMARY_VERSION, check_content, read_content
from saddlepoint.experiments.truths import packed, unpacked
from saddlepoint.files import write_atomically
from saddlepoint.runs import Run, hash_model, hash_settings, rule_words
from saddlepoint.runs.settings import UniversalSettings

__all__ = ["check_store", "read_summary", "write_summary"]


def write_summary(
    experiment: Experiment,
    folder: Path,
    store: Path,
    *,
    waiting: Callable[[str], None] | None = None,
    replaced: Callable[[str], None] | None = None,
) -> Path:
    """Store what the folder of an experiment holds as STORE/NAME.json.

    Rows and measurements that a summary holds already and the folder does not, such as those of another method,
    stay in it.

    Args:
        experiment: Which one.
        folder: Where `reproduce` put its results.
        store: Folder for summaries.
        waiting: Told whom this process waits for.
        replaced: Told which rows of the summary were replaced by rows of fewer images, where there are any.

    Returns:
        The file.

    Raises:
        ValueError: Rows of the folder, or the summary that is there, are about other networks of the same name;
            the summary has lines that compare rows which the folder does not have; or a number is none, such as
            nan.
    """
    results = collect(experiment, folder)
    runs = [Run.read(item.folder) for item in results.attacks if item.folder is not None]
    content: dict[str, Any] = {
        "schema_version": SUMMARY_VERSION,
        "experiment": experiment.name,
        "versions": _unique(
            [*(run.versions for run in runs), *(m.versions for m in results.measured)]
        ),
        "networks": _networks(results.networks),
        "rows": [
            _row(item, run) | (_path(item) if experiment.figure == "steps" else {})
            for item, run in zip(results.attacks, runs, strict=True)
        ],
        "measured": [
            {
                "key": item.measurement.key,
                "method": item.method,
                "images": item.images,
                "seed": item.seed,
                "settings": item.settings[:16],
            }
            for item in results.measured
        ],
        "lines": list(tables_of(results)[0].lines) if experiment.measurements else [],
    }
    path, fewer = store / f"{experiment.name}.json", list[str]()
    with publishing(store, waiting=waiting):
        if path.is_file():
            old = read_content(experiment, store)
            fewer = _fewer_images(content, old)
            _keep_others(experiment, content, old)
        must = f"`{folder}` must hold numbers that a summary can have"
        check_content(experiment, content, must, "repeat the run")
        write_atomically(path, _text(content).encode())
    if fewer and replaced is not None:
        replaced(f"{path}: rows of more images were replaced: {'; '.join(fewer)}")
    return path


def _networks(found: Mapping[str, str]) -> dict[str, str]:
    """Hashes of the networks by name: of shipped ones that of their file, whatever way models are hashed."""
    return {
        name: models.card(name).sha256 if _is_shipped(name, value) else value
        for name, value in found.items()
    }


def _is_shipped(name: str, found: str) -> bool:
    """Whether what was attacked under this name is the shipped network; `--parameters` goes before it."""
    return name in models.shipped() and hash_model(load_network(name)) == found


def _keep_others(experiment: Experiment, new: dict[str, Any], old: dict[str, Any]) -> None:
    """Add what only the old summary has to the new one."""
    for name, found in old["networks"].items():
        if new["networks"].setdefault(name, found) != found:
            raise ValueError(
                f"`store` must hold a summary of the same networks, got another {name} in the one of "
                f"{experiment.name}; move that file away."
            )
    _check_whole(experiment, new, old)
    if experiment.measurements:
        # Lines that compare rows with each other are all in the new summary, for its methods.
        entries = [*new["rows"], *new["measured"]] if experiment.blocks else []
        older = lines_without(experiment, old["lines"], {each["method"] for each in entries})
        new["lines"] = in_order(experiment, [*older, *new["lines"]])
    if _by_key(old).keys() - _by_key(new).keys():
        # Which rows were run with which of them is not stored: all stay as long as one of these rows does.
        new["versions"] = _unique([*old["versions"], *new["versions"]])
    new["rows"] = _with_older(new["rows"], old["rows"], _key, _places(experiment))
    places = [(m.key, method) for m in experiment.measurements for method in METHODS]
    new["measured"] = _with_older(new["measured"], old["measured"], _measured_key, places)


def _by_key(content: dict[str, Any]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Rows and measurements."""
    rows = {_key(row): row for row in content["rows"]}
    return rows | {_measured_key(each): each for each in content["measured"]}


def _fewer_images(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """Rows and measurements that replace those of more images, and of how many."""
    before, now = ({k: each["images"] for k, each in _by_key(c).items()} for c in (old, new))
    both = ((key, before[key], images) for key, images in now.items() if key in before)
    return [f"{', '.join(key)} ({had} by {has})" for key, had, has in both if has < had]


def _check_whole(experiment: Experiment, new: dict[str, Any], old: dict[str, Any]) -> None:
    """Lines that compare rows with each other cannot be written from some of the rows."""
    if not (experiment.blocks and experiment.measurements):
        return
    for method in METHODS:
        have, had = (
            {each.get("block", each.get("key")) for each in found if each["method"] == method}
            for found in ([*content["rows"], *content["measured"]] for content in (new, old))
        )
        if have and not had <= have:
            raise ValueError(
                f"`folder` must hold all of {experiment.name} that the summary has with {method}, because its "
                f"lines compare rows with each other, got nothing of {', '.join(sorted(had - have))}."
            )


def _places(experiment: Experiment) -> list[tuple[str, ...]]:
    return [
        (block.key, row.strategy.key, method, labels)
        for block in experiment.blocks
        for row in block.rows
        for method in METHODS
        for labels in LABELS
    ]


def _with_older(
    new: list[dict[str, Any]],
    old: list[dict[str, Any]],
    key: Callable[[dict[str, Any]], tuple[str, ...]],
    places: Sequence[tuple[str, ...]],
) -> list[dict[str, Any]]:
    """New entries and the old ones with other keys, in the order of the places."""
    found = {key(each): each for each in (*old, *new)}
    order = {place: number for number, place in enumerate(places)}
    return sorted(found.values(), key=lambda each: order.get(key(each), len(order)))


def _measured_key(entry: dict[str, Any]) -> tuple[str, ...]:
    return entry["key"], entry["method"]


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("block", "strategy", "method", "labels"))


def read_summary(experiment: Experiment, store: Path) -> Results:
    """The rows of a stored summary, or the lines of the table of a measurement, with the paper's of this code.

    Args:
        experiment: Which one.
        store: Folder with summaries.

    Raises:
        ValueError: No summary, one with rows of other settings than the experiment has now, or one that
            contradicts itself.
    """
    content = read_content(experiment, store)
    blocks = {block.key: block for block in experiment.blocks}
    attacks = []
    for raw in content["rows"]:
        block = blocks.get(raw["block"])
        rows = {row.strategy.key: row for row in block.rows} if block is not None else {}
        row = rows.get(raw["strategy"])
        if block is None or row is None or not _is_present(block, row, raw):
            raise ValueError(
                f"`{store}` must hold numbers of the present settings, got others for {raw['block']}, "
                f"{raw['strategy']} of {experiment.name}; run `saddlepoint reproduce` again."
            )
        attacks.append(_attacked(block, row, raw))
    lines = tuple(in_order(experiment, content["lines"])) if experiment.measurements else ()
    versions = sorted({each.get("saddlepoint", "") for each in content["versions"]})
    return Results(
        experiment,
        tuple(attacks),
        lines=lines,
        versions=tuple(versions),
        networks=content["networks"],
    )


def check_store(experiment: Experiment, store: Path) -> None:
    """Refuse a summary that `write_summary` could not add to, with a ValueError."""
    if (store / f"{experiment.name}.json").is_file():
        read_content(experiment, store)


def _row(item: Attacked, run: Run) -> dict[str, Any]:
    groups = isinstance(item.block.settings, UniversalSettings)
    raw: dict[str, Any] = {
        "block": item.block.key,
        "strategy": item.row.strategy.key,
        "method": item.source.method,
        "labels": item.source.labels,
        "limit": item.limit,
        "images": item.images,
        "rows": run.rows,
        "seed": item.seed,
        "rule": item.rule,
        "evaluations": item.evaluations,
        "asr_all": item.asr_all,
        "asr_all_interval": list(item.interval),
        "asr_avg": item.asr_mean,
        # The position of an image in its group means nothing.
        "accuracy": {} if groups else item.accuracy,
        "weights": {} if groups else item.weights,
    }
    if item.precision != "float32":
        raw["precision"] = item.precision
    if (verdicts := item.verdicts()) is not None:
        raw["verdicts"] = packed(verdicts, filled="before")
    if item.row.strategy.key == "minmax" and (settled := item.settles()) is not None:
        raw["settled"] = settled
    return {**raw, "settings": _settings(item.block, item.row, raw)}


def _path(item: Attacked) -> dict[str, Any]:
    """The mean weights of every step, which the figure of steps shows."""
    if item.row.strategy.key != "minmax" or (path := item.path()) is None:
        return {}
    return {"path": {n: [round(each, 4) for each in means] for n, means in path.items()}}


def _is_present(block: Block, row: Row, raw: dict[str, Any]) -> bool:
    """Whether a row was run with the present settings, and with the weight rule of its strategy."""
    if raw["method"] == "apgda" and raw["evaluations"] != block.settings.steps + 1:
        return False  # it takes all steps
    rule, said = row.strategy.rule, raw["rule"]
    fits = said.startswith("fixed:")
    if isinstance(rule, str):  # of `attack`, whose min-max has numbers of its own, by its settings
        fits = said == block.row_settings(row.strategy, rule, method=raw["method"]).rule
    elif isinstance(rule, Ordered):
        fits = sorted(said[6:].split(",")) == sorted(rule_words.fixed(rule.weights)[6:].split(","))
    return bool(fits and _settings(block, row, raw) == raw["settings"])


def _settings(block: Block, row: Row, raw: dict[str, Any]) -> str:
    """The settings behind a row, by what this code says of them."""
    given = {key: raw[key] for key in ("method", "labels", "limit", "seed")}
    given["precision"] = [raw.get("precision", "float32")]
    settings = block.row_settings(row.strategy, raw["rule"], **given)
    return hash_settings(describe(settings))[:16]


def _attacked(block: Block, row: Row, raw: dict[str, Any]) -> Attacked:
    verdicts = raw.get("verdicts")
    return Attacked(
        block=block,
        row=row,
        source=Source(raw["method"], raw["labels"]),
        images=raw["images"],
        seed=raw["seed"],
        domains=tuple(raw["accuracy"]),
        rule=raw["rule"],
        asr_all=raw["asr_all"],
        interval=tuple(raw["asr_all_interval"]),
        asr_mean=raw["asr_avg"],
        accuracy=raw["accuracy"],
        weights=raw["weights"],
        evaluations=raw["evaluations"],
        precision=raw.get("precision", "float32"),
        limit=raw["limit"],
        success=None if verdicts is None else unpacked(verdicts, raw["rows"], filled="before"),
        settled=raw.get("settled"),
        walked=raw.get("path"),
    )


def _unique(items: list[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return [item for number, item in enumerate(items) if item not in items[:number]]


def _text(content: dict[str, Any]) -> str:
    """JSON with one line per row, so that changes can be read."""
    parts = []
    for key, value in content.items():
        if isinstance(value, list | tuple) and value:
            inner = ",\n".join(f"    {json.dumps(item)}" for item in value)
            parts.append(f"  {json.dumps(key)}: [\n{inner}\n  ]")
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
