"""What might make the inner attack of a training find more: ``python -m benchmarks.defence.ideas``.

Networks trained against linf, l2 and l1 lose most to l1, for which the inner attack finds too little
(docs/training.md). Every idea changes one thing of that attack and is given to AMPGD, MAX, AVG and MSD alike,
as far as they can have it: MSD makes one perturbation of all threats, and only AMPGD has weights that move.
What it costs stands beside it. All else is as in the table `small` of the defences: 5,000 images, 6 epochs,
R = 15.
The judge is `quick`, on training images that no row has seen, because something is chosen by it. What is
measured is kept in `docs/results/defence-ideas.json`, from which the table in docs/training.md is written.

A step is put together here from what the library's steps are made of: every threat attacks for itself, and the
weights of AMPGD, which move in the last third of the steps there, move as often on the losses of what was
found. Directions of unit length do not depend on weights, so that this is nearly the same; the first row is to
be compared with the others, not with other tables.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saddlepoint as sp
from benchmarks.peers.page import table
from benchmarks.stores import StoreError, exit_with
from benchmarks.studies import Study
from saddlepoint.runs import texts
from saddlepoint.solver.schedule import SIZES, Schedule
from saddlepoint.training import recipe_for
from saddlepoint.training.ampgd import RULE, cross_entropy, perturb
from saddlepoint.training.attack_and_update import steepest_of_all

from . import page, unseen, work
from .plan import TABLES

LIKE = TABLES["small"]
METHODS = ("AMPGD", "MAX", "AVG", "MSD")
_APART = ("AMPGD", "MAX", "AVG")  # whose threats attack each for itself


@dataclass(frozen=True)
class Idea:
    """What is different from the attack as it is.

    Attributes:
        radii: Radii of training by threat, where they are not those that are tested.
        random: Whether the attack starts at random points.
        margin: Whether it climbs the margin, and not the cross-entropy.
        sizes: Whether it starts l1 in balls of all three sizes at once and takes the worst for each image.
        shares: Steps of each threat, as shares of R.
        early: Whether the weights of AMPGD move from the first step on, and not in the last third.
        methods: That can have it.
    """

    radii: tuple[tuple[str, float], ...] = ()
    random: bool = False
    margin: bool = False
    sizes: bool = False
    shares: tuple[tuple[str, float], ...] = ()
    early: bool = False
    methods: tuple[str, ...] = METHODS

    @property
    def cost(self) -> float:
        """Gradients of an image and step, over those of the attack as it is."""
        shares = {"linf": 1.0, "l2": 1.0, "l1": 1.0, **dict(self.shares)}
        shares["l1"] *= SIZES if self.sizes else 1
        return sum(shares.values()) / 3


IDEAS = {
    "as it is": Idea(),
    "l1 radius 12": Idea(radii=(("l1", 12.0),)),
    "random starts": Idea(random=True),
    "margin in the attack": Idea(margin=True),
    "l1 from balls of three sizes at once": Idea(sizes=True, methods=_APART),
    "the same, each with a third of the steps": Idea(
        sizes=True, shares=(("l1", 1 / 3),), methods=_APART
    ),
    "half the steps for linf, half more for l1": Idea(
        shares=(("linf", 0.5), ("l1", 1.5)), methods=_APART
    ),
    "weights that move from the first step": Idea(early=True, methods=("AMPGD",)),
}


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """How far another class is ahead, (N,); large = hard."""
    return -sp.cw_margin(logits.unsqueeze(1), labels.unsqueeze(1), kappa=torch.inf).squeeze(1)


def attacked(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, sp.Threat],
    idea: Idea,
    steps: int,
    iteration: int,
    seed: int = 0,
) -> Tensor:
    """What each threat found for itself, (K, B, ...); MSD has another. `seed` is that of random starts."""
    loss = margin if idea.margin else cross_entropy
    shares, found = dict(idea.shares), []
    for number, (name, threat) in enumerate(threats.items()):
        start = sp.RandomStart(_seed(seed, iteration, number)) if idea.random else None
        sizes = range(SIZES) if idea.sizes and name == "l1" else (iteration,)
        count = round(shares.get(name, 1.0) * steps)
        options: dict[str, Any] = {"steps": count, "start": start, "loss": loss}
        each = torch.stack(
            [perturb(model, x, y, {name: threat}, iteration=i, **options)[:, 0] for i in sizes]
        )
        found.append(_worst(model, x, y, each))
    return torch.stack(found)


def attacked_as_one(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threats: Mapping[str, sp.Threat],
    idea: Idea,
    steps: int,
    iteration: int,
    seed: int = 0,
) -> Tensor:
    """What MSD found, (1, B, ...), with the same arguments."""
    start = sp.RandomStart(_seed(seed, iteration)) if idea.random else None
    plan = Schedule(steps, restart=iteration + 1)  # as `msd_step`
    loss = margin if idea.margin else cross_entropy
    given = tuple(threats.values())
    return steepest_of_all(model, x, y, given, plan, start, loss).chosen.unsqueeze(0)


def _seed(*numbers: int) -> int:
    """One number for several."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:6])


def _worst(model: nn.Module, x: Tensor, y: Tensor, proposals: Tensor) -> Tensor:
    """Of proposals (N, B, ...) the one with the largest loss for every image, (B, ...)."""
    if len(proposals) == 1:
        return proposals[0]
    with torch.no_grad():
        best = _losses(model, x, y, proposals).argmax(dim=0)
    return proposals[best, torch.arange(len(x))]


def _losses(model: nn.Module, x: Tensor, y: Tensor, delta: Tensor) -> Tensor:
    """Cross-entropies, (K, B), of images moved by delta, (K, B, ...)."""
    logits = model((x + delta).flatten(0, 1))
    return cross_entropy(logits, y.repeat(len(delta))).reshape(len(delta), len(x))


def weighed(method: str, losses: Tensor, moves: int) -> Tensor:
    """Weights, (K, B), of losses (K, B); those of the only loss are one.

    Example:
        >>> weighed("MAX", torch.tensor([[1.0, 2.0], [3.0, 0.0]]), 5)
        tensor([[0., 1.],
                [1., 0.]])
    """
    rows = losses.T
    if method == "MAX":
        return sp.WorstCase().init(rows).T
    weights = RULE.init(rows)
    for _ in range(moves if method == "AMPGD" else 0):
        weights = RULE.update(weights, rows)
    return weights.T


def trained(method: str, idea: Idea, seed: int) -> nn.Module:
    """A network after the schedule of the table, with the parameters of its best epoch."""
    first = next(LIKE.trainings()).settings
    threats = {n: replace(t) for n, t in texts.threats(first.threat).items()}
    for name, eps in idea.radii:
        threats[name] = replace(threats[name], ball=replace(threats[name].ball, eps=eps))
    x, y = sp.data.load(first.data, "train", first.limit)
    split = len(x) - (first.held_out or 0)
    recipe = recipe_for(first.recipe, first.data, first.model, adversarial=True)
    torch.manual_seed(seed)
    model = sp.models.build(first.model, channels=1, size=28)
    loader = sp.Batches(x[:split], y[:split], recipe.batch_size)
    rise = (first.ramp or 0.0) * len(loader)

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, number: int
    ) -> Mapping[str, float]:
        factor = min(1.0, (number + 1) / rise)
        now = {name: threat.scaled(factor) for name, threat in threats.items()}
        attack = attacked_as_one if method == "MSD" else attacked
        delta = attack(model, x, y, now, idea, first.steps, number, seed)
        losses = _losses(model, x, y, delta)
        moves = first.steps if idea.early else first.steps // 3
        weights = weighed(method, losses.detach(), moves)
        loss = (weights * losses).sum(dim=0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.item()}

    validation = x[split:], y[split:]
    tested = texts.threats(first.threat)
    options: dict[str, Any] = {"epochs": first.epochs, "validation": validation, "seed": seed}
    sp.train(model, loader, tested, method=step, recipe=recipe, **options)
    return model.eval()


def judged(model: nn.Module, images: int) -> dict[str, Any]:
    """What the store keeps of a network: who was right on unseen images, and the clean accuracy."""
    settings = next(LIKE.trainings()).settings
    x, y = unseen.images_behind(settings, images)
    balls = {name: each.ball for name, each in texts.threats(settings.threat).items()}
    found = work.kept(sp.robust_accuracy(model, x, y, balls, "quick"))
    x, y = sp.data.load(settings.data, "test")
    with torch.no_grad():
        right = torch.cat([model(part).argmax(dim=1) for part in x.split(500)]) == y
    return {"accuracy": 100 * right.double().mean().item(), "suites": {unseen.SUITE: found}}


def _plain(idea: Idea) -> dict[str, Any]:
    """An idea as JSON gives it back."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(idea)))
    return found


def measure(content: dict[str, Any], keep: Callable[[str], None]) -> None:
    """Train and judge the networks that are not there yet, seed by seed and method by method."""
    given, found = content["settings"], content.setdefault("networks", {})
    for seed in range(given["seeds"]):
        for method in METHODS:
            for name, idea in IDEAS.items():
                if method not in idea.methods:
                    continue
                key = f"{name}/{method}/{seed}"
                if key in found and found[key]["idea"] != _plain(idea):
                    raise StoreError(
                        f"`--store` must hold {name} as it is now, got {found[key]['idea']}."
                    )
                if key in found:
                    continue
                began = time.process_time()
                model = trained(method, idea, seed)
                spent = round(time.process_time() - began, 1)
                found[key] = {
                    "idea": _plain(idea),
                    "seconds": spent,
                    **judged(model, given["images"]),
                }
                keep(f"{key}: {spent} s")


def _lines(content: Mapping[str, Any]) -> Iterator[tuple[str, page.Line]]:
    """Ideas of every method, and what was found."""
    images = content["settings"]["images"]
    for name in IDEAS:
        for method in METHODS:
            seeds = [
                (int(key.rpartition("/")[2]), network)
                for key, network in content["networks"].items()
                if key.startswith(f"{name}/{method}/")
            ]
            if seeds:
                yield name, page.line_of(method, seeds, unseen.SUITE, images)


def render(content: Mapping[str, Any]) -> str:
    """The table of the ideas in Markdown; what each brings is the difference to the attack as it is."""
    every = list(_lines(content))
    plain = {line.row: line for name, line in every if name == "as it is"}
    head = ["Idea", "gradients", "method", "seeds", "clean", "linf", "l2", "l1", "**union**"]
    rows = []
    for name, line in every:
        cells = [name, f"{IDEAS[name].cost:.2f}", line.row, str(len(line.seeds))]
        cells.append(f"{sum(line.clean) / len(line.clean):.1f}")
        cells += [f"{line.share(threat):.1f}" for threat in ("linf", "l2", "l1")]
        first = plain.get(line.row, line)
        rows.append([*cells, page.union_of(line), page.difference(line, first)])
    said = (
        f"`quick` on {content['settings']['images']} training images that no row has seen; means over the "
        "seeds, the smallest and largest union in brackets. Gradients are those of the attack over those of "
        "the first rows. The last column is the union minus that of the same method as it is, image by image, "
        "with a 95 % interval over images; what another seed would change is not in it.\n"
    )
    return f"{table([*head, 'what it brings'], rows)}\n{said}"


STUDY = Study(
    name="defence.ideas",
    about=__doc__,
    store=Path("docs/results/defence-ideas.json"),
    key="networks",
    page=Path("docs/training.md"),
    mark="<!-- ideas -->",
    settings={"seeds": 2, "images": 500},
    measure=measure,
    render=render,
)

if __name__ == "__main__":
    exit_with(lambda: STUDY.main(sys.argv[1:]))
