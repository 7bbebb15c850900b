"""Steps of `attack` on the paper's networks A-D: what the min-max step, the bookkeeping and domains cost.

In linf on MNIST, where a step is shortest, and in l2 and l1, whose projections and steps take more; for three
channels on CIFAR-10, where the passes are torch's own.

Times are those that the processor worked for this process, on one thread.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import saddlepoint as sp

from . import leaving
from .timing import Figure, at_most, one_thread, ratios, seconds, unbounded

ROWS = 128
_TINY, _CLEAR = 1e-4, 0.1  # radius and least margin: nothing is fooled, every row takes every step
_BALLS = {"linf": sp.linf(_TINY), "l2": sp.l2(_TINY), "l1": sp.l1(_TINY)}
_DATA = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True)
class Case:
    """Whose steps are measured, in which norm, and how many in how many rounds.

    Attributes:
        networks: Letters.
        wholly: Whether all of an attack is measured, too, and min-max beside the average.
    """

    data: str
    networks: str
    norm: str
    steps: int
    rounds: int
    wholly: bool = False

    @property
    def shown(self) -> str:
        return f"{_DATA[self.data]} {{{', '.join(self.networks.upper())}}}, {self.norm}"


CASES = (
    Case("mnist", "acd", "linf", 15, 9, wholly=True),
    Case("mnist", "b", "linf", 8, 5, wholly=True),
    Case("mnist", "c", "linf", 25, 11, wholly=True),
    Case("mnist", "d", "linf", 15, 9, wholly=True),
    Case("mnist", "a", "linf", 100, 11, wholly=True),
    *(
        Case("mnist", networks, norm, steps, 7)
        for norm in ("l2", "l1")
        for networks, steps in (("acd", 15), ("c", 25), ("d", 15), ("a", 100))
    ),
    Case("cifar10", "c", "linf", 25, 7),
    Case("cifar10", "c", "l1", 25, 7),
)


def figures() -> Iterator[Figure]:
    sp.keep_memory()
    with one_thread():
        for case in CASES:
            yield from _overheads(case)
        yield from _loops(CASES[4])
        yield from leaving.figures()
        for letter in "DCA":
            yield from _memory(letter)


class Setting:
    """The models and images of a case, and what is timed of them."""

    def __init__(self, case: Case) -> None:
        x, y = sp.data.sample(case.data)
        self.models = [sp.models.load(f"{case.data}-{name}") for name in case.networks]
        with torch.no_grad():
            logits = torch.stack([model(x[:200]) for model in self.models], dim=1)
        margins = sp.cw_margin(logits, y[:200, None].expand(-1, len(self.models)))
        rows = (margins > _CLEAR).all(dim=1).nonzero().flatten()[:ROWS]
        self.x, self.y = x[rows], y[rows]
        self.problem = sp.Ensemble(self.models, self.x, self.y)
        self.ball, self.steps = _BALLS[case.norm], case.steps
        passes = self.attack(sp.MinMax()).num_forwards
        if passes.unique().numel() > 1:
            raise RuntimeError(
                f"every row must take every step, got {passes.unique().tolist()} evaluations."
            )
        self.gradients = int(passes[0]) - 1

    def attack(self, rule: sp.AbstractWeightRule, steps: int | None = None) -> sp.AttackResult:
        options: dict[str, Any] = {"restarts": 1, "batch_size": ROWS, "loss": sp.cw_margin}
        steps = self.steps if steps is None else steps
        return sp.attack(self.problem, self.ball, rule=rule, steps=steps, **options)

    def bare(self) -> None:
        """What torch does: the models in turn, the sum of their logits, and its gradient."""
        delta = self.problem.zeros().requires_grad_()
        for _ in range(self.gradients):
            images = self.x + delta
            total = torch.stack([model(images).sum() for model in self.models]).sum()
            torch.autograd.grad(total, delta)

    def asked(self) -> None:
        """The same passes through the library: logits of the problem, and margins."""
        delta = self.problem.zeros().requires_grad_()
        for _ in range(self.gradients):
            losses = sp.cw_margin(self.problem.logits(delta), self.problem.labels)
            torch.autograd.grad(losses.sum(), delta)

    def last(self) -> None:
        """The forward pass that an attack makes after its last step."""
        with torch.no_grad():
            for model in self.models:
                model(self.x)


def _overheads(case: Case) -> Iterator[Figure]:
    """`attack` over average weights; a step of it, and all of it, over the passes that it makes.

    A step is the difference between so many of them and one more, and one: without the look before the first,
    the last evaluation and the verdict after it, which all of it includes. Bare is what torch does: the models
    in turn, the sum of their logits, and its gradient. Around the models a problem adds delta to the images,
    looks at what was returned, and a loss makes numbers of it: this share of a step is shown too.

    The process keeps its memory, as that of the command line does, see `sp.keep_memory`: else glibc returns
    pages at some steps and not at others, which decides how fast either side is.
    """
    setting, attack = Setting(case), f"attack on {case.shown},"
    minmax, average = (partial(setting.attack, rule) for rule in (sp.MinMax(), sp.Average()))
    if len(case.networks) > 1 and case.wholly:
        over_average = ratios(minmax, average, case.rounds, time.process_time)
        yield at_most(f"{attack} min-max over average", over_average, 1.03)
    whole, step, own = _over_bare(
        (minmax, partial(minmax, 1), partial(minmax, case.steps + 1), setting.asked),
        setting.bare,
        setting.last,
        case.rounds,
    )
    yield at_most(f"step of {attack} over bare forward + backward", step, 1.05)
    yield unbounded(f"step of {attack} over the library's own forward, margin and backward", own)
    if case.wholly:
        about = f"{case.steps} steps, the look before and the verdict after"
        yield unbounded(f"all of an {attack} {about}, over its bare passes", whole)


def _loops(case: Case) -> Iterator[Figure]:
    """What loops of fewer operations than `attack` take on one network, over bare passes."""
    setting = Setting(case)
    for name, loop in (
        ("a short", partial(_written_out, setting.problem, case.steps)),
        ("the least", partial(_least, setting.models[0], setting.x, setting.y, case.steps)),
    ):
        over = ratios(loop, setting.bare, case.rounds, time.process_time)
        yield unbounded(f"{name} loop on {case.shown}, over bare forward + backward", over)


def _over_bare(
    of_ours: tuple[Callable[[], object], ...],
    bare: Callable[[], object],
    last: Callable[[], object],
    rounds: int,
) -> tuple[list[float], list[float], list[float]]:
    """In each round: all of an attack over the passes it makes, and a step over bare passes and over our own.

    Args:
        of_ours: T steps, one, T + 1, and T forward and backward passes through the library.
        bare: T forward and backward passes, as the difference between T + 1 steps and one has.
        last: The forward pass that an attack makes after its last step.
        rounds: How many.
    """
    once, one, more, asked = of_ours
    whole, step, own = [], [], []
    for run in (once, asked, bare, last):
        run()
    for _ in range(rounds):
        order = (bare, asked, once, one, more, asked, bare)
        spent = [seconds(run, time.process_time) for run in order]
        passes, through = (spent[0] + spent[6]) / 2, (spent[1] + spent[5]) / 2
        whole.append(spent[2] / (passes + seconds(last, time.process_time)))
        step.append((spent[4] - spent[3]) / passes)
        own.append((spent[4] - spent[3]) / through)
    return whole, step, own


def _written_out(problem: sp.Ensemble, steps: int) -> Tensor:
    """A short attack on one model: signs, a projection, a verdict, the best iterate of a row.

    No check, no weights, no history, no row that leaves: what `attack` on a network as short as A is to be held
    against. It asks for logits and margins as `attack` does, through the library, which is not the least there
    could be.
    """
    low, high = problem.lower.clamp_min(-1e-4), problem.upper.clamp_max(1e-4)
    delta = best = problem.zeros()
    lowest = torch.full_like(problem.labels, math.inf, dtype=delta.dtype)
    for number in range(steps + 1):
        leaf = delta.detach().requires_grad_(number < steps)
        logits = problem.logits(leaf)
        losses = sp.cw_margin(logits, problem.labels)
        fooled = logits.detach().argmax(dim=-1) != problem.labels
        better = losses.detach() < lowest
        lowest = torch.where(better, losses.detach(), lowest)
        best = torch.where(better.reshape(-1, 1, 1, 1), delta, best)
        if number == steps or bool(fooled.all()):
            break
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        delta = torch.clamp(delta - 1e-4 * gradient.sign(), low, high)
    return best


def _least(model: sp.Model, x: Tensor, y: Tensor, steps: int) -> Tensor:
    """What no attack can do without, in as few operations of torch as there are: nothing of the library.

    The margin instead of the sum of the logits, its sign, a step, the box, and whether all rows are fooled; not
    even the best iterate is kept.
    """
    low, high, every = (-x).clamp_min(-1e-4), (1 - x).clamp_max(1e-4), torch.arange(len(x))
    own = torch.nn.functional.one_hot(y, 10).bool()
    delta = torch.zeros_like(x)
    for _ in range(steps):
        images = (x + delta).requires_grad_()
        logits = model(images)
        margins = logits[every, y] - logits.masked_fill(own, -math.inf).amax(dim=1)
        if bool((margins.detach() < 0).all()):
            break
        (gradient,) = torch.autograd.grad(margins.sum(), images)
        delta = torch.clamp(torch.add(delta, gradient.sign_(), alpha=-1e-4), low, high)
    return delta


_PEAK = """
import pathlib, sys, torch, saddlepoint as sp
torch.set_num_threads(1)
x, y = sp.data.sample("mnist")
model = sp.models.build(sys.argv[2], channels=1, size=28).eval()
problem = sp.Ensemble([model] * int(sys.argv[1]), x[:512], y[:512])
# The high-water mark of this process alone: getrusage would report that of the parent before exec.
pathlib.Path("/proc/self/clear_refs").write_text("5")
def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
before = peak()
sp.attack(problem, sp.LpBall(2, 1e-3), steps=2, batch_size=512, accumulate=True)
print(peak() - before)
"""


def _memory(letter: str) -> Iterator[Figure]:
    """Peak memory of `attack` with 4, 8 and 16 domains over that with 2, gradients accumulated.

    Each domain's gradient is kept until the weights are known, which follow from the losses of all domains: K
    tensors as large as delta beside the graph of one domain. With more than four domains fewer rows are taken
    at once.

    Fresh processes in turn, three of each: what the allocator happens to keep varies by a third.
    """

    def peak(domains: int) -> int:
        command = [sys.executable, "-c", _PEAK, str(domains), letter]
        return int(subprocess.run(command, capture_output=True, check=True).stdout)

    rounds = [{domains: peak(domains) for domains in (2, 4, 8, 16)} for _ in range(3)]
    for domains in (4, 8, 16):
        over = [peaks[domains] / peaks[2] for peaks in rounds]
        name = f"MNIST {letter}, l2, accumulated, {domains} domains over 2, 512 images, peak memory"
        yield at_most(name, over, 1.2)
