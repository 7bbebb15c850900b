"""What an evaluation needs, made of its settings, and the work itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from torch import Tensor

from saddlepoint import doctor
from saddlepoint.doctor import Finding
from saddlepoint.doctor.defaults import default_radius, references
from saddlepoint.evaluation import EvaluationProgress, Ledger
from saddlepoint.evaluation.domains import domain_models, domains_unchecked
from saddlepoint.evaluation.failures import OnFailure
from saddlepoint.evaluation.robust import accuracy_unchecked
from saddlepoint.evaluation.suites import attacks_for
from saddlepoint.evaluation.verdicts import clean_answers
from saddlepoint.precision import Precisions
from saddlepoint.problems import AbstractProblem, Ensemble, Model, Product
from saddlepoint.projections import LpBall
from saddlepoint.runs import texts
from saddlepoint.runs.build import evaluated_problem, record_of
from saddlepoint.runs.evaluations import Result, evaluation_metrics, evaluation_tensors
from saddlepoint.runs.execute import Execution
from saddlepoint.runs.metrics import Examined, examined
from saddlepoint.runs.preparing import Prepared, with_precisions
from saddlepoint.runs.record import RECORD, Run
from saddlepoint.runs.rows import class_count, no_better_than_chance
from saddlepoint.runs.settings import EvaluateSettings
from saddlepoint.runs.training_parts import doubts
from saddlepoint.solver.inspection import look
from saddlepoint.training.distributed import World

__all__ = [
    "EvaluationJob",
    "assembled",
    "earlier_findings",
    "evaluation_job",
    "examine_models",
    "examined_by_doctor",
    "finish_evaluation",
    "record_evaluation",
    "threats_of",
    "unfit",
]

Findings = Mapping[str, tuple[Finding, ...]]

Tell = Callable[[str, tuple[Finding, ...] | None], None]
_EXAMINED = 32  # images the doctor looks at


def threats_of(settings: EvaluateSettings) -> dict[str, LpBall]:
    """The threats of an evaluation.

    Raises:
        ValueError: The suite has no attacks for one of them.

    Example:
        >>> threats_of(EvaluateSettings.load({"models": ["A"], "threat": ["linf:0.2"]}))
        {'linf': LpBall(p=inf, eps=0.2, unit='entry')}
    """
    balls = {name: threat.ball for name, threat in texts.threats(settings.threat).items()}
    for ball in balls.values():
        attacks_for(settings.suite, ball.p)
    return balls


@final
@dataclass(frozen=True)
class EvaluationJob:
    """What to evaluate, and how.

    Attributes:
        settings: With the number of images at a time.
        problem: The domains.
        balls: The threats.
        on_failure: As in `robust_accuracy`.
        precisions: What the models compute in during our searches.
        accumulate: As in `attack`.
        notes: What is odd about the models and the radii.
    """

    settings: EvaluateSettings
    problem: Ensemble | Product
    balls: Mapping[str, LpBall]
    on_failure: OnFailure
    precisions: Precisions
    accumulate: bool
    notes: tuple[str, ...]

    def run(self, ledger: Ledger, callback: Callable[[EvaluationProgress], None]) -> Result:
        """Evaluate. Finished batches are kept in the ledger; `callback` is told about progress.

        Raises:
            AttackFailedError: An attack failed, and `on_failure` is "raise".
        """
        names = ("every_attack", "batch_size", "budget", "seed")
        options: Any = {name: getattr(self.settings, name) for name in names}
        options |= {"ledger": ledger, "callback": callback, "on_failure": self.on_failure}
        options["precisions"] = self.precisions
        right = clean_answers(self.problem, options["batch_size"]).cpu()
        suite = self.settings.suite
        if self.problem.num_domains > 1:
            options |= {"right": right, "accumulate": self.accumulate}
            return domains_unchecked(self.problem, self.balls, suite, **options)
        (model,) = domain_models(self.problem).values()
        truth = self.problem.truth[:, 0]
        options["correct"] = right[:, 0]
        return accuracy_unchecked(model, self.problem.x, truth, self.balls, suite, **options)


def evaluation_job(
    settings: EvaluateSettings,
    problem: Ensemble | Product,
    precisions: Precisions,
    on_failure: OnFailure,
) -> EvaluationJob:
    """What the settings ask for. The models are looked at here, once for all attacks.

    Raises:
        ValueError: The models cannot be attacked.
    """
    balls, seen = threats_of(settings), look(problem)
    # What process 0 has memory for is taken by all: batches are divided among them.
    batch_size = World.current().gather(settings.batch_size or seen.rows(seen.accumulate))[0]
    settings = settings.model_copy(update={"batch_size": batch_size})
    doubts = (ball.doubt(problem.x.shape[1:]) for ball in balls.values())
    notes = (*seen.faults, *filter(None, doubts))
    return EvaluationJob(settings, problem, balls, on_failure, precisions, seen.accumulate, notes)


def assembled(
    ready: Prepared[EvaluateSettings], folder: Path, on_failure: OnFailure, *, resume: bool
) -> tuple[EvaluateSettings, Callable[[], EvaluationJob]]:
    """An evaluation from what was loaded: its settings with precisions, and what makes the job; see `build`.

    Raises:
        ValueError: Something does not fit that the user can mend.
    """
    problem = evaluated_problem(ready.settings, ready.x, ready.y, ready.models)
    settings, low = with_precisions(ready.settings, problem, folder, resume=resume)
    return settings, partial(evaluation_job, settings, problem, low, on_failure)


def record_evaluation(job: EvaluationJob, ready: Prepared[EvaluateSettings], command: str) -> Run:
    """The record of an evaluation that begins, with what is odd about models, radii and images."""
    notes = (*job.notes, *doubts(job.settings.models, list(ready.models), ready.images.x))
    run = record_of(job.settings, job.problem, ready.images, ready.models, command)
    return run.but(warnings=notes)


def earlier_findings(folder: Path, *, resume: bool) -> Findings:
    """What the doctor found when the run that is continued began; empty where there is none.

    Raises:
        ValueError: The record cannot be read.
    """
    return examined(Run.read(folder)) if resume and (folder / RECORD).is_file() else {}


def examined_by_doctor(
    run: Run, job: EvaluationJob, ready: Prepared[EvaluateSettings], earlier: Findings, tell: Tell
) -> Run:
    """The record with what the doctor finds of the models, or has found when the run began.

    Raises:
        ValueError: A model is not fit to be evaluated.
    """
    found = earlier or examine_models(
        ready.models, job.problem, ready.images.family, job.balls, tell
    )
    if refused := unfit(found):
        raise ValueError(refused)
    return Examined(doctor=found).noted(run)


def examine_models(
    models: Mapping[str, Model],
    problem: Ensemble | Product,
    family: str,
    balls: Mapping[str, LpBall],
    tell: Tell,
) -> Findings:
    """What the doctor finds on a few images of all classes, at the linf radius of the threats if there is one.

    Args:
        models: By name.
        problem: What they are to be evaluated on.
        family: Of the images, which decides the radius where no threat does.
        balls: The threats.
        tell: Called with a name before a model is examined, and with what was found after it.
    """
    chosen = _spread(problem.labels[:, 0], _EXAMINED)
    x, y = problem.x[chosen], problem.labels[chosen, 0]
    eps = float(balls["linf"].eps) if "linf" in balls else default_radius(family)
    found: dict[str, tuple[Finding, ...]] = {}
    for name, model in models.items():
        tell(name, None)
        others = references(name, models, x)
        found[name] = tuple(doctor.examine(model, x, y, eps=eps, references=others))
        tell(name, found[name])
    return found


def _spread(labels: Tensor, limit: int) -> list[int]:
    """The first `limit` rows taking one class after the other in turn: folders are sorted by class."""
    seen, turns = Counter[int](), list[tuple[int, int]]()
    for row, label in enumerate(labels.tolist()):
        turns.append((seen[label], row))
        seen[label] += 1
    return sorted(row for _, row in sorted(turns)[:limit])


def unfit(findings: Findings) -> str:
    """Why models are not evaluated, empty if all are: a wrong number is worse than none.

    Example:
        >>> unfit({"A": (Finding("gradients", "fail", "They are zero.", "masked", "mend it"),)})[:60]
        'not fit to be evaluated, numbers would be wrong: A (gradient'
    """
    failed = {
        name: [f"{each.name}: {each.saw}" for each in found if each.status == "fail"]
        for name, found in findings.items()
    }
    reasons = [f"{name} ({' '.join(saw)})" for name, saw in failed.items() if saw]
    if not reasons:
        return ""
    return (
        f"not fit to be evaluated, numbers would be wrong: {', '.join(reasons)}; mend what the doctor says, or "
        "add --no-doctor to evaluate all the same."
    )


def finish_evaluation(
    execution: Execution, evaluate: Callable[[Ledger], Result], problem: AbstractProblem
) -> Run:
    """Evaluate with the pages of an open run as ledger, and finish the run.

    Args:
        execution: The open run. What the doctor found, see `examined`, is kept.
        evaluate: Does the work; finished batches are in the ledger it is given.
        problem: The domains and the images, for the gallery.

    Returns:
        The complete record, as written.
    """
    result = evaluate(execution.store)
    metrics = evaluation_metrics(result, problem.names)
    clean = {name: each.clean for name, each in metrics.domains.items()}
    execution.notes.extend(no_better_than_chance(clean, problem, class_count(problem)))
    metrics = replace(metrics, doctor=examined(execution.run))
    seconds = execution.store.seconds()
    return execution.finish(metrics, evaluation_tensors(result, problem), seconds=seconds)
