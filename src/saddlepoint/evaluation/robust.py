"""How many images a model still classifies correctly under every attack of a suite."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from saddlepoint.behind import keeping_buffers
from saddlepoint.counts import check_seed
from saddlepoint.evaluation.attacks import AbstractAttack, Target, Watched, sealed
from saddlepoint.evaluation.failures import AttackFailedError, OnFailure, check_on_failure
from saddlepoint.evaluation.given import BallLike, as_balls, check_limits
from saddlepoint.evaluation.ledger import Batch, Ledger, Stage, Status, gather_of
from saddlepoint.evaluation.ours import OurAttack
from saddlepoint.evaluation.results import Outcome, RobustAccuracy
from saddlepoint.evaluation.streamed import streaming
from saddlepoint.evaluation.suites import Suite, attacks_for
from saddlepoint.evaluation.verdicts import clean_answers, judge, pulled_back
from saddlepoint.evaluation.work import EvaluationProgress, Nearest, Work
from saddlepoint.precision import Precision, Precisions
from saddlepoint.problems import AbstractProblem, Ensemble, Model, check_eval_mode
from saddlepoint.problems.inputs import Data, Numbers, as_labels, images_and_labels, plain
from saddlepoint.projections import LpBall
from saddlepoint.rounding import full_precision
from saddlepoint.solver.domain_losses import gradients_enabled
from saddlepoint.solver.inspection import Look, look
from saddlepoint.solver.lowering import choose_precisions
from saddlepoint.solver.watch import check_answers

__all__ = ["accuracy_unchecked", "check_gradients", "inspect_model", "robust_accuracy"]

_LOOK = 4  # images that are looked at before anything is attacked


@streaming
def robust_accuracy(
    model: Model,
    x: Data,
    y: Numbers | Mapping[str, BallLike] | None = None,
    threats: Mapping[str, BallLike] | None = None,
    suite: Suite = "quick",
    *,
    on_failure: OnFailure = "raise",
    every_attack: bool = False,
    batch_size: int = 128,
    budget: float | None = None,
    seed: int = 0,
    rows: Numbers | None = None,
    precision: Precision = "float32",
    ledger: Ledger | None = None,
    progress: bool = False,
    callback: Callable[[EvaluationProgress], None] | None = None,
) -> RobustAccuracy:
    """Run a suite of attacks under every threat and count the images it does not fool.

    Cheap attacks come first, and an image that is broken under a threat is not attacked again for it. Verdicts
    do not rely on what an attack says of itself, see `judge`. What could not be attacked is not robust: an
    attack that raises is an error, or is noted beside every number it concerns. There is a warning if the model
    gives probabilities or no gradient: for attacks that need gradients the numbers would then say nothing.

    Args:
        model: From images in [0, 1] to logits, in evaluation mode; left as it was.
        x: Images, (N, ...), in [0, 1], as tensor or array; or a DataLoader, a data set of torch, or other pairs
            of images and labels, in place of `x` and `y`: `robust_accuracy(model, loader, threats)`. They are
            read once, and a few batches are in memory at a time.
        y: Labels, (N,).
        threats: Balls or `Threat`s by name; one radius each.
        suite: "quick" (our attack), "paper", "autoattack", "autoattack+", or for every norm p a sequence of
            attacks of your own, such as {math.inf: [OurAttack()]} with `saddlepoint.evaluation.OurAttack`.
        on_failure: What becomes of an attack that raises. "raise": an `AttackFailedError`; finished batches
            stay in the ledger. "note": the others go on, the result has it in `failures`, and the numbers named
            in `at_most` are upper bounds.
        every_attack: Run every attack on every correctly classified image, for tables of single attacks.
        batch_size: Images at a time, four times as many in random search, which keeps no graph. Results of
            other libraries depend on it through their random numbers.
        budget: Seconds for each attack under each threat. What it cut short is in `notes`; numbers are upper
            bounds, named in `at_most`, where an attack did not reach every image.
        seed: Of everything random.
        rows: Numbers of the images, (N,), on which random starts depend, where these are a part of more; 0 to
            N - 1 if None.
        precision: What the model computes in while our gradient attacks search, as in `attack`. All other
            attacks, and every verdict, are in full precision.
        ledger: Keeps finished batches. What it has already is not computed again. Several processes that share
            a `SharedLedger` divide the batches; the result is that of one.
        progress: Whether to show a bar for the attack under way, on stderr (needs rich).
        callback: Called before and after every batch; from a loader, it is told of the images in memory.

    Returns:
        Accuracies, and what every attack did to every image; from a loader without `nearest` and `problem`.

    Raises:
        ValueError: An argument is unusable, the suite has no attack for a norm, the model is declared to have
            no gradients (`saddlepoint.scores`) and the suite follows them, or it answers by chance, by the
            other images of a batch, or with logits that are not numbers without attack.
        AttackFailedError: An attack raised, and `on_failure` is "raise".
        ImportError: The suite needs a library that is not installed.

    Example:
        >>> model = torch.nn.Linear(2, 2, bias=False).eval()
        >>> _ = torch.nn.init.eye_(model.weight)
        >>> x, y = torch.tensor([[0.9, 0.1], [0.6, 0.5], [0.1, 0.2]]), torch.tensor([0, 0, 0])
        >>> robust = robust_accuracy(model, x, y, {"linf": LpBall(float("inf"), 0.2)})
        >>> [round(value, 2) for value in (robust.clean, robust.per_threat["linf"], robust.union)]
        [0.67, 0.33, 0.33]
    """
    del progress  # by `streaming`, once for all parts of a loader
    x, y = images_and_labels(x, y)
    numbers = torch.arange(len(x)) if rows is None else as_labels("rows", rows, (len(x),)).cpu()
    check_eval_mode([model])
    check_on_failure(on_failure)
    check_limits(batch_size, budget)
    seed = check_seed(seed)
    balls = as_balls(threats, x.shape[1:], stacklevel=5)  # above `streaming`
    for name, ball in balls.items():
        _attacks(suite, name, ball, x)
    with full_precision(), gradients_enabled(), keeping_buffers([model]):
        x = plain(x)
        problem = Ensemble([model], x, y)
        correct = clean_answers(problem, batch_size)[:, 0].cpu()
        seen = inspect_model(model, x, y, correct, balls, suite)
        precisions = choose_precisions(problem, precision, gather_of(ledger))
    for fault in seen.faults:
        warnings.warn(fault, stacklevel=4)
    found = accuracy_unchecked(
        model,
        x,
        y,
        balls,
        suite,
        correct=correct,
        on_failure=on_failure,
        every_attack=every_attack,
        batch_size=batch_size,
        budget=budget,
        seed=seed,
        rows=numbers,
        precisions=precisions,
        ledger=ledger,
        callback=callback,
    )
    return replace(found, problem=problem)


def accuracy_unchecked(
    model: Model,
    x: Tensor,
    y: Tensor,
    balls: Mapping[str, LpBall],
    suite: Suite,
    *,
    correct: Tensor,
    on_failure: OnFailure,
    every_attack: bool,
    batch_size: int,
    budget: float | None,
    seed: int,
    precisions: Precisions,
    ledger: Ledger | None,
    callback: Callable[[EvaluationProgress], None] | None,
    rows: Tensor | None = None,
) -> RobustAccuracy:
    """`robust_accuracy` for callers who have checked the arguments and looked at the model.

    Args as there, but for `correct`, which images the model has right, (N,), see `clean_answers`, and
    `precisions`, from `choose_precisions`.
    """
    plan = {name: _attacks(suite, name, ball, x) for name, ball in balls.items()}
    with full_precision(), gradients_enabled(), keeping_buffers([model]):
        numbers = torch.arange(len(x)) if rows is None else rows
        evaluation = _Evaluation(
            model, x, y, numbers, on_failure, seed, batch_size, budget, precisions, ledger, callback
        )
        outcomes: list[Outcome] = []
        nearest: dict[str, Tensor] = {}
        total = sum(map(len, plan.values()))
        for name, ball in balls.items():
            not_fooled, best = correct.clone(), Nearest.none(x)
            for attack in plan[name]:
                todo = correct if every_attack else not_fooled
                where = EvaluationProgress(name, attack.name, len(outcomes), total, 0, 0, 0, len(x))
                outcome = evaluation.run(where, ball, attack, todo.clone(), not_fooled, best)
                outcomes.append(outcome)
                not_fooled &= ~outcome.broken
            nearest[name] = best.delta
    return RobustAccuracy(dict(balls), correct, tuple(outcomes), nearest, precisions.names)


def inspect_model(
    model: Model,
    x: Tensor,
    y: Tensor,
    correct: Tensor,
    balls: Mapping[str, LpBall],
    suite: Suite,
) -> Look:
    """Look at a model before a suite is run on it: attacks that follow gradients may say nothing about it.

    Args as in `accuracy_unchecked`. Nothing is known, and no fault, where it has no image right.

    Raises:
        ValueError: No attack would: the model has no gradients by declaration, answers by chance, by the other
            images, or without a gradient that is a number.
    """
    attacks = [attack for ball in balls.values() for attack in attacks_for(suite, ball.p)]
    gradients = not isinstance(suite, Mapping) or any(isinstance(a, OurAttack) for a in attacks)
    unknown = Look(num_domains=1, row_bytes=0.0, faults=())
    if gradients:
        check_gradients(Ensemble([model], x[:1], y[:1]))
    rows = correct.nonzero().flatten()[:_LOOK].to(x.device)
    if len(rows) == 0:
        return unknown
    problem = Ensemble([model], x[rows], y.to(x.device)[rows])
    problem.rows = rows
    with sealed(model, 0):
        try:
            if gradients:
                return look(problem)
            check_answers(problem, problem.zeros(), problem.logits(problem.zeros()))
        except ValueError:
            raise
        except Exception:  # every attack that fails for the same reason says so
            pass
    return unknown


def check_gradients(problem: AbstractProblem) -> None:
    """Refuse models that are declared to have no gradients, where attacks follow them.

    Raises:
        ValueError: There is one.
    """
    if problem.without_gradient:
        name = problem.names[problem.without_gradient[0]]
        raise ValueError(
            f"models must have gradients, which these attacks follow, got {name}, which is declared by "
            "saddlepoint.scores; take attack(problem, ball, gradient=searched(queries=5000)) and "
            "success_rates, of saddlepoint, or a suite of your own that needs no gradients."
        )


@final
@dataclass(frozen=True)
class _Evaluation:
    model: Model
    x: Tensor
    y: Tensor
    numbers: Tensor
    on_failure: OnFailure
    seed: int
    batch_size: int
    budget: float | None
    precisions: Precisions
    ledger: Ledger | None
    callback: Callable[[EvaluationProgress], None] | None

    def run(
        self,
        where: EvaluationProgress,
        ball: LpBall,
        attack: AbstractAttack,
        todo: Tensor,
        not_fooled: Tensor,
        nearest: Nearest,
    ) -> Outcome:
        """One attack under one threat."""
        work = Work.none(attack, todo)
        stage = Stage(self.ledger, self.budget, self.on_failure)

        def report(done: int) -> None:
            if self.callback is not None:
                left = int((not_fooled & ~work.broken).sum())
                self.callback(replace(where, done=done, total=work.total, not_fooled=left))

        for restart, parts in enumerate(work.batches(self.batch_size)):
            name = f"{where.threat}/{attack.name}/{restart}"
            batches = [
                self._batch(f"{name}/{number}", ball, attack, rows, restart)
                for number, rows in enumerate(parts)
            ]
            for batch, page in stage.pages(batches, lambda more: report(work.done + more)):
                work.add(batch.rows, page)
                nearest.offer(page)
            if stage.status != "complete":
                break
        if work.total:
            report(work.total)
        failure = work.failure(where.threat, stage)
        if failure is not None and self.on_failure == "raise":
            raise AttackFailedError(failure) from stage.error
        status: Status = stage.status if work.total else "not needed"
        return Outcome(
            where.threat,
            attack.name,
            work.attacked,
            work.broken,
            work.distance,
            stage.seconds,
            stage.queries,
            status,
            tuple(work.notes(stage)),
            attack.minimal,
            failure,
        )

    def _batch(
        self, key: str, ball: LpBall, attack: AbstractAttack, rows: Tensor, restart: int
    ) -> Batch:
        def run(deadline: float | None) -> dict[str, Tensor]:
            here = rows.to(self.x.device)
            x, y = self.x[here], self.y.to(self.x.device)[here]
            watched = Watched(self.model)
            watched.deadline = deadline
            # Copies: what an attack writes into them changes nothing here.
            copies = (x.clone(), y.clone(), self.numbers[rows])
            target = Target(watched, *copies, ball, self.seed, restart, self.precisions)
            with sealed(self.model, zlib.crc32(f"{self.seed}/{key}".encode())):
                candidates = attack.run(target)
            verdict = judge(self.model, x, y, candidates, ball)
            if not attack.minimal:
                verdict = pulled_back(self.model, x, y, verdict, ball)
            return {
                "broken": verdict.broken,
                "distance": verdict.distance,
                "outside": verdict.outside.sum(),
                "unusable": verdict.unusable.sum(),
                "delta": verdict.delta,
                "queries": torch.tensor(watched.queries),
            }

        return Batch(key, rows, run)


def _attacks(suite: Suite, name: str, ball: LpBall, x: Tensor) -> tuple[AbstractAttack, ...]:
    """The attacks of a suite for a threat, or an error that says why there can be none."""
    if ball.unit == "pixel" and x.dim() < 3:
        raise ValueError(
            f"`threats[{name!r}]` counts pixels and needs images (N, C, ...), got {tuple(x.shape)}; "
            'take unit="entry".'
        )
    return attacks_for(suite, ball.p)
