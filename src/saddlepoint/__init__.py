"""saddlepoint: worst-case robustness across domains.

    minimise over delta in X   maximise over w in the simplex   sum_i w_i F_i(delta) - gamma/2 ||w - 1/K||^2

A domain i is a model, an image, a transformation or a threat. `attack` finds one perturbation against all of
them, the weights w say which one is hard. The contract (shapes, signs, boxes) is in `saddlepoint.problems`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saddlepoint import data, directions, doctor, models, report, transforms
    from saddlepoint.allocator import keep_memory
    from saddlepoint.calls import Model
    from saddlepoint.evaluation import (
        AbstractAttack,
        AttackFailedError,
        DomainAccuracy,
        EvaluationProgress,
        Failure,
        HasBall,
        Ledger,
        Origin,
        Outcome,
        Page,
        PatchRates,
        RobustAccuracy,
        SavedImages,
        SuccessRates,
        Target,
        patch_rates,
        robust_accuracy,
        robust_domains,
        save_images,
        save_nearest,
        success_rates,
    )
    from saddlepoint.losses import Loss, clipped, cw_margin, dlr, neg_cross_entropy, soft_margin
    from saddlepoint.precision import Precision, Precisions
    from saddlepoint.problems import (
        AbstractProblem,
        Array,
        Ensemble,
        Parts,
        Patched,
        Product,
        Transformed,
        Universal,
    )
    from saddlepoint.projections import (
        AbstractSet,
        LpBall,
        Patch,
        l0,
        l1,
        l2,
        linf,
        project_lp_box,
        project_simplex,
    )
    from saddlepoint.rules import (
        AbstractWeightRule,
        Average,
        Entropic,
        Fixed,
        Grouped,
        MinMax,
        WorstCase,
    )
    from saddlepoint.score_models import Scores, scores
    from saddlepoint.solver import (
        Asked,
        AttackResult,
        Estimated,
        History,
        Progress,
        Schedule,
        Searched,
        estimated,
        searched,
    )
    from saddlepoint.solver.apgda import apgda
    from saddlepoint.solver.attack import attack
    from saddlepoint.training import (
        AbstractStart,
        Batches,
        Drawn,
        Loader,
        MethodOptions,
        RandomStart,
        Recipe,
        RunningErrors,
        StepOptions,
        StepStats,
        Threat,
        TrainingProgress,
        WarmStart,
        ZeroStart,
        ampgd_step,
        avg_step,
        max_step,
        msd_step,
        train,
    )
    from saddlepoint.transforms import View

__version__ = "0.2.0"

__all__ = [
    "AbstractAttack",
    "AbstractProblem",
    "AbstractSet",
    "AbstractStart",
    "AbstractWeightRule",
    "Array",
    "Asked",
    "AttackFailedError",
    "AttackResult",
    "Average",
    "Batches",
    "DomainAccuracy",
    "Drawn",
    "Ensemble",
    "Entropic",
    "Estimated",
    "EvaluationProgress",
    "Failure",
    "Fixed",
    "Grouped",
    "HasBall",
    "History",
    "Ledger",
    "Loader",
    "Loss",
    "LpBall",
    "MethodOptions",
    "MinMax",
    "Model",
    "Origin",
    "Outcome",
    "Page",
    "Parts",
    "Patch",
    "PatchRates",
    "Patched",
    "Precision",
    "Precisions",
    "Product",
    "Progress",
    "RandomStart",
    "Recipe",
    "RobustAccuracy",
    "RunningErrors",
    "SavedImages",
    "Schedule",
    "Scores",
    "Searched",
    "StepOptions",
    "StepStats",
    "SuccessRates",
    "Target",
    "Threat",
    "TrainingProgress",
    "Transformed",
    "Universal",
    "View",
    "WarmStart",
    "WorstCase",
    "ZeroStart",
    "ampgd_step",
    "apgda",
    "attack",
    "avg_step",
    "clipped",
    "cw_margin",
    "data",
    "directions",
    "dlr",
    "doctor",
    "estimated",
    "keep_memory",
    "l0",
    "l1",
    "l2",
    "linf",
    "max_step",
    "models",
    "msd_step",
    "neg_cross_entropy",
    "patch_rates",
    "project_lp_box",
    "project_simplex",
    "report",
    "robust_accuracy",
    "robust_domains",
    "save_images",
    "save_nearest",
    "scores",
    "searched",
    "soft_margin",
    "success_rates",
    "train",
    "transforms",
]

# Names are imported when they are first used (PEP 562): the command line answers `--help` without torch.
_ROOMS = {
    "allocator": ("keep_memory",),
    "calls": ("Model",),
    "evaluation": (
        "AbstractAttack",
        "AttackFailedError",
        "DomainAccuracy",
        "EvaluationProgress",
        "Failure",
        "HasBall",
        "Ledger",
        "Origin",
        "Outcome",
        "Page",
        "PatchRates",
        "RobustAccuracy",
        "SavedImages",
        "SuccessRates",
        "Target",
        "patch_rates",
        "robust_accuracy",
        "robust_domains",
        "save_images",
        "save_nearest",
        "success_rates",
    ),
    "losses": ("Loss", "clipped", "cw_margin", "dlr", "neg_cross_entropy", "soft_margin"),
    "precision": ("Precision", "Precisions"),
    "problems": (
        "AbstractProblem",
        "Array",
        "Ensemble",
        "Parts",
        "Patched",
        "Product",
        "Transformed",
        "Universal",
    ),
    "projections": (
        "AbstractSet",
        "LpBall",
        "Patch",
        "l0",
        "l1",
        "l2",
        "linf",
        "project_lp_box",
        "project_simplex",
    ),
    "score_models": ("Scores", "scores"),
    "solver": (
        "Asked",
        "AttackResult",
        "Estimated",
        "History",
        "Progress",
        "Schedule",
        "Searched",
        "apgda",
        "attack",
        "estimated",
        "searched",
    ),
    "training": (
        "AbstractStart",
        "Batches",
        "Drawn",
        "Loader",
        "MethodOptions",
        "RandomStart",
        "Recipe",
        "RunningErrors",
        "StepOptions",
        "StepStats",
        "Threat",
        "TrainingProgress",
        "WarmStart",
        "ZeroStart",
        "ampgd_step",
        "avg_step",
        "max_step",
        "msd_step",
        "train",
    ),
    "transforms": ("View",),
    "rules": (
        "AbstractWeightRule",
        "Average",
        "Entropic",
        "Fixed",
        "Grouped",
        "MinMax",
        "WorstCase",
    ),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in __all__:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
