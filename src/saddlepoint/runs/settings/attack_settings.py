"""The settings of an attack, with the paper's numbers where nothing else is said."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    field_validator,
    model_validator,
)

from saddlepoint import paper
from saddlepoint.runs import rule_words, texts
from saddlepoint.runs.attack_words import HELP as GRADIENTS
from saddlepoint.runs.attack_words import (
    check_alone,
    check_unweighted,
    following,
    gradient,
    weighted,
)
from saddlepoint.runs.model_words import HELP
from saddlepoint.runs.settings.common import (
    Classes,
    Crop,
    Data,
    Device,
    Limit,
    Mean,
    Names,
    Number,
    Precisions,
    Settings,
    Size,
    Split,
    Std,
    check_weights,
    with_data,
)
from saddlepoint.runs.settings.one_domain import (
    LOSSES,
    Restarts,
    Steps,
    not_said,
    said,
    with_usual,
)
from saddlepoint.runs.settings.paper_numbers import (
    check_radius_given,
    check_radius_of_file,
    not_in_paper,
    parameters,
    radius,
    rule_numbers,
)
from saddlepoint.runs.settings.seeds import Seed

__all__ = [
    "AttackSettings",
    "EnsembleSettings",
    "UniversalSettings",
]


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class AttackSettings(Settings):
    """What all attacks have in common."""

    always: ClassVar[tuple[str, ...]] = ("data", "models", "norm", "eps", "rule")
    examples: ClassVar[Mapping[str, str]] = {"models": "such as --models A,C,D"}
    demanded: ClassVar[Mapping[str, bool]] = {"eps": False}

    kind: Literal["ensemble", "universal", "transform", "patch"]
    data: Data = "mnist-sample"
    classes: Classes = None
    size: Size = None
    crop: Crop = 1.0
    models: Names = Field(
        min_length=1,
        description=f"Separated by commas: {HELP}.",
    )
    victims: Names = Field(
        default=[],
        description="Models that the attack never asks, in the words of --models: when it is done, they are "
        "shown the perturbed images, and success on them is counted on its own; guide: docs/transfer.md.",
    )
    mean: Mean = None
    std: Std = None
    norm: Annotated[Literal["linf", "l2", "l1", "l0"], BeforeValidator(_lower)] = Field(
        default="linf", description="linf, l2, l1 or l0."
    )
    eps: Number = Field(
        gt=0,
        description="Radius, such as 0.2 or 8/255. [default: the paper's for this attack, MNIST or CIFAR-10, "
        "and norm; required where it has none]",
    )
    rule: str = Field(
        default="minmax",
        description="How the weights move: minmax, average, worst, entropic, fixed:0.2,0.1,0.4,0.3 (which sum "
        "to one); with options as in minmax:gamma=3,step_size=1/50 (auto is 0.4 over the number of domains). "
        "What is left out is the library's number, with --method apgda the paper's where it has one; "
        "--print-config shows it.",
    )
    baseline: str | None = Field(
        default=None, description="A rule to compare with, such as average."
    )
    loss: str = Field(
        default="cw",
        description=f"{LOSSES} [default: cw; with one model, image or view alone soft-margin]",
    )
    labels: Literal["true", "predicted"] = Field(
        default="true",
        description="true, or predicted, which attacks each model's own answers as the authors' code does; "
        "success is counted against the true classes in both.",
    )
    targeted: str | None = Field(
        default=None,
        description="Make every domain answer a class: its name or number, next (the one after the true one), "
        "or least-likely. Fooled is then what answers that class.",
    )
    steps: Steps = paper.STEPS["ensemble"]
    method: Literal["attack", "apgda"] = Field(
        default="attack",
        description="attack (strong and fast) or apgda (the paper's algorithm to the letter).",
    )
    restarts: Restarts = 1
    evaluations: int | None = Field(
        default=None,
        ge=1,
        description="The most evaluations of all domains that the search may spend on a row with --method "
        "attack, in place of --steps and --restarts, which then follow from it.",
    )
    gradient: str | None = Field(default=None, description=GRADIENTS)
    keep_going: bool = Field(
        default=False,
        description="Go on to the last step with images that fool every model already, which may help against "
        "--victims; with --method attack, which stops there otherwise.",
    )
    step_size: Number | None = Field(
        default=None,
        gt=0,
        description="Step size of --method apgda. [default: the paper's for this attack, MNIST or CIFAR-10, "
        "and norm; where it has none, this must be given]",
    )
    quantize: int | None = Field(
        default=None,
        ge=2,
        le=65536,
        description="256 keeps adversarial images 8-bit, so that they survive saving.",
    )
    split: Split = None
    limit: Limit = None
    batch_size: int = Field(default=64, ge=1, description="Rows between two saves.")
    device: Device = "cpu"
    precision: Precisions = Field(default=["float32"])
    seed: Seed = 0

    @model_validator(mode="before")
    @classmethod
    def _with_every_number(cls, values: Any) -> Any:
        """Radius, step sizes and gamma that are not given, so that the record shows what was used.

        The radius is the paper's, and for its algorithm, `apgda`, so is all else, where the paper has it for
        this kind of attack, data and norm. Rules take the library's numbers otherwise.
        """
        if not isinstance(values, dict):
            return values
        given = with_data({name: value for name, value in values.items() if value is not None})
        known = {**{name: field.default for name, field in cls.model_fields.items()}, **given}
        found = parameters(known)
        if found is not None:
            given.setdefault("step_size", found.alpha)
        numbers = rule_numbers(found)
        for name in ("rule", "baseline"):
            # What is no rule is left for `_is_rule` to refuse, which knows where it came from.
            with suppress(ValueError):
                if isinstance(known[name], str):
                    given[name] = rule_words.full_rule(known[name], numbers)
        eps = radius(known)
        if eps is not None:
            given.setdefault("eps", eps)
        return given

    @model_validator(mode="wrap")
    @classmethod
    def _alone(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Loss, steps and restarts of one domain, which differ from those of several."""
        settings = handler(values)
        more = with_usual(settings, values) if isinstance(values, dict) else {}
        return handler({**values, **more}) if more else settings

    @field_validator("rule", "baseline")
    @classmethod
    def _is_rule(cls, value: str | None) -> str | None:
        if value is not None:
            rule_words.rule(value)
        return value

    @field_validator("loss")
    @classmethod
    def _is_loss(cls, value: str) -> str:
        texts.loss(value)
        return value

    @field_validator("gradient")
    @classmethod
    def _is_gradient(cls, value: str | None) -> str | None:
        if value is not None:
            gradient(value)
        return value

    @property
    def num_domains(self) -> int:
        """How many models, images of a group, or views one perturbation is to fool."""
        return len(self.models)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        texts.check_radius(self.norm, self.eps)
        for name in ("rule", "baseline"):
            if (rule := getattr(self, name)) is not None:
                check_weights(rule, self.num_domains, f"--{name}")
        if self.targeted is not None and self.labels == "predicted":
            raise ValueError("`labels` must be true with --targeted, got predicted.")
        if self.method == "attack" and self.step_size is not None:
            raise ValueError(
                "`step_size` must be left out with --method attack, which has none to tune."
            )
        kept = (self.restarts, self.quantize, self.evaluations, self.keep_going, self.gradient)
        if self.method == "apgda" and kept != (1, None, None, False, None):
            raise ValueError(
                "`restarts`, `quantize`, `keep_going`, `gradient` and `evaluations` must be left out with "
                "--method apgda."
            )
        fields = type(self).model_fields
        check_alone(vars(self), {n: v for n, v in self if v != fields[n].default})
        check_unweighted(self.gradient, baseline=self.baseline)
        if self.method == "apgda" and self.step_size is None:
            raise ValueError(
                f"`--step-size` must be given with --method apgda, such as --step-size 1/4: "
                f"{not_in_paper(self.kind, self.data, self.norm)}."
            )
        return self

    @classmethod
    def load(
        cls, flags: Mapping[str, Any], file: Path | None = None, *, trust: bool = False
    ) -> Self:
        """As in `Settings.load`; what follows from a flag is refused even where it says the default."""
        if "kind" not in flags:  # a record has everything, defaults too
            check_alone(flags, flags)
        if file is None and cls.words[-1] != "patch":  # which may have any values
            check_radius_given(cls.words[-1], flags, cls.model_fields["norm"].default)
        settings = super().load(flags, file, trust=trust)
        if "kind" not in flags:  # a file may say the default, which --print-config writes
            usual = rule_words.full_rule(cls.model_fields["rule"].default, {})
            own = None if settings.rule == usual else settings.rule
            check_unweighted(settings.gradient, rule=flags.get("rule") or own)
        return settings

    def to_yaml(self, *without: str) -> str:
        """A file for --config that repeats the run, without what follows from evaluations or queries."""
        return super().to_yaml(*without, *following(vars(self)))

    def _line(self) -> tuple[list[str], dict[str, object]]:
        words, flags = super()._line()
        flags |= said(self)
        return words, flags if weighted(self.gradient) else {**flags, "rule": None}

    @classmethod
    def _merged(cls, read: dict[str, Any], given: dict[str, Any], file: Path) -> dict[str, Any]:
        """A file and the flags that override it, without numbers of the file that the flags make wrong.

        What `--print-config` filled in for one kind of data, norm or method is found anew for another.
        """
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        before = {**defaults, **read, "kind": cls.words[-1]}
        open_ = not_said(cls, read, given)
        kept = {name: value for name, value in read.items() if name not in open_}
        check_radius_of_file(before, {**before, **given}, given, file)
        found = parameters(before)
        if found is not None and read.get("step_size") == found.alpha:
            del kept["step_size"]
        for name in ("rule", "baseline"):
            with suppress(ValueError):
                bare = str(read.get(name)).partition(":")[0]
                if rule_words.full_rule(bare, rule_numbers(found)) == read.get(name):
                    kept[name] = bare
        if given.get("method") == "attack" and kept.pop("step_size", None) is not None:
            warnings.warn(
                f"step_size of {file} is left out: --method attack has none to tune.", stacklevel=3
            )
        return {**kept, **given}

    @classmethod
    def _example(cls, name: str, values: Mapping[str, Any]) -> str:
        if name != "eps":
            return super()._example(name, values)
        from saddlepoint.runs.materials import check_data

        data, norm = (str(values.get(n, cls.model_fields[n].default)) for n in ("data", "norm"))
        check_data(data)
        return f"such as --eps 8/255: {not_in_paper(cls.words[-1], data, norm)}"


class EnsembleSettings(AttackSettings):
    """One image against several models."""

    words: ClassVar[tuple[str, ...]] = ("attack", "ensemble")
    kind: Literal["ensemble"] = "ensemble"


class UniversalSettings(AttackSettings):
    """One perturbation for groups of images."""

    words: ClassVar[tuple[str, ...]] = ("attack", "universal")
    kind: Literal["universal"] = "universal"
    steps: Steps = paper.STEPS["universal"]
    group_size: int = Field(default=5, ge=1, description="Images per group.")
    by_class: bool = Field(default=False, description="Put images of one class only into a group.")
    box: Literal["intersection", "clip"] = Field(
        default="intersection",
        description="intersection keeps every perturbed image in range by the perturbation itself, clip clips "
        "each image.",
    )

    @property
    def num_domains(self) -> int:
        """Images per group."""
        return self.group_size

    @field_validator("models")
    @classmethod
    def _one_model(cls, value: list[str]) -> list[str]:
        if len(value) != 1:
            raise ValueError(f"`models` must name one model for universal, got {len(value)}.")
        return value
