"""Training: steps against several threats, one loop for every method, recipes, safe checkpoints."""

from .abstract_method import Step
from .ampgd import StepOptions, StepStats, ampgd_step, avg_step, max_step, msd_step, perturb
from .batches import Batches, Loader, TrainingProgress
from .board import TensorBoard
from .extreme import Drawn, RunningErrors
from .loop import METHODS, clean_step, train
from .methods import MethodOptions
from .recipes import Recipe, recipe_for
from .threats import AbstractStart, RandomStart, Threat, ThreatLike, WarmStart, ZeroStart
from .validation import validate

__all__ = [
    "METHODS",
    "AbstractStart",
    "Batches",
    "Drawn",
    "Loader",
    "MethodOptions",
    "RandomStart",
    "Recipe",
    "RunningErrors",
    "Step",
    "StepOptions",
    "StepStats",
    "TensorBoard",
    "Threat",
    "ThreatLike",
    "TrainingProgress",
    "WarmStart",
    "ZeroStart",
    "ampgd_step",
    "avg_step",
    "clean_step",
    "max_step",
    "msd_step",
    "perturb",
    "recipe_for",
    "train",
    "validate",
]
