"""Models that an attack never asks, and what they are shown once it is done.

The attack knows nothing of them: before it they are shown a few images as they are, so that one that does not
fit is refused in time, and what they answer is forgotten. When every perturbation is on disk, each victim sees
the perturbed images as they are, without the views of an attack through transformations, and is judged as the
attacked models are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from saddlepoint import data
from saddlepoint.problems import AbstractProblem, Ensemble, Model, Universal, check_eval_mode
from saddlepoint.runs.hashing import hash_model
from saddlepoint.runs.settings import AttackSettings, UniversalSettings
from saddlepoint.score_models import Scores
from saddlepoint.solver.inspection import first_answers

__all__ = ["FOOLED", "check_strangers", "look_at_victims", "victims_of"]

FOOLED = "victims.fooled"
"""The table of a run with victims: (B, V * D), D images of a group or one, victim by victim."""


def victims_of(
    settings: AttackSettings,
    problem: AbstractProblem,
    x: Tensor,
    y: Tensor,
    victims: Mapping[str, Model],
) -> tuple[AbstractProblem, ...]:
    """Problems whose domains are the victims, with the rows and the targets of the attack. Nothing is asked.

    Args:
        settings: Of the attack.
        problem: What is attacked.
        x: Images, (N, C, H, W).
        y: True classes, (N,); success is counted against them, also where the models' own answers are attacked.
        victims: By name; none gives no problem.

    Raises:
        ValueError: A victim is in training mode.

    Example:
        >>> from saddlepoint import models
        >>> from saddlepoint.runs.settings import EnsembleSettings
        >>> x, y = data.sample("mnist", 3)
        >>> there = {name: models.load(f"mnist-{name.lower()}") for name in "AC"}
        >>> settings = EnsembleSettings(models=["A"], victims=["C"], eps=0.2)
        >>> problem = Ensemble([there["A"]], x, y)
        >>> victims_of(settings, problem, x, y, {"C": there["C"]})
        (Ensemble(3 rows of 1x28x28, 1 domain: C),)
    """
    if not victims:
        return ()
    check_eval_mode(list(victims.values()))
    found: list[AbstractProblem]
    if isinstance(settings, UniversalSettings):
        groups, truth = data.group(
            x, y, settings.group_size, seed=settings.seed, by_class=settings.by_class
        )
        found = [Universal(each, groups, truth, box=settings.box) for each in victims.values()]
    else:
        found = [Ensemble(list(victims.values()), x, y, names=list(victims))]
    # Rows whose class is the one to reach are left out, and all that look at one image have one target.
    found = [each.take(problem.rows) for each in found]
    if problem.aimed:
        found = [each.aim_at(_targets(problem, each)) for each in found]
    return tuple(found)


def look_at_victims(problems: Sequence[AbstractProblem]) -> None:
    """Refuse victims that cannot be judged, before an attack: four rows at most, without perturbation.

    Raises:
        ValueError: As in `first_answers`; what a victim's own code raises is raised as it is.
    """
    for each in problems:
        try:
            first_answers(each, targeted=each.aimed)
        except Exception as error:  # the user's model may raise anything
            error.add_note("asked as one of --victims, before the attack")
            raise


def check_strangers(models: Mapping[str, Model], victims: Mapping[str, Model]) -> None:
    """Refuse a victim that is attacked too: its success rate would be no transfer; and one that comes twice.

    A network that is asked for its scores only is the same network.

    Raises:
        ValueError: One has the parameters and the code of an attacked model, or of another victim.
    """
    attacked = {_digest(model): name for name, model in models.items()} if victims else {}
    seen: dict[str, str] = {}
    for name, model in victims.items():
        digest = _digest(model)
        if digest is not None and digest in attacked:
            raise ValueError(
                f"`--victims` must be models that the attack does not ask, got {name}, which is "
                f"{attacked[digest]} of --models; leave it out of one of them."
            )
        if digest is not None and digest in seen:
            raise ValueError(
                f"`--victims` must be different models, got {name}, which is {seen[digest]} again and would "
                "count twice; leave one of them out."
            )
        seen |= {} if digest is None else {digest: name}


def _digest(model: Model) -> str | None:
    return hash_model(model.model if isinstance(model, Scores) else model)


def _targets(problem: AbstractProblem, victims: AbstractProblem) -> Tensor:
    own = problem.labels if isinstance(victims, Universal) else problem.labels[:, :1]
    return own.expand(-1, victims.num_domains)
