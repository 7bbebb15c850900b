"""How models are to compute during an attack, measured where that is left open."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from saddlepoint.behind import modules_behind
from saddlepoint.calls import dtypes_of, home
from saddlepoint.precision import Precision, Precisions, check_precision, is_native
from saddlepoint.problems import AbstractProblem
from saddlepoint.rounding import full_precision, roundings, without_autocast
from saddlepoint.solver.domain_losses import gradients_enabled
from saddlepoint.solver.watch import moved

__all__ = ["choose_precisions"]

# Rows that are measured: as few as take long enough to be told from each other. Parameters are converted once
# per batch, so that very few would look too slow.
_FEW, _ROWS = 8, 32
_ENOUGH = 0.015  # seconds, of the fastest way
_ROUNDS = 3  # two where that is so
_HOPELESS = 1.5  # times slower than the fastest, the first time included: not measured again
_GAIN = 1.1  # what a way has to bring to be worth its rounding
_GAIN_OF_LAYOUT = 1.05  # and where as few bits are taken already
# By how much answers may move, see `moved`: where only the layout differs, and where there are fewer bits.
# Measured on 32 images with the MNIST networks A to D, and on 16 random ones with VGG16 and ResNets before
# training: not at all, and by less than 0.01.
_LAYOUT, _BITS = 0.01, 0.25
# What was measured of a network that is still there, by where it is and what images it sees: on so many rows.
_measured: dict[int, dict[object, tuple[int, Precision]]] = {}


def choose_precisions(
    problem: AbstractProblem,
    precision: Precision | Sequence[Precision],
    gather: Callable[[tuple[Precision, ...]], list[tuple[Precision, ...]]] | None = None,
    *,
    training: bool = False,
) -> Precisions:
    """How each model of a problem will compute; "auto" is decided here, by a short measurement.

    A network is measured once, on 8 to 32 rows: what was decided for it where there were 32 holds as long as it
    is there, and what was decided where there were fewer until there are more.

    Args:
        problem: Its first rows are measured, forward and backward, in all ways by turns.
        precision: A word for all models, or one for each.
        gather: Where several processes work together, what each of them found, in their order: the first one
            decides for all.
        training: Whether models will be asked in steps of training, which move parameters in the layout that
            they have and keep the user's settings of what float32 is rounded to: "auto" measures such steps.

    Raises:
        ValueError: An unknown word, fewer bits for images or parameters of float64, two words for one object,
            or channels last for a model that answers otherwise then.

    Example:
        >>> from saddlepoint.problems import Ensemble
        >>> problem = Ensemble([torch.nn.Linear(4, 3).eval()], torch.rand(5, 4), torch.zeros(5).long())
        >>> choose_precisions(problem, "bfloat16").names, choose_precisions(problem, "auto").names
        (('bfloat16',), ('float32',))
    """
    words = check_precision(precision, len(problem.models))
    first = {id(model): index for index, model in reversed(list(enumerate(problem.models)))}
    names: list[Precision] = []
    for index, (model, word) in enumerate(zip(problem.models, words, strict=True)):
        same = first[id(model)]
        if words[same] != word:
            raise ValueError(
                f"`precision` must be one word for models[{same}] and models[{index}], which are one object, "
                f"got {words[same]!r} and {word!r}."
            )
        names.append(names[same] if same < index else _decided(problem, index, word, training))
    found = tuple(names)
    return Precisions(tuple(problem.models), found if gather is None else gather(found)[0])


def _decided(problem: AbstractProblem, index: int, word: Precision, training: bool) -> Precision:
    """What a word means for one model: itself, unless it is "auto"."""
    wide = torch.float64 in {
        problem.lower.dtype,
        *dtypes_of(modules_behind(problem.models[index])),
    }
    if wide and word.startswith(("bfloat16", "float16")):
        raise ValueError(
            f"`precision` must be float32 or auto for images or parameters of float64, which compute in "
            f'float64, got {word!r}; write x.float() and model.float(), or precision="float32".'
        )
    if word != "auto":
        if word.endswith("+channels_last"):
            _check_layout(problem, index, word)
        return word
    ways = _ways(problem, index, bits=not wide, layouts=not training)
    with without_autocast() if training else full_precision():
        return _fastest(problem, index, ways)


def _ways(
    problem: AbstractProblem, index: int, *, bits: bool, layouts: bool
) -> tuple[Precision, ...]:
    """How a model could compute, the way that rounds least first."""
    model = problem.models[index]
    low = bits and is_native(home(model, problem.lower)[0])
    # What has its filters in this layout already has nothing to gain.
    filters = (
        [p for p in model.parameters() if p.dim() == 4] if isinstance(model, nn.Module) else []
    )
    last = layouts and any(not p.is_contiguous(memory_format=torch.channels_last) for p in filters)
    there: dict[Precision, bool] = {
        "float32": True,
        "float32+channels_last": last,
        "bfloat16": low,
        "bfloat16+channels_last": low and last,
    }
    return tuple(way for way, possible in there.items() if possible)


def _fastest(problem: AbstractProblem, index: int, ways: tuple[Precision, ...]) -> Precision:
    """The way in which a model is fastest, of those that are not faster by much the one that rounds least."""
    model = problem.models[index]
    where = *home(model, problem.lower), problem.lower.shape[1:]
    known, case = _known(model), (*where, ways, roundings())
    rows = min(_ROWS, len(problem))
    measured, chosen = known.get(case, (0, ways[0]))
    if measured < rows:
        chosen = ways[0]
        passes = _passes(problem, index, ways) if len(ways) > 1 else {}
        for way, found in passes.items():
            alone = chosen == "bfloat16" and way.startswith(chosen)
            gain = _GAIN_OF_LAYOUT if alone else _GAIN
            faster = passes[chosen].seconds > gain * found.seconds
            if faster and _alike(passes[ways[0]].logits, found.logits, way):
                chosen = way
        known[case] = rows, chosen
    return chosen


def _known(model: object) -> dict[object, tuple[int, Precision]]:
    """What was found out about a network; it goes when the network does. Functions are not remembered."""
    if not isinstance(model, nn.Module):
        return {}
    if id(model) not in _measured:
        weakref.finalize(model, _measured.pop, id(model), None)
    return _measured.setdefault(id(model), {})


def _check_layout(problem: AbstractProblem, index: int, word: Precision) -> None:
    """Refuse, once per network, another layout for one that reads memory in the order of its own."""
    model = problem.models[index]
    known, case = _known(model), (*home(model, problem.lower), problem.lower.shape[1:], word)
    if case in known:
        return
    if not _answers_alike(problem, index, word):
        plain = word.partition("+")[0]
        raise ValueError(
            f"`precision` must be {plain} or auto for {type(model).__name__}, which answers otherwise where "
            f"images and filters have their channels last, got {word!r}."
        )
    known[case] = 0, word


def _answers_alike(problem: AbstractProblem, index: int, way: Precision) -> bool:
    """Whether a model answers in a way as it does by itself, asked here."""
    model, domain = problem.models[index], _domain(problem, index)
    if domain is None:
        return True
    few = _first(problem, _FEW)
    with full_precision(), torch.inference_mode(False), torch.no_grad():
        exact = few.domain_logits(few.zeros(), domain)
        with Precisions((model,), (way,)).applied():
            return _alike(exact, few.domain_logits(few.zeros(), domain), way)


def _alike(exact: Tensor | None, other: Tensor | None, way: Precision) -> bool:
    """Whether answers in a way, (n, C), are those of the model as it is, up to what rounding explains."""
    if exact is None or other is None:
        return False
    most = _LAYOUT if way.startswith("float32") else _BITS
    return bool(other.isfinite().all() & (moved(exact, other).median() <= most))


def _domain(problem: AbstractProblem, index: int) -> int | None:
    """The first domain that a model answers for."""
    return next((k for k in range(problem.num_domains) if problem.model_of(k) == index), None)


def _first(problem: AbstractProblem, rows: int) -> AbstractProblem:
    """So many rows, or as many as there are."""
    return problem.take(torch.arange(min(rows, len(problem)), device=problem.lower.device))


@final
class _Pass(NamedTuple):
    """Seconds of a forward and backward pass to the images, and the answers, (n, C), if there are any."""

    seconds: float
    logits: Tensor | None


def _passes(
    problem: AbstractProblem, index: int, ways: tuple[Precision, ...]
) -> dict[Precision, _Pass]:
    """The fastest pass of one domain of a model in every way; infinite where it fails.

    On a few rows, and on twice as many as long as that takes too little time to tell ways from each other.
    """
    model, domain = problem.models[index], _domain(problem, index)
    if domain is None:
        return dict.fromkeys(ways, _Pass(0.0, None))
    left = {way: Precisions((model,), (way,)) for way in ways}
    rows, most = _FEW, min(_ROWS, len(problem))
    found = _in_turn(problem, rows, domain, left)
    while rows < most and _least(found) < _ENOUGH:
        rows *= 2
        found = _in_turn(problem, rows, domain, left)
    for _ in range(_ROUNDS - (1 if _least(found) < _ENOUGH else 2)):
        bound = max(_ENOUGH, _HOPELESS * _least(found))
        left = {way: how for way, how in left.items() if found[way].seconds <= bound}
        if len(left) > 1:
            for way, again in _in_turn(problem, rows, domain, left).items():
                found[way] = min(found[way], again, key=lambda one: one.seconds)
    return found


def _least(found: Mapping[Precision, _Pass]) -> float:
    return min(each.seconds for each in found.values())


def _in_turn(
    problem: AbstractProblem, rows: int, domain: int, ways: Mapping[Precision, Precisions]
) -> dict[Precision, _Pass]:
    """One pass of so many rows in every way."""
    few, found = _first(problem, rows), dict[Precision, _Pass]()
    for way, precisions in ways.items():
        try:
            with precisions.applied():
                found[way] = _pass(few, domain)
        except Exception:
            # A model that cannot do it; what it says as it is comes up in the attack itself.
            found[way] = _Pass(math.inf, None)
    return found


def _pass(problem: AbstractProblem, domain: int) -> _Pass:
    """One forward and backward pass to the images."""
    # On a CPU the time of this process: on a busy machine a clock on the wall measures the others.
    device, _ = home(problem.models[problem.model_of(domain)], problem.lower)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    with gradients_enabled():
        began = clock()
        leaf = problem.zeros().requires_grad_()
        logits = problem.domain_logits(leaf, domain)
        total = logits.sum()
        if total.requires_grad:
            torch.autograd.grad(total, leaf, allow_unused=True)
        total.item()  # accelerators work on their own until they are asked
        return _Pass(clock() - began, logits.detach())
