"""What an evaluation needs, made of its settings, and the work itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from torch import Tensor

from saddlepoint import doctor
from saddlepoint.doctor import Finding
from saddlepoint.doctor.defaults import default_radius, references
from saddlepoint.evaluation import EvaluationProgress, Ledger, SavedImages, save_nearest
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
from saddlepoint.runs.evaluation_tables import Result, evaluation_metrics, evaluation_tensors
from saddlepoint.runs.execute import Execution
from saddlepoint.runs.metrics import Examined, examined
from saddlepoint.runs.preparing import with_precisions
from saddlepoint.runs.record import RECORD, Run
from saddlepoint.runs.refusals import answers
from saddlepoint.runs.rows import class_count, no_better_than_chance
from saddlepoint.runs.settings import EvaluateSettings
from saddlepoint.runs.tasks import Download, ImagesTask
from saddlepoint.runs.training_parts import doubts
from saddlepoint.solver.inspection import Look, look
from saddlepoint.training.distributed import World

__all__ = [
    "EvaluationTask",
    "examine_models",
    "finish_evaluation",
    "threats_of",
    "unfit",
]

FoundByModel = Mapping[str, tuple[Finding, ...]]

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


def examine_models(
    models: Mapping[str, Model],
    problem: Ensemble | Product,
    family: str,
    balls: Mapping[str, LpBall],
    tell: Tell,
) -> FoundByModel:
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


def unfit(findings: FoundByModel) -> str:
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


@final
@dataclass(kw_only=True)
class EvaluationTask(ImagesTask[EvaluateSettings]):
    """An evaluation.

    Attributes:
        on_failure: As in `robust_accuracy`.
        tell: Told what the doctor finds; None if it is not asked.
        result: What came out, if it was not on disk before.
    """

    on_failure: OnFailure = "raise"
    tell: Tell | None = None
    result: Result | None = None
    problem: Ensemble | Product = field(init=False)
    balls: Mapping[str, LpBall] = field(init=False)
    _precisions: Precisions = field(init=False)
    _look: Look = field(init=False)
    _earlier: FoundByModel = field(default_factory=dict)  # of the run that is continued

    def load(self, progress: Download | None) -> int:
        """Find images and models, unless the suite has no attacks for a threat."""
        self.balls = threats_of(self.settings)
        return super().load(progress)

    def assemble(self, folder: Path, *, resume: bool) -> None:
        """Make the problem."""
        r = self.ready
        self.problem = evaluated_problem(self.settings, r.x, r.y, r.models)
        self.settings, self._precisions = with_precisions(
            self.settings, self.problem, folder, resume=resume
        )
        if resume and (folder / RECORD).is_file():
            self._earlier = examined(Run.read(folder))

    def look(self) -> None:
        """Look at the models, once for all attacks."""
        seen = self._look = look(self.problem)
        # What process 0 has memory for is taken by all: batches are divided among them.
        asked = self.settings.batch_size or seen.rows(seen.accumulate)
        batch_size = World.current().gather(asked)[0]
        self.settings = self.settings.model_copy(update={"batch_size": batch_size})

    def ask(self) -> Tensor | None:
        """What the models say to the first images."""
        return answers(self.problem)

    def record(self) -> Run:
        """The record of an evaluation that begins, with what is odd about models, radii and images."""
        settings, (x, models) = self.settings, (self.ready.images.x, self.ready.models)
        radii = filter(None, (ball.doubt(x.shape[1:]) for ball in self.balls.values()))
        seen = doubts(settings.models, list(models), x, settings.split)
        notes = (*self._look.faults, *radii, *seen)
        run = record_of(settings, self.problem, self.ready.images, models, self.line)
        return run.but(warnings=notes)

    def examined(self, run: Run) -> Run:
        """The record with what the doctor finds of the models, or has found when the run began.

        Raises:
            ValueError: A model is not fit to be evaluated.
        """
        if self.tell is None:
            return run
        models, family = self.ready.models, self.ready.images.family
        found = self._earlier or examine_models(models, self.problem, family, self.balls, self.tell)
        if refused := unfit(found):
            raise ValueError(refused)
        return Examined(doctor=found).noted(run)

    def work(self, execution: Execution, callback: Callable[[EvaluationProgress], None]) -> None:
        """Evaluate.

        Raises:
            AttackFailedError: An attack failed, and `on_failure` is "raise".
        """
        names = ("every_attack", "batch_size", "budget", "seed")
        options: Any = {name: getattr(self.settings, name) for name in names}
        options |= {"callback": callback, "on_failure": self.on_failure}
        options["precisions"] = self._precisions

        def evaluate(ledger: Ledger) -> Result:
            self.result = self._evaluated(ledger=ledger, **options)
            return self.result

        finish_evaluation(execution, evaluate, self.problem)

    def save_images(self, folder: Path) -> dict[str, SavedImages]:
        """Save the nearest wrong images of every threat that has some, by its name.

        Raises:
            ValueError: The run was complete before: it keeps a few images only.
        """
        if self.result is None:
            raise ValueError(
                "`--save-images` must be given when the run is made, got one that is complete: it keeps a few "
                "images only; repeat it with --overwrite."
            )
        given, files = self.ready.images, [(file,) for file in self.ready.images.files]
        about: Any = {"classes": given.classes, "files": files}
        return save_nearest(self.problem, self.balls, self.result.nearest, folder, **about)

    def _evaluated(self, **options: Any) -> Result:
        """All attacks of the suite; one model is asked as it is, several domains together too."""
        problem, suite = self.problem, self.settings.suite
        right = clean_answers(problem, options["batch_size"]).cpu()
        if problem.num_domains > 1:
            options |= {"right": right, "accumulate": self._look.accumulate}
            return domains_unchecked(problem, self.balls, suite, **options)
        (model,) = domain_models(problem).values()
        truth, options["correct"] = problem.truth[:, 0], right[:, 0]
        return accuracy_unchecked(model, problem.x, truth, self.balls, suite, **options)
