"""Steps of `attack` on the paper's networks A-D: what the min-max step, the bookkeeping and domains cost.

Times are those that the processor worked for this process, on one thread.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import saddlepoint as sp

from .timing import Figure, at_most, one_thread, ratios, seconds, unbounded

TINY = sp.linf(1e-4)  # fools nothing, so that every row takes every step
ROWS = 128


def figures() -> Iterator[Figure]:
    sp.keep_memory()
    with one_thread():
        x, y = sp.data.sample("mnist")
        for names, steps, rounds in (
            ("acd", 15, 9),
            ("b", 8, 5),
            ("c", 25, 11),
            ("d", 15, 9),
            ("a", 100, 11),
        ):
            yield from _overheads(names, x, y, steps, rounds)
        for letter in "DCA":
            yield from _memory(letter)


def _overheads(names: str, x: Tensor, y: Tensor, steps: int, rounds: int) -> Iterator[Figure]:
    """`attack` over average weights; a step of it, and all of it, over the passes that it makes.

    A step is the difference between so many of them and one more, and one: without the look before the first,
    the last evaluation and the verdict after it, which all of it includes. Bare is what torch does: the models
    in turn, the sum of their logits, and its gradient. Around the models a problem adds delta to the images,
    looks at what was returned, and a loss makes numbers of it: this share of a step is shown too.

    The process keeps its memory, as that of the command line does, see `sp.keep_memory`: else glibc returns
    pages at some steps and not at others, which decides how fast either side is.
    """
    models = [sp.models.load(f"mnist-{name}") for name in names]
    with torch.no_grad():
        right = torch.stack([model(x[:200]).argmax(dim=1) == y[:200] for model in models]).all(0)
    rows = right.nonzero().flatten()[:ROWS]
    problem = sp.Ensemble(models, x[rows], y[rows])
    shown = "{" + ", ".join(names.upper()) + "}"

    def attack(rule: sp.AbstractWeightRule, steps: int = steps) -> sp.AttackResult:
        options = {"steps": steps, "restarts": 1, "batch_size": ROWS}
        return sp.attack(problem, TINY, rule=rule, loss=sp.cw_margin, **options)

    passes = attack(sp.MinMax()).num_forwards
    if passes.unique().numel() > 1:
        raise RuntimeError(
            f"every row must take every step, got {passes.unique().tolist()} evaluations."
        )

    gradients, x = int(passes[0]) - 1, x[rows]

    def bare() -> None:
        delta = problem.zeros().requires_grad_()
        for _ in range(gradients):
            images = x + delta
            total = torch.stack([model(images).sum() for model in models]).sum()
            torch.autograd.grad(total, delta)

    def asked() -> None:
        delta = problem.zeros().requires_grad_()
        for _ in range(gradients):
            losses = sp.cw_margin(problem.logits(delta), problem.labels)
            torch.autograd.grad(losses.sum(), delta)

    def last() -> None:
        with torch.no_grad():
            for model in models:
                model(x)

    def minmax() -> None:
        attack(sp.MinMax())

    if len(names) > 1:
        over_average = ratios(minmax, lambda: attack(sp.Average()), rounds, time.process_time)
        yield at_most(f"attack on {shown}, min-max over average", over_average, 1.03)
    whole, step, own = _over_bare(
        (minmax, lambda: attack(sp.MinMax(), 1), lambda: attack(sp.MinMax(), steps + 1), asked),
        bare,
        last,
        rounds,
    )
    name = f"step of attack on {shown} over"
    yield at_most(f"{name} bare forward + backward", step, 1.05)
    yield unbounded(f"{name} the library's own forward, margin and backward", own)
    about = f"{steps} steps, the look before and the verdict after"
    yield unbounded(f"all of an attack on {shown}, {about}, over its bare passes", whole)
    if names == "a":
        short = ratios(lambda: _written_out(problem, steps), bare, rounds, time.process_time)
        yield unbounded(f"a short loop on {shown} over bare forward + backward", short)
        least = ratios(
            lambda: _least(models[0], x, y[rows], steps), bare, rounds, time.process_time
        )
        yield unbounded(f"the least loop on {shown} over bare forward + backward", least)


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
        name = f"{letter}, accumulated, {domains} domains over 2, 512 images, peak memory"
        yield at_most(name, over, 1.2)
