"""What the loss and the start of the authors' code do to Table 3: ``python -m benchmarks.authors_protocol``.

Their code attacks what each network predicts, computes the C&W loss with a logit of the wrong classes that is
always 0, so that it pushes the predicted class down and nothing up, and starts at N(0, 0.1). The paper's text
has the margin to the best wrong class and names no start. Networks A to D of CIFAR-10 are attacked by `apgda`
with the paper's step sizes in the four balls of Table 3, with one of both, with both, and with neither; success
is counted against the true class. What is measured is kept in `docs/results/authors-protocol.json`, from which
the table in docs/RESULTS.md is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import saddlepoint as sp
from saddlepoint.experiments import find
from saddlepoint.runs import build, rule_words
from saddlepoint.runs.settings import AttackSettings

from .peers.page import table
from .stores import exit_with
from .studies import Study

EXPERIMENT = "ensemble-cifar10"
KAPPA, SPREAD = 50.0, 0.1


def zero_logit_margin(logits: Tensor, labels: Tensor, *, targeted: bool = False) -> Tensor:
    """The authors' C&W loss as it runs: max(z_y - 0 + kappa, 0), whatever the other logits are.

    Example:
        >>> zero_logit_margin(torch.tensor([[1.0, 3.0]]), torch.tensor([0]))
        tensor([51.])
    """
    if targeted:
        raise ValueError("`targeted` must be False: the authors attack the predicted class.")
    chosen = logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return (chosen + KAPPA).clamp(min=0)


@dataclass(frozen=True)
class Variant:
    """What is taken from the authors' code besides predicted labels."""

    loss: bool = False
    start: bool = False


VARIANTS = {
    "the paper's text": Variant(),
    "start at N(0, 0.1)": Variant(start=True),
    "the loss of the code": Variant(loss=True),
    "both": Variant(loss=True, start=True),
}


def render(content: Mapping[str, Any]) -> str:
    """The table, the paper's lines first, in Markdown."""
    blocks = find(EXPERIMENT).blocks
    lines = [["the paper's", *_printed()]]
    for name, rates in content["rates"].items():
        found = [rates[block.key] for block in blocks if block.key in rates]
        if not all(0 <= each[key] <= 100 for each in found for key in ("avg", "minmax")):
            raise ValueError(f"rates must be percentages, got {rates}")
        if len(found) < len(blocks):
            continue  # stopped inside this variant
        cells = [f"{each['avg']:.1f} -> {each['minmax']:.1f}" for each in found]
        mean = [sum(each[key] for each in found) / len(found) for key in ("avg", "minmax")]
        lines.append([name, *cells, f"{mean[0]:.1f} -> {mean[1]:.1f}"])
    given = content["settings"]
    said = (
        f"ASR_all of the average and of min-max, `apgda`, predicted labels, the first {given['images']} test "
        f"images, seed {given['seed']}; networks computed in {given['precision']}, verdicts are in float32.\n"
    )
    return f"{table(['Taken from the code', *(b.label for b in blocks), 'mean'], lines)}\n{said}"


def _printed() -> list[str]:
    pairs = [tuple(row.paper.asr_all or 0.0 for row in b.rows) for b in find(EXPERIMENT).blocks]
    means = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)]
    return [f"{a:.1f} -> {b:.1f}" for a, b in [*pairs, (means[0], means[1])]]


def measure(content: dict[str, Any], keep: Callable[[str], None]) -> None:
    """Attack what was not attacked yet, ball by ball."""
    given = content["settings"]
    x, y = sp.data.load("cifar10", split="test", limit=given["images"])
    blocks = find(EXPERIMENT).blocks
    models = [sp.models.load(name) for name in blocks[0].networks]
    problem = sp.Ensemble(models, x, y, labels="predicted")
    for name, variant in VARIANTS.items():
        for block in blocks:
            found = content.setdefault("rates", {}).setdefault(name, {})
            if block.key in found:
                continue
            found[block.key] = {
                row.strategy.key: rate(problem, block.settings, row.strategy.rule, variant, given)
                for row in block.rows
            }
            keep(f"{name}, {block.label}: {found[block.key]}")


def rate(
    problem: sp.Ensemble,
    settings: AttackSettings,
    rule: str,
    variant: Variant,
    given: Mapping[str, Any],
) -> float:
    """ASR_all of one attack, in percent."""
    start = None
    if variant.start:
        random = torch.Generator().manual_seed(given["seed"])
        start = SPREAD * torch.randn(problem.zeros().shape, generator=random)
    result = sp.apgda(
        problem,
        build.ball_of(settings),
        rule=rule_words.rule(rule),
        loss=zero_logit_margin if variant.loss else sp.cw_margin,
        steps=settings.steps,
        step_size=settings.step_size,
        start=start,
        batch_size=settings.batch_size,
        precision=given["precision"],
    )
    return 100 * sp.success_rates(problem, result.delta).all


STUDY = Study(
    name="authors_protocol",
    about=__doc__,
    store=Path("docs/results/authors-protocol.json"),
    key="rates",
    page=Path("docs/RESULTS.md"),
    mark="<!-- authors' protocol -->",
    settings={"images": 1000, "seed": 0, "precision": "bfloat16+channels_last"},
    measure=measure,
    render=render,
)

if __name__ == "__main__":
    exit_with(lambda: STUDY.main(sys.argv[1:]))
