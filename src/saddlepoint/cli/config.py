"""The settings of an attack: checked by pydantic, read from YAML and flags, written back as either."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from . import parse
from .errors import UsageError

__all__ = ["KINDS", "AttackConfig", "EnsembleConfig", "TransformConfig", "UniversalConfig", "load"]

# The radii of the paper (Tables 1 and 3), for data of the same name.
_PAPER_EPS = {
    "mnist": {"linf": 0.2, "l2": 3.0, "l1": 20.0, "l0": 30.0},
    "cifar10": {"linf": 0.05, "l2": 2.0, "l1": 30.0, "l0": 50.0},
}
# Step sizes of the paper for `apgda`.
_PAPER_STEP = {"linf": 1 / 4, "l2": 1 / 10, "l1": 1 / 4, "l0": 1.0}


def _names(value: object) -> object:
    return parse.split(value) if isinstance(value, str) else value


def _number(value: object) -> object:
    return parse.number(value) if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_names)]
Number = Annotated[float, BeforeValidator(_number)]


class AttackConfig(BaseModel):
    """What all attacks have in common. Field names are the flags, with dashes for underscores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    data: str = "mnist-sample"
    models: Names = Field(min_length=1)
    norm: Literal["linf", "l2", "l1", "l0"] = "linf"
    eps: Number = Field(gt=0)
    rule: str = "minmax"
    baseline: str | None = None
    loss: str = "cw"
    steps: int = Field(default=50, ge=0)
    method: Literal["attack", "apgda"] = "attack"
    restarts: int = Field(default=1, ge=1)
    step_size: Number | None = Field(default=None, gt=0)
    quantize: int | None = Field(default=None, ge=2)
    split: Literal["test", "train"] = "test"
    limit: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=64, ge=1)
    device: str = "cpu"
    seed: int = 0

    @model_validator(mode="before")
    @classmethod
    def _paper_radius(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("eps") is None:
            data = str(values.get("data", cls.model_fields["data"].default))
            known = _PAPER_EPS.get(data.removesuffix("-sample"), {})
            eps = known.get(str(values.get("norm", "linf")))
            if eps is not None:
                return {**values, "eps": eps}
        return values

    @field_validator("rule", "baseline")
    @classmethod
    def _is_rule(cls, value: str | None) -> str | None:
        if value is not None:
            parse.rule(value)
        return value

    @field_validator("loss")
    @classmethod
    def _is_loss(cls, value: str) -> str:
        parse.loss(value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.method == "attack" and self.step_size is not None:
            raise ValueError(
                "`step_size` must be left out with --method attack, which has none to tune."
            )
        if self.method == "apgda" and (self.restarts > 1 or self.quantize is not None):
            raise ValueError("`restarts` and `quantize` must be left out with --method apgda.")
        return self

    @property
    def apgda_step_size(self) -> float:
        """The step size given, or the paper's for the norm."""
        return _PAPER_STEP[self.norm] if self.step_size is None else self.step_size

    def to_yaml(self) -> str:
        """A file for --config that repeats the run."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)

    def command(self, out: Path | None = None) -> str:
        """The line that repeats the run: settings that are not the default, and what is essential."""
        words = ["saddlepoint", "attack", self.kind]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            essential = name in ("data", "models", "norm", "eps", "rule")
            if name == "kind" or value is None or (value == field.get_default() and not essential):
                continue
            if isinstance(value, bool):
                words.append(f"--{name.replace('_', '-')}")
                continue
            text = ",".join(value) if isinstance(value, list) else _text(value)
            words += [f"--{name.replace('_', '-')}", text]
        return shlex.join(words + (["--out", str(out)] if out is not None else []))


class EnsembleConfig(AttackConfig):
    """One image against several models."""

    kind: Literal["ensemble"] = "ensemble"


class UniversalConfig(AttackConfig):
    """One perturbation for groups of images."""

    kind: Literal["universal"] = "universal"
    steps: int = Field(default=20, ge=0)
    group_size: int = Field(default=5, ge=1)
    by_class: bool = False
    box: Literal["intersection", "clip"] = "intersection"

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if len(self.models) != 1:
            raise ValueError(f"`models` must name one model for universal, got {len(self.models)}.")
        return self


class TransformConfig(AttackConfig):
    """One image seen through transformations, by one model or several."""

    kind: Literal["transform"] = "transform"
    steps: int = Field(default=20, ge=0)
    transforms: Names = Field(default=["paper"], min_length=1)
    samples: int = Field(default=1, ge=1)

    @field_validator("transforms")
    @classmethod
    def _are_transforms(cls, value: list[str]) -> list[str]:
        parse.transforms(value)
        return value


KINDS: Mapping[str, type[AttackConfig]] = {
    "ensemble": EnsembleConfig,
    "universal": UniversalConfig,
    "transform": TransformConfig,
}


def _text(value: object) -> str:
    """A value as it is written on the command line: radii of 8-bit images as fractions."""
    levels = round(value * 255) if isinstance(value, float) else 0
    exact = 0 < levels < 50 and isinstance(value, float) and value == levels / 255
    return f"{levels}/255" if exact else str(value)


def load(kind: str, flags: Mapping[str, Any], file: Path | None) -> AttackConfig:
    """Settings from a file and from flags, which override it.

    Args:
        kind: "ensemble", "universal" or "transform".
        flags: What was given on the command line; None means not given.
        file: YAML, or None.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    values = {**(_read(kind, file) if file is not None else {}), **given}
    try:
        return KINDS[kind].model_validate(values)
    except ValidationError as error:
        raise UsageError(_explain(error, given, file)) from error


def _read(kind: str, file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise UsageError(f"`--config` must be a file that exists, got {str(file)!r}.")
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"`--config` must be YAML, got {str(file)!r}: {reason}.") from error
    if not isinstance(values, dict):
        raise UsageError(f"`--config` must hold settings as `name: value`, got {str(file)!r}.")
    if values.get("kind", kind) != kind:
        raise UsageError(
            f"`--config` must be for {kind}, got one for {values['kind']}; "
            f"use `saddlepoint attack {values['kind']}`."
        )
    return values


def _explain(error: ValidationError, flags: Mapping[str, Any], file: Path | None) -> str:
    """The first complaint as one line: name, requirement, value, and where the value came from."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    flag = f"`--{name.replace('_', '-')}`"
    source = f" (in {file})" if file is not None and name and name not in flags else ""
    if first["type"] == "missing":
        example = {"models": "such as --models A,C,D", "eps": "such as --eps 8/255"}
        return f"{flag} must be given, {example.get(name, 'see --help')}."
    if first["type"] == "extra_forbidden":
        known = ", ".join(KINDS["ensemble"].model_fields)
        return f"`{name}` must be a known setting{source}, such as {known}."
    message = str(first["msg"]).removeprefix("Value error, ")
    if message.startswith("`"):
        return message.replace("`value`", flag) + source
    message = message.replace("Input should be", "must be").replace("List should have", "must have")
    return f"{flag} {message[0].lower()}{message[1:]}, got {first['input']!r}{source}."
