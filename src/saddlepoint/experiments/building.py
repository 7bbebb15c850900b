"""From the words of a block to objects: networks, images, problems, settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saddlepoint import data, models, transforms
from saddlepoint.experiments.plan import (
    DESCENTS,
    Block,
    Groups,
    Labels,
    Models,
    Strategy,
    norm_name,
)
from saddlepoint.losses import Loss, clipped, cw_margin
from saddlepoint.problems import AbstractProblem, Ensemble, Transformed, Universal
from saddlepoint.rules import AbstractWeightRule, Average, Fixed, MinMax
from saddlepoint.transforms import Transform

__all__ = [
    "CLASSES",
    "FULL",
    "available",
    "build_problem",
    "describe",
    "domain_names",
    "explain_missing",
    "gradient_count",
    "load_images",
    "load_network",
    "loss_of",
    "missing",
    "rule_text",
]

FULL = 10_000
"""Images of the whole test set."""

_EMBEDDED = {"mnist": 1000, "cifar10": 200}
_CIFAR10 = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
CLASSES = {"mnist": tuple("0123456789"), "cifar10": tuple(_CIFAR10.split(","))}
"""Names of the classes."""


def available(name: str, weights: Path | None = None) -> bool:
    """Whether a network has weights: in the folder given, or in the package.

    Example:
        >>> available("mnist-a"), available("mnist-z")
        (True, False)
    """
    return _own_file(name, weights) is not None or name in models.shipped()


def missing(networks: Sequence[str], weights: Path | None = None) -> tuple[str, ...]:
    """The networks without weights, in order.

    Example:
        >>> missing(["mnist-a", "mnist-z"])
        ('mnist-z',)
    """
    return tuple(dict.fromkeys(name for name in networks if not available(name, weights)))


def explain_missing(names: Sequence[str]) -> str:
    """What to say, and to do, about networks without weights.

    Example:
        >>> explain_missing(["cifar10-e"]).split(":")[0]
        'no weights for cifar10-e'
    """
    first = names[0]
    family, letter = first.rsplit("-", 1)
    return (
        f"no weights for {', '.join(names)}: train them, such as `saddlepoint train --data {family} --model "
        f"{letter.upper()} --out DIR`, copy model.safetensors and model.json into a folder as "
        f"{first}.safetensors and {first}.json, and name the folder with --weights"
    )


def load_network(name: str, weights: Path | None = None) -> nn.Module:
    """A network in evaluation mode.

    Args:
        name: Such as "mnist-b".
        weights: Folder with NAME.safetensors, which goes before the shipped ones; NAME.json beside it, the
            card, is checked where there is one.

    Raises:
        ValueError: No weights, or damaged ones.

    Example:
        >>> load_network("mnist-a").training
        False
    """
    own = _own_file(name, weights)
    if own is None and name not in models.shipped():
        raise ValueError(f"`networks` must have weights; {explain_missing([name])}.")
    letter = name.rsplit("-", 1)[1].upper()
    network = models.load(name) if own is None else models.load(own, architecture=letter)
    # Saves 10 to 25 % of the time of convolutions on a CPU.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def load_images(
    name: str, limit: int, progress: Callable[[str, int, int], None] | None = None
) -> tuple[Tensor, Tensor]:
    """The first `limit` test images, from the embedded sample where it has enough.

    Args:
        name: "mnist" or "cifar10".
        limit: How many.
        progress: Of downloads.

    Returns:
        Images (N, C, H, W), float32 in [0, 1], and labels (N,).

    Example:
        >>> load_images("cifar10", 3)[0].shape
        torch.Size([3, 3, 32, 32])
    """
    if limit <= _EMBEDDED[name]:
        return data.sample(name, limit)
    return data.load(name, "test", limit, progress=progress)


def build_problem(
    block: Block,
    x: Tensor,
    y: Tensor,
    networks: Sequence[nn.Module],
    seed: int = 0,
    labels: Labels = "true",
) -> AbstractProblem:
    """The problem of a block on some images.

    Args:
        block: The setting.
        x: Images, (N, C, H, W).
        y: Labels, (N,).
        networks: As the block names them.
        seed: Of groups and random transformations.
        labels: The class that is attacked: the true one, or what each domain says of the image.

    Example:
        >>> from saddlepoint.experiments import find
        >>> block = find("universal-mnist").blocks[0]
        >>> x, y = load_images("mnist", 7)
        >>> build_problem(block, x, y, [load_network("mnist-a")]).labels.shape
        torch.Size([3, 2])
    """
    domains = block.domains
    if isinstance(domains, Models):
        return Ensemble(networks, x, y, names=domains.networks, labels=labels)
    if isinstance(domains, Groups):
        groups, truth = data.group(x, y, domains.size, seed=seed, by_class=domains.by_class)
        return Universal(networks[0], groups, truth, box=domains.box, labels=labels)
    return Transformed(networks[0], _family(domains.family), x, y, seed=seed, labels=labels)


def loss_of(strategy: Strategy) -> Loss:
    """The Carlini-Wagner margin with kappa = 50, clipped where the strategy says so.

    Example:
        >>> from saddlepoint.experiments.plan import AVERAGE
        >>> loss_of(AVERAGE).__name__
        'cw_margin'
    """
    return cw_margin if strategy.clip is None else clipped(cw_margin, strategy.clip)


def describe(
    block: Block,
    strategy: Strategy,
    rule: str,
    *,
    method: str,
    labels: str,
    limit: int,
    seed: int,
) -> dict[str, Any]:
    """All settings of a row under the names that `saddlepoint attack` uses; `rule` is from `rule_text`."""
    domains = block.domains
    config: dict[str, Any] = {
        "kind": domains.kind,
        "data": block.data,
        "models": list(block.networks),
        "norm": norm_name(block.ball.p),
        "eps": block.ball.eps,
        "rule": rule,
        "baseline": None,
        "loss": "cw" if strategy.clip is None else f"clipped:{strategy.clip:g}",
        "steps": block.steps,
        "method": "apgda" if method == "apgda" else "attack",
        "restarts": DESCENTS.get(method, 1),
        "labels": labels,
        "step_size": block.step_size if method == "apgda" else None,
        "split": "test",
        "limit": limit,
        "seed": seed,
    }
    if isinstance(domains, Groups):
        config |= {"group_size": domains.size, "by_class": domains.by_class, "box": domains.box}
    elif not isinstance(domains, Models):
        config |= {"transforms": [domains.family], "samples": 1}
    return config


def rule_text(rule: AbstractWeightRule) -> str:
    """A rule as `saddlepoint attack --rule` takes it.

    Example:
        >>> rule_text(MinMax(step_size=0.02, gamma=3))
        'minmax:gamma=3,step_size=0.02'
    """
    if isinstance(rule, MinMax):
        return f"minmax:gamma={rule.gamma:g},step_size={rule.step_size:g}"
    if isinstance(rule, Fixed):
        return "fixed:" + ",".join(f"{weight:.6g}" for weight in rule.weights)
    if isinstance(rule, Average):
        return "average"
    raise TypeError(f"`rule` must be MinMax, Fixed or Average, got {type(rule).__name__}.")


def domain_names(block: Block) -> tuple[str, ...]:
    """Names of the domains, for tables; empty where they are the images of a group."""
    domains = block.domains
    if isinstance(domains, Models):
        return domains.networks
    if isinstance(domains, Groups):
        return ()
    return tuple(transform.name for transform in _family(domains.family))


def gradient_count(block: Block) -> float:
    """Evaluations of a network per image and row of a table, at most: steps + 1 for every domain.

    Example:
        >>> from saddlepoint.experiments import find
        >>> gradient_count(find("universal-mnist").blocks[0]), gradient_count(find("transform").blocks[0])
        (21.0, 126.0)
    """
    per_image = 1 if isinstance(block.domains, Models | Groups) else len(domain_names(block))
    return float((block.steps + 1) * per_image)


def _family(name: str) -> list[Transform]:
    if name == "paper-random":
        return transforms.paper_random_family()
    return transforms.paper_family(rotation=name == "paper+rotation")


def _own_file(name: str, weights: Path | None) -> Path | None:
    file = None if weights is None else weights / f"{name}.safetensors"
    return file if file is not None and file.is_file() else None
