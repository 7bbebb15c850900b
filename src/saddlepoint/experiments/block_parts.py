"""What the blocks of experiments are run on: networks with parameters, images, names of domains, settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from saddlepoint import models
from saddlepoint.experiments.plan import Block, Experiment
from saddlepoint.models.paper_networks import PAPER_NETWORKS, check_name
from saddlepoint.problems import AbstractProblem
from saddlepoint.runs import build, hash_model, texts
from saddlepoint.runs.materials import Images
from saddlepoint.runs.materials import load_images as named_images
from saddlepoint.runs.settings import AttackSettings, TransformSettings, UniversalSettings

__all__ = [
    "FULL",
    "available",
    "build_problem",
    "check_stored",
    "describe",
    "domain_names",
    "explain_missing",
    "gradient_count",
    "load_images",
    "load_network",
    "missing",
    "own_networks",
    "skipped",
]

# What the hashes in stored summaries are made of: a new setting must not change them.
_VARIED = (
    {"kind", "data", "models", "norm", "eps", "rule", "baseline", "loss", "labels", "steps"}
    | {"method", "restarts", "step_size", "split", "limit", "seed"}
    | {"group_size", "by_class", "box", "transforms", "samples"}
)

FULL = 10_000
"""Images of the whole test set."""

_SHOWN = 5  # names of files in a complaint
_EMBEDDED = {"mnist": 1000, "cifar10": 200}


def available(name: str, parameters: Path | None = None) -> bool:
    """Whether a network has parameters: in the folder given, or in the package.

    Example:
        >>> available("mnist-a"), available("mnist-z")
        (True, False)
    """
    return _own_file(name, parameters) is not None or name in models.shipped()


def missing(networks: Sequence[str], parameters: Path | None = None) -> tuple[str, ...]:
    """The networks without parameters, in order.

    Example:
        >>> missing(["mnist-a", "mnist-z"])
        ('mnist-z',)
    """
    return tuple(dict.fromkeys(name for name in networks if not available(name, parameters)))


def skipped(experiment: Experiment, parameters: Path | None = None) -> dict[str, str]:
    """Blocks that cannot run, by key, and why.

    Example:
        >>> from saddlepoint.experiments import find
        >>> sorted(skipped(find("steps-mnist")))
        []
    """
    reasons = {}
    for block in experiment.every_block:
        if names := missing(block.networks, parameters):
            reasons[block.key] = explain_missing(names)
    return reasons


def own_networks(experiments: Sequence[Experiment], parameters: Path) -> tuple[str, ...]:
    """The networks of experiments that are in a folder, which go before shipped ones, in order.

    Args:
        experiments: Those that are run.
        parameters: The folder.

    Raises:
        ValueError: It has none of them, so that others would be attacked than are meant, or the card of one
            says that it is another.
    """
    blocks = [block for experiment in experiments for block in experiment.every_block]
    names = tuple(dict.fromkeys(name for block in blocks for name in block.networks))
    files = {name: _own_file(name, parameters) for name in names}
    if own := {name: file for name, file in files.items() if file is not None}:
        for name, file in own.items():
            _check_card(name, file)
        return tuple(own)
    there = sorted(path.name for path in parameters.iterdir())
    more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
    has = f"has {', '.join(there[:_SHOWN])}{more}" if there else "is empty"
    raise ValueError(
        "`parameters` must be a folder with NAME.safetensors and NAME.json of a network that is attacked, NAME "
        f"being one of {', '.join(names)}, such as {names[0]}.safetensors and {names[0]}.json, got "
        f"`{parameters}`, which {has}; copy model.safetensors and model.json of a training under such names."
    )


def explain_missing(names: Sequence[str]) -> str:
    """What to say, and to do, about networks without parameters.

    Example:
        >>> explain_missing(["cifar10-e"]).split(":")[0]
        'no parameters for cifar10-e'
    """
    first = names[0]
    family, letter = first.rsplit("-", 1)
    recipe = "_unshifted --recipe paper" if family.endswith("-paper") else ""
    return (
        f"no parameters for {', '.join(names)}: train them, such as `saddlepoint train --data "
        f"{family.removesuffix('-paper')} --model {letter.upper()}{recipe} --out DIR`, copy model.safetensors "
        f"and model.json into a folder as {first}.safetensors and {first}.json, and name the folder with "
        "--parameters"
    )


def load_network(name: str, parameters: Path | None = None) -> nn.Module:
    """A network in evaluation mode.

    Args:
        name: Such as "mnist-b".
        parameters: Folder with NAME.safetensors, which goes before the shipped ones; NAME.json beside it, the
            card, is checked where there is one. Without it the architecture is that of the name.

    Raises:
        ValueError: No parameters, damaged ones, or those of another architecture or data by their card.

    Example:
        >>> load_network("mnist-a").training
        False
    """
    own = _own_file(name, parameters)
    if own is None and name not in models.shipped():
        raise ValueError(f"`networks` must have parameters; {explain_missing([name])}.")
    if own is None:
        return models.channels_last(models.load(name))
    _check_card(name, own)
    meant = None if own.with_suffix(".json").is_file() else PAPER_NETWORKS.get(name)
    return models.channels_last(models.load(own, architecture=meant and meant.architecture))


def _check_card(name: str, own: Path) -> None:
    """Refuse a network of the paper whose card, beside its file, says that it is another one."""
    file = own.with_suffix(".json")
    if file.is_file():
        text = file.read_text(encoding="utf-8", errors="replace")
        check_name(name, models.Card.from_json(text, str(file)), file, "parameters")


def check_stored(
    stored: Mapping[str, str], ours: Mapping[str, str], name: str, parameters: Path | None = None
) -> None:
    """Refuse a summary that is of another network than the one of the same name that is to be added to it.

    Args:
        stored: Hashes of the networks by name, as the summary has them: of shipped ones that of their file.
        ours: Hashes by name of the networks behind the results that are to be added, as runs have them; an
            empty one is that of the network that is about to be attacked.
        name: Of the experiment.
        parameters: As in `load_network`.
    """
    for network in (each for each in ours if each in stored):
        found = ours[network]
        if not found and _own_file(network, parameters) is not None:
            found = hash_model(load_network(network, parameters)) or ""
        if network in models.shipped() and found in ("", hash_model(load_network(network))):
            found = models.card(network).sha256
        if found != stored[network]:
            raise ValueError(
                f"`store` must hold a summary of the same networks, got another {network} in the one of {name}"
                "; move that file away, or name another folder."
            )


def load_images(
    name: str, limit: int, progress: Callable[[str, int, int], None] | None = None
) -> Images:
    """The first `limit` test images, from the embedded sample where it has enough.

    Args:
        name: "mnist" or "cifar10".
        limit: How many.
        progress: Of downloads.

    Example:
        >>> load_images("cifar10", 3).x.shape
        torch.Size([3, 3, 32, 32])
    """
    there = f"{name}-sample" if limit <= _EMBEDDED[name] else name
    # No split: all of a sample, which are the first test images, not a fifth of them.
    return named_images(there, None, limit, progress)


def build_problem(
    block: Block, settings: AttackSettings, images: Images, networks: Sequence[nn.Module]
) -> AbstractProblem:
    """The problem of a row of a block, with the paper's names of networks and transformations.

    Args:
        block: Whose networks and transformations they are.
        settings: Of the row.
        images: What is attacked.
        networks: As the block names them.

    Example:
        >>> from saddlepoint.experiments import find
        >>> block = find("universal-mnist").blocks[0]
        >>> images, network = load_images("mnist", 7), load_network("mnist-a")
        >>> build_problem(block, block.settings, images, [network]).labels.shape
        torch.Size([3, 2])
    """
    named = dict(zip(block.letters, networks, strict=True))
    return build.problem_of(settings, images.x, images.y, named, domain_names(block))


def describe(settings: AttackSettings) -> dict[str, Any]:
    """The settings of a row that experiments vary, for its record and for summaries."""
    values = settings.model_dump(include=_VARIED) | {"split": "test"}
    if settings.precision != ["float32"]:
        values["precision"] = settings.precision
    if settings.norm == "l0":
        # Whole numbers, of which the hashes in stored summaries are made.
        values |= {n: int(values[n]) for n in ("eps", "step_size") if values[n] is not None}
    return values


def domain_names(block: Block) -> tuple[str, ...]:
    """Names of the domains, for tables; empty where they are the images of a group."""
    if isinstance(block.settings, UniversalSettings):
        return ()
    if isinstance(block.settings, TransformSettings):
        return tuple(each.name for each in texts.transforms(block.settings.transforms))
    return block.letters


def gradient_count(block: Block) -> float:
    """Evaluations of a network per image and row of a table, at most: steps + 1 for every domain.

    Example:
        >>> from saddlepoint.experiments import find
        >>> gradient_count(find("universal-mnist").blocks[0]), gradient_count(find("transform").blocks[0])
        (21.0, 126.0)
    """
    views = len(domain_names(block)) if isinstance(block.settings, TransformSettings) else 1
    return float((block.settings.steps + 1) * views)


def _own_file(name: str, parameters: Path | None) -> Path | None:
    file = None if parameters is None else parameters / f"{name}.safetensors"
    return file if file is not None and file.is_file() else None
