"""What all settings have in common: types, files, complaints, and the line that repeats a run.

A field is a flag with dashes for underscores, and its description is the help text. Nothing here imports torch,
so that `--help` answers at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from saddlepoint.runs import rule_words, texts
from saddlepoint.runs.model_words import default_data, is_code, parse
from saddlepoint.runs.plain import quoted
from saddlepoint.runs.settings.unique_keys import UniqueKeys, settings_in, why_not_yaml

__all__ = [
    "Classes",
    "Crop",
    "Data",
    "Device",
    "Limit",
    "Mean",
    "Names",
    "Number",
    "Precisions",
    "Settings",
    "Size",
    "Split",
    "Std",
    "Threats",
    "check_weights",
    "with_data",
]


def _names(value: object) -> object:
    return texts.split(value) if isinstance(value, str) else value


def _number(value: object) -> object:
    return texts.number(value) if isinstance(value, str) else value


def _joined(value: object) -> object:
    """Numbers in a YAML file, as they are written on the command line."""
    listed = _items(value)
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in listed)
    return ",".join(map(str, listed)) if numbers else value


Names = Annotated[list[str], BeforeValidator(_names)]
"""Words separated by commas."""
Number = Annotated[float, BeforeValidator(_number)]
"""A number, also as a fraction such as 8/255."""

# What several commands take, and what it means in all of them.
Data = Annotated[
    str,
    Field(
        description="mnist, cifar10, fashion-mnist, mnist-sample, cifar10-sample, a folder with one folder of "
        "images per class, a file.npz with `images` and `labels`, or a data set of torch in your code: "
        "file.py:dataset or package.module:dataset. [default: the sample of the first model's data set, else "
        "mnist-sample]"
    ),
]
Classes = Annotated[
    str | None,
    Field(
        description="Classes of your own data in the order of the logits: names separated by commas, or a file "
        "with one per line. [default: classes.txt in the folder, else the names of its folders, numbers as "
        "numbers]"
    ),
]
Size = Annotated[
    int | None,
    Field(
        ge=1,
        description="Resize the images to size x size: shorter side, then the centre. [default: for pictures "
        "of a folder that are larger or of several sizes what the models were made for, where timm, "
        "torchvision, an image processor of transformers or a card says it; else as they are]",
    ),
]
Crop = Annotated[
    Number,
    Field(
        gt=0,
        le=1,
        description="How much of the shorter side --size keeps: 0.875 resizes it to 256 for --size 224. "
        "[default: 1, or what the models were made for where --size is theirs]",
    ),
]
Mean = Annotated[
    str | None,
    BeforeValidator(_joined),
    Field(
        description="What the models subtract from pixels in [0, 1], one number or one per channel: "
        "0.485,0.456,0.406; or the name of a mean and std: imagenet, half, clip, cifar10, cifar100, svhn, "
        "mnist, fashion-mnist. Networks of the package normalise inside; timm, torchvision and transformers, "
        "and cards of trainings, know their own. For models that want different ones an entry each: "
        "own,cifar10, or numbers with semicolons between models. [default: nothing]"
    ),
]
Std = Annotated[
    str | None,
    BeforeValidator(_joined),
    Field(description="What the models then divide by, such as 0.229,0.224,0.225; see --mean."),
]
Split = Annotated[
    Literal["test", "train"] | None,
    Field(
        description="test or train images of a named data set or of code that takes `split`; of your own data "
        "and of samples the fifth that `saddlepoint train` sets aside, or the others. [default: test of what "
        "has both, else all]"
    ),
]
_LIMIT = "Use the first so many images; of a folder, from the classes in turn."
Limit = Annotated[int | None, Field(ge=1, description=_LIMIT)]
Device = Annotated[str, Field(description="cpu, gpu, cuda, cuda:1, mps.")]
Precisions = Annotated[
    list[
        Literal[
            "float32",
            "bfloat16",
            "float16",
            "float32+channels_last",
            "bfloat16+channels_last",
            "auto",
        ]
    ],
    BeforeValidator(_names),
    Field(
        min_length=1,
        description="What the models compute in while our attacks search: float32, bfloat16, float16, or auto, "
        "which measures what is faster; float32+channels_last and bfloat16+channels_last have another layout "
        "of the parameters too. One word for all models, or one for each, separated by commas. Verdicts are in "
        "full precision.",
    ),
]
Threats = Annotated[
    list[str],
    Field(
        description="Norm and radius, such as linf:0.3, l2:2.0, l1:10 or linf:8/255; give it once per threat."
    ),
]


# What pydantic says, in the words of the library.
_PLAINER = {"Input should be": "must be", "List should": "must"}
_PLAINER |= {"greater than or equal to": "at least", "less than or equal to": "at most"}


class Settings(BaseModel):
    """What decides the numbers of a run, whichever kind it is of."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: ClassVar[tuple[str, ...]] = ()
    """The command: "attack ensemble", "evaluate" or "train"."""
    always: ClassVar[tuple[str, ...]] = ("data",)
    """Settings that the line names even where they are the default."""
    examples: ClassVar[Mapping[str, str]] = {}
    """What a setting without a default could be."""
    demanded: ClassVar[Mapping[str, bool]] = {}
    """Whether the help says that a setting is required, where its default tells otherwise."""
    also: ClassVar[Mapping[str, str]] = {}
    """Other names of settings, by which other commands know them."""

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """Python takes True for 1, and pydantic 1 for True; a file that says so is mistaken."""
        truth = cls.model_fields[str(info.field_name)].annotation is bool
        if truth and not isinstance(value, bool):
            raise ValueError(f"`value` must be true or false, got {quoted(value)}.")
        if isinstance(value, bool) and not truth:
            raise ValueError(
                f"`value` must not be true or false, got {value}; put a word in quotation marks."
            )
        return value

    @classmethod
    def load(
        cls, flags: Mapping[str, Any], file: Path | None = None, *, trust: bool = False
    ) -> Self:
        """Settings from a YAML file and from flags, which override it.

        Args:
            flags: What was given on the command line; None means not given.
            file: YAML, or None.
            trust: Whether the file may name models and data that run code or are downloaded.

        Raises:
            ValueError: Something is missing, unknown or out of range.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        values = given if file is None else cls._merged(cls._read(file), given, file)
        try:
            settings = cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(cls._explain(error, values, given, file)) from error
        if file is not None and not trust:
            for name in ("models", "victims", "model", "data", "test_data"):
                if not given.keys() & {name, cls.also.get(name)}:
                    _check_words(name, _items(getattr(settings, name, [])), file)
        return settings

    def to_yaml(self, *without: str) -> str:
        """A file for --config that repeats the run."""
        shown = self.model_dump(exclude={*without})
        return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)

    def command(self, **more: object) -> str:
        """The line that repeats the run: settings that are not the default, and what is essential.

        Args:
            more: Flags that decide nothing about the numbers.
        """
        words, flags = self._line()
        return texts.line([*self.words, *words], {**flags, **more})

    def _line(self) -> tuple[list[str], dict[str, object]]:
        """Words without flags, and flags by name."""
        fields = type(self).model_fields.items()
        default = {name: field.get_default(call_default_factory=True) for name, field in fields}
        shown = {n: v for n, v in self if n in self.always or (n != "kind" and v != default[n])}
        # A threat is a flag of its own; other lists are joined by commas.
        return [], {n: tuple(v) if n == "threat" else v for n, v in shown.items()}

    @classmethod
    def _merged(cls, read: dict[str, Any], given: dict[str, Any], file: Path) -> dict[str, Any]:
        """A file and the flags that override it."""
        del file
        return {**read, **given}

    @classmethod
    def _read(cls, file: Path) -> dict[str, Any]:
        if not file.is_file():
            raise ValueError(f"`--config` must be a file that exists, got {str(file)!r}.")
        try:
            # Safe: the loader is SafeLoader, but for keys that come twice.
            found = yaml.load(file.read_text(encoding="utf-8"), UniqueKeys)
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            why = why_not_yaml(error)
            raise ValueError(f"`--config` {str(file)!r} must be YAML, got {why}.") from error
        values = settings_in(found, file)
        for name, value in values.items():
            if any(isinstance(each, dict | list) for each in _items(value)):
                raise ValueError(
                    f"{quoted(name)} must be a word, a number or a list of them (in {file}), got lists "
                    "or names inside it."
                )
        kind = cls.words[-1]
        if values.get("kind", kind) != kind:
            other = str(values["kind"])[:100]
            raise ValueError(  # files of attacks alone name their kind
                f"`--config` must be for {kind}, got one for {other}; use `saddlepoint attack {other}`."
            )
        return values

    @classmethod
    def _explain(
        cls,
        error: ValidationError,
        values: Mapping[str, Any],
        flags: Mapping[str, Any],
        file: Path | None,
    ) -> str:
        """The first complaint as one line: name, requirement, value, and where the value came from."""
        # A name that is nearly right comes before one that is missing because of it.
        first = min(error.errors(), key=lambda each: each["type"] == "missing")
        name = str(first["loc"][0]) if first["loc"] else ""
        flag = f"`--{name.replace('_', '-')}`"
        source = f" (in {file})" if file is not None and name and name not in flags else ""
        if first["type"] == "missing":
            return f"{flag} must be given, {cls._example(name, values)}."
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name.lower().replace("-", "_"), cls.model_fields, n=1)
            meant = f"did you mean {near[0]}?" if near else "--print-config and --help name them."
            return f"`{name[:100]}` must be a known setting{source}; {meant}"
        message = str(first["msg"]).removeprefix("Value error, ")
        if message.startswith("`"):
            own = {n: f"--{n.replace('_', '-')}" for n in cls.model_fields} | {"value": flag[1:-1]}
            return texts.renamed(message, own).removesuffix(".") + source + "."
        for words, ours in _PLAINER.items():
            message = message.replace(words, ours)
        return f"{flag} {message[0].lower()}{message[1:]}, got {quoted(first['input'])}{source}."

    @classmethod
    def _example(cls, name: str, values: Mapping[str, Any]) -> str:
        """What a setting that is missing could be."""
        del values
        return cls.examples.get(name, "see --help")


def with_data(values: dict[str, Any]) -> dict[str, Any]:
    """Settings with the data that is meant where none is named."""
    if values.get("data") is not None:
        return values
    models = _names(values.get("models") or [])
    return {**values, "data": default_data(models if isinstance(models, list) else [])}


def check_weights(text: str, domains: int, flag: str = "--rule") -> None:
    """Refuse a rule with weights for another number of domains.

    Example:
        >>> check_weights("fixed:0.5,0.5", 3)
        Traceback (most recent call last):
        ValueError: `--rule` must have one entry per domain, K = 3, got 2.
    """
    import torch

    try:
        rule_words.rule(text).init(torch.zeros(1, domains))
    except ValueError as error:
        raise ValueError(texts.renamed(str(error), {"weights": flag})) from error


def _items(value: object) -> list[object]:
    """What a list holds, or the one value."""
    return list(value) if isinstance(value, list) else [value]


def _check_words(name: str, words: list[object], file: Path) -> None:
    """Refuse what a file of settings, which may come from anybody, may not decide for the user."""
    for word in map(str, words):
        try:  # words of data are not those of models: `hf:make` is code there
            risk = "runs code" * is_code(word) if "data" in name else parse(word).risk
        except ValueError:  # refused elsewhere
            continue
        if risk:
            raise ValueError(
                f"`--trust` must be given for {file}: its {name} {word!r} {risk}; name it with "
                f"--{name.replace('_', '-')}, or trust the file if you know where it comes from."
            )
