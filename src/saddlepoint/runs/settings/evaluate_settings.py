"""The settings of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from saddlepoint.runs import texts
from saddlepoint.runs.plain import quoted
from saddlepoint.runs.settings.common import (
    Classes,
    Crop,
    Data,
    Device,
    Limit,
    Mean,
    Names,
    Precisions,
    Settings,
    Size,
    Split,
    Std,
    Threats,
    with_data,
)
from saddlepoint.runs.settings.seeds import Seed

__all__ = ["EvaluateSettings"]

_EXAMPLE = "--threat linf:0.3 --threat l2:2.0 --threat l1:10"


def _seconds(value: object) -> object:
    return texts.seconds(value) if isinstance(value, str) else value


class EvaluateSettings(Settings):
    """What decides the numbers of an evaluation."""

    words: ClassVar[tuple[str, ...]] = ("evaluate",)
    always: ClassVar[tuple[str, ...]] = ("models", "data", "suite")
    examples: ClassVar[Mapping[str, str]] = {"models": "such as --models A,B,C,D"}
    demanded: ClassVar[Mapping[str, bool]] = {"models": False, "threat": True}

    models: Names = Field(
        description="Several models separated by commas, instead of MODEL: each alone, and all of them at once."
    )
    mean: Mean = None
    std: Std = None
    data: Data = "mnist-sample"
    threat: Threats = Field(default=[], validate_default=True)
    suite: Literal["quick", "paper", "autoattack", "autoattack+"] = Field(
        default="quick",
        description="quick is our attack, for linf random search besides; paper has the attacks of the paper's "
        "defence table (needs foolbox); autoattack and autoattack+ are AutoAttack's versions standard and plus "
        "(need pyautoattack).",
    )
    classes: Classes = None
    size: Size = None
    crop: Crop = 1.0
    transforms: Names = Field(
        default=[],
        description="See the images through these, as in `attack transform`: identity,hflip,rotate:30, or "
        "paper.",
    )
    every_attack: bool = Field(
        default=False,
        description="Run every attack on every image that is right, for tables of single attacks; slower.",
    )
    budget: Annotated[float | None, BeforeValidator(_seconds)] = Field(
        default=None,
        description="Time for each attack under each threat, such as 60s, 5m or 90; what it cut short is "
        "noted.",
    )
    split: Split = None
    limit: Limit = None
    batch_size: int | None = Field(
        default=None,
        ge=1,
        description="Images at a time, and between two saves. [default: what fits into memory, at most 128]",
    )
    device: Device = "cpu"
    precision: Precisions = Field(default=["float32"])
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _with_data(cls, values: Any) -> Any:
        return with_data(values) if isinstance(values, dict) else values

    @field_validator("models")
    @classmethod
    def _are_models(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("`--models` must name at least one model, such as A,B,C,D, got none.")
        return value

    @field_validator("threat")
    @classmethod
    def _are_threats(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError(
                f"`--threat` must be given at least once, such as {_EXAMPLE}, got none: accuracy under attack "
                "means nothing without a norm and a radius."
            )
        for text in value:
            if text.count(":") > 1:
                raise ValueError(
                    f"`--threat` must be norm:radius for evaluate, got {quoted(text)}."
                )
        texts.check_positive(texts.threats(value))
        return value

    @field_validator("transforms")
    @classmethod
    def _are_transforms(cls, value: list[str]) -> list[str]:
        texts.transforms(value)
        return value

    def _line(self) -> tuple[list[str], dict[str, object]]:
        words, flags = super()._line()
        if len(self.models) == 1:  # named without a flag
            del flags["models"]
            words = [*words, *self.models]
        return words, flags
