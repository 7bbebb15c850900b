"""What models are to compute in during an attack, measured where that is left open."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from saddlepoint.calls import dtypes_of, full_precision, home, modules_behind
from saddlepoint.precision import Precision, Precisions, check_precision, is_native
from saddlepoint.problems import AbstractProblem
from saddlepoint.solver.evaluate import gradients_enabled

__all__ = ["choose_precisions"]

_ROWS = 32  # that are measured; weights are converted once per batch, so that few rows would look too slow
_ROUNDS = 3
_GAIN = 1.1  # what bfloat16 has to bring to be worth the rounding


def choose_precisions(
    problem: AbstractProblem, precision: Precision | Sequence[Precision]
) -> Precisions:
    """What each model of a problem will compute in; "auto" is decided here, once, by a short measurement.

    Args:
        problem: Its first rows are measured, forward and backward, in both ways by turns.
        precision: A word for all models, or one for each.

    Raises:
        ValueError: An unknown word, or fewer bits for images or parameters of float64.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> problem = Ensemble([torch.nn.Linear(4, 3).eval()], torch.rand(5, 4), torch.zeros(5).long())
        >>> choose_precisions(problem, "bfloat16").names, choose_precisions(problem, "auto").names
        (('bfloat16',), ('float32',))
    """
    words = check_precision(precision, len(problem.models))
    names = []
    for index, (model, word) in enumerate(zip(problem.models, words, strict=True)):
        wide = torch.float64 in {problem.lower.dtype, *dtypes_of(modules_behind(model))}
        if wide and word in ("bfloat16", "float16"):
            raise ValueError(
                f"`precision` must be float32 or auto for images or parameters of float64, which compute in "
                f'float64, got {word!r}; write x.float() and model.float(), or precision="float32".'
            )
        if word == "auto":
            word = "bfloat16" if not wide and _pays(problem, index) else "float32"
        names.append(word)
    return Precisions(tuple(problem.models), tuple(names))


def _pays(problem: AbstractProblem, index: int) -> bool:
    """Whether a model is faster in bfloat16, where its device has it."""
    domains = [k for k in range(problem.num_domains) if problem.model_of(k) == index]
    model = problem.models[index]
    if not domains or not is_native(home(model, problem.lower)[0]):
        return False
    few = problem.take(torch.arange(min(_ROWS, len(problem)), device=problem.lower.device))
    fastest = {"float32": float("inf"), "bfloat16": float("inf")}
    try:
        for _ in range(_ROUNDS):
            for name in fastest:
                with Precisions((model,), (name,)).applied():
                    fastest[name] = min(fastest[name], _seconds(few, domains[0]))
    except (
        RuntimeError
    ):  # a model that cannot do it: what it says of float32 comes up in the attack itself
        return False
    return fastest["float32"] > _GAIN * fastest["bfloat16"]


def _seconds(problem: AbstractProblem, domain: int) -> float:
    """What one forward and backward pass to the images takes."""
    with full_precision(), gradients_enabled():
        began = time.perf_counter()
        leaf = problem.zeros().requires_grad_()
        total = problem.domain_logits(leaf, domain).sum()
        if total.requires_grad:
            torch.autograd.grad(total, leaf, allow_unused=True)
        total.item()  # accelerators work on their own until they are asked
        return time.perf_counter() - began
