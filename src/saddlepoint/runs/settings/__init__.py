"""The settings of every kind of run, once: flags, YAML files, records and the line that repeats a run.

`AttackSettings` (ensemble, universal, transform, patch), `EvaluateSettings` and `TrainSettings` decide all
numbers of a run. Their fields are the flags of the command line and the keys of `run.json`; `load` reads them
from flags and a YAML file, `command` writes the line that repeats the run. `saddlepoint.runs.build` makes
objects of them.
"""

from collections.abc import Mapping

from saddlepoint.runs.settings.attack_settings import (
    AttackSettings,
    EnsembleSettings,
    UniversalSettings,
)
from saddlepoint.runs.settings.common import Settings
from saddlepoint.runs.settings.evaluate_settings import EvaluateSettings
from saddlepoint.runs.settings.patch_settings import PatchSettings
from saddlepoint.runs.settings.train_settings import TrainSettings
from saddlepoint.runs.settings.transform_settings import TransformSettings

__all__ = [
    "ATTACKS",
    "AttackSettings",
    "EnsembleSettings",
    "EvaluateSettings",
    "PatchSettings",
    "Settings",
    "TrainSettings",
    "TransformSettings",
    "UniversalSettings",
]

ATTACKS: Mapping[str, type[AttackSettings]] = {
    "ensemble": EnsembleSettings,
    "universal": UniversalSettings,
    "transform": TransformSettings,
    "patch": PatchSettings,
}
"""The settings of every kind of attack."""
