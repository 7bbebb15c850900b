"""The settings of an attack: checked by pydantic, read from YAML and flags, written back as either."""

import shlex
from collections.abc import Mapping
from contextlib import suppress
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
from pydantic_core import PydanticUndefined

from saddlepoint import paper

from . import parse
from .errors import UsageError
from .inputs import check_name

__all__ = ["KINDS", "AttackConfig", "EnsembleConfig", "TransformConfig", "UniversalConfig", "load"]


def _names(value: object) -> object:
    return parse.split(value) if isinstance(value, str) else value


def _number(value: object) -> object:
    return parse.number(value) if isinstance(value, str) else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_names)]
Number = Annotated[float, BeforeValidator(_number)]


class AttackConfig(BaseModel):
    """What all attacks have in common. Field names are the flags, with dashes for underscores."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["ensemble", "universal", "transform"]
    data: str = "mnist-sample"
    classes: str | None = None
    size: int | None = Field(default=None, ge=1)
    models: Names = Field(min_length=1)
    norm: Annotated[Literal["linf", "l2", "l1", "l0"], BeforeValidator(_lower)] = "linf"
    eps: Number = Field(gt=0)
    rule: str = "minmax"
    baseline: str | None = None
    loss: str = "cw"
    labels: Literal["true", "predicted"] = "true"
    steps: int = Field(default=paper.STEPS["ensemble"], ge=1)
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
    def _with_every_number(cls, values: Any) -> Any:
        """Radius, step sizes and gamma that are not given, so that the record shows what was used.

        The radius is the paper's, and for its algorithm, `apgda`, so is all else, where the paper has it for
        this kind of attack, data and norm. Rules take the library's numbers otherwise.
        """
        if not isinstance(values, dict):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        known = {**{name: field.default for name, field in cls.model_fields.items()}, **given}
        found = _parameters(known)
        if found is not None:
            given.setdefault("step_size", found.alpha)
        numbers = _rule_numbers(found)
        for name in ("rule", "baseline"):
            # What is no rule is left for `_is_rule` to refuse, which knows where it came from.
            with suppress(ValueError):
                if isinstance(known[name], str):
                    given[name] = parse.full_rule(known[name], numbers)
        eps = _radius(known)
        if eps is not None:
            given.setdefault("eps", eps)
        return given

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
        parse.check_radius(self.norm, self.eps)
        if self.method == "attack" and self.step_size is not None:
            raise ValueError(
                "`step_size` must be left out with --method attack, which has none to tune."
            )
        if self.method == "apgda" and (self.restarts > 1 or self.quantize is not None):
            raise ValueError("`restarts` and `quantize` must be left out with --method apgda.")
        if self.method == "apgda" and self.step_size is None:
            raise ValueError(
                f"`--step-size` must be given with --method apgda, such as --step-size 1/4: "
                f"{_not_in_paper(self.kind, self.data, self.norm)}."
            )
        return self

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
            text = ",".join(value) if isinstance(value, list) else parse.written(value)
            words += [f"--{name.replace('_', '-')}", text]
        return shlex.join(words + (["--out", str(out)] if out is not None else []))


class EnsembleConfig(AttackConfig):
    """One image against several models."""

    kind: Literal["ensemble"] = "ensemble"


class UniversalConfig(AttackConfig):
    """One perturbation for groups of images."""

    kind: Literal["universal"] = "universal"
    steps: int = Field(default=paper.STEPS["universal"], ge=1)
    group_size: int = Field(default=5, ge=1)
    by_class: bool = False
    box: Literal["intersection", "clip"] = "intersection"

    @field_validator("models")
    @classmethod
    def _one_model(cls, value: list[str]) -> list[str]:
        if len(value) != 1:
            raise ValueError(f"`models` must name one model for universal, got {len(value)}.")
        return value


class TransformConfig(AttackConfig):
    """One image seen through transformations, by one model or several."""

    kind: Literal["transform"] = "transform"
    steps: int = Field(default=paper.STEPS["transform"], ge=1)
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


def _not_in_paper(kind: str, data: str, norm: str) -> str:
    return f"the paper has none for {kind} attacks on {data} within {norm}"


def _case(known: Mapping[str, Any]) -> tuple[str, str, str]:
    """Kind of attack, data and norm, by which the paper's numbers are found."""
    kind, data, norm = (str(known[name]) for name in ("kind", "data", "norm"))
    return kind, data.removesuffix("-sample"), norm.lower()


def _parameters(known: Mapping[str, Any]) -> paper.Parameters | None:
    return paper.parameters(*_case(known)) if known["method"] == "apgda" else None


def _rule_numbers(found: paper.Parameters | None) -> dict[str, float]:
    return {} if found is None else {"step_size": found.beta, "gamma": found.gamma}


def _radius(known: Mapping[str, Any]) -> float | None:
    case = _case(known)
    return paper.radius(*case, _letters(known.get("models"), case[1]))


def _letters(models: object, data: str) -> list[str]:
    """The networks of the paper among the models, which are called A or mnist-a."""
    names = parse.split(models) if isinstance(models, str) else models
    if not isinstance(names, list):
        return []
    short = (str(name).removeprefix(f"{data}-") for name in names)
    return [name.upper() for name in short if len(name) == 1]


def load(kind: str, flags: Mapping[str, Any], file: Path | None) -> AttackConfig:
    """Settings from a file and from flags, which override it.

    Args:
        kind: "ensemble", "universal" or "transform".
        flags: What was given on the command line; None means not given.
        file: YAML, or None.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    values = given if file is None else _merged(kind, _read(kind, file), given, file)
    try:
        return KINDS[kind].model_validate(values)
    except ValidationError as error:
        raise UsageError(_explain(error, {"kind": kind, **values}, given, file)) from error


def _merged(kind: str, read: dict[str, Any], given: dict[str, Any], file: Path) -> dict[str, Any]:
    """A file and the flags that override it, without numbers of the file that the flags make wrong.

    What `--print-config` filled in for one kind of data, norm or method is found anew for another.
    """
    defaults = {name: field.default for name, field in KINDS[kind].model_fields.items()}
    before = {**defaults, **read, "kind": kind}
    after = {**before, **given}
    kept = dict(read)
    with suppress(ValueError):  # what is no number is refused later, by name
        _check_radius_of_file(before, after, given, file)
    found = _parameters(before)
    if found is not None and read.get("step_size") == found.alpha:
        del kept["step_size"]
    for name in ("rule", "baseline"):
        with suppress(ValueError):
            bare = str(read.get(name)).partition(":")[0]
            if parse.full_rule(bare, _rule_numbers(found)) == read.get(name):
                kept[name] = bare
    if given.get("method") == "attack" and kept.pop("step_size", None) is not None:
        from . import show

        show.note(f"step_size of {file} is left out: --method attack has none to tune", quiet=False)
    return {**kept, **given}


def _check_radius_of_file(
    before: Mapping[str, Any], after: Mapping[str, Any], given: Mapping[str, Any], file: Path
) -> None:
    """Refuse the radius of a file for another norm, and the paper's for what it has another one for."""
    if "eps" in given or before.get("eps") in (None, PydanticUndefined):
        return
    others = [n for n in ("data", "models", "norm") if n in given and after[n] != before[n]]
    old, new, eps = _radius(before), _radius(after), parse.number(before["eps"])
    if _case(before)[2] != _case(after)[2] or (eps == old and new != old):
        flags = " and ".join(f"--{name} {_text(after[name])}" for name in others)
        was = ", ".join(_text(before[name]) for name in others)
        raise UsageError(
            f"`--eps` must be given with {flags}: the {parse.written(eps)} in {file} is for {was}."
        )


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


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


def _explain(
    error: ValidationError, values: Mapping[str, Any], flags: Mapping[str, Any], file: Path | None
) -> str:
    """The first complaint as one line: name, requirement, value, and where the value came from."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    flag = f"`--{name.replace('_', '-')}`"
    source = f" (in {file})" if file is not None and name and name not in flags else ""
    if first["type"] == "missing" and name == "eps":
        data, norm = (values.get(n, AttackConfig.model_fields[n].default) for n in ("data", "norm"))
        check_name(data)
        reason = _not_in_paper(values["kind"], data, norm)
        return f"`--eps` must be given, such as --eps 8/255: {reason}."
    if first["type"] == "missing":
        example = "such as --models A,C,D" if name == "models" else "see --help"
        return f"{flag} must be given, {example}."
    if first["type"] == "extra_forbidden":
        known = ", ".join(KINDS["ensemble"].model_fields)
        return f"`{name}` must be a known setting{source}, such as {known}."
    message = str(first["msg"]).removeprefix("Value error, ")
    if message.startswith("`"):
        return message.replace("`value`", flag) + source
    message = message.replace("Input should be", "must be").replace("List should have", "must have")
    return f"{flag} {message[0].lower()}{message[1:]}, got {first['input']!r}{source}."
