"""The settings of an attack through transformations."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from saddlepoint import paper
from saddlepoint.runs import texts
from saddlepoint.runs.settings.attack_settings import AttackSettings
from saddlepoint.runs.settings.common import Names
from saddlepoint.runs.settings.one_domain import Steps

__all__ = ["TransformSettings"]


class TransformSettings(AttackSettings):
    """One image seen through transformations, by one model or several."""

    words: ClassVar[tuple[str, ...]] = ("attack", "transform")
    kind: Literal["transform"] = "transform"
    steps: Steps = paper.STEPS["transform"]
    transforms: Names = Field(
        default=["paper"],
        min_length=1,
        description="paper, paper+rotation, paper-random, or names separated by commas: identity, hflip, "
        "vflip, brightness:0.1, gamma:1.3, crop_resize:0.8, rotate:30.",
    )
    samples: int = Field(default=1, ge=1, description="Draws per step of random transformations.")

    @property
    def num_domains(self) -> int:
        """Every model behind every transformation."""
        return len(self.models) * len(texts.transforms(self.transforms))

    @field_validator("transforms")
    @classmethod
    def _are_transforms(cls, value: list[str]) -> list[str]:
        texts.transforms(value)
        return value
