"""What all settings have in common: types, files, complaints, and the line that repeats a run.

A field is a flag with dashes for underscores, and its description is the help text. Nothing here imports torch,
so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from saddlepoint.runs import texts

__all__ = [
    "Classes",
    "Data",
    "Device",
    "Limit",
    "Names",
    "Number",
    "Seed",
    "Settings",
    "Size",
    "Split",
    "Threats",
]


def _names(value: object) -> object:
    return texts.split(value) if isinstance(value, str) else value


def _number(value: object) -> object:
    return texts.number(value) if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_names)]
"""Words separated by commas."""
Number = Annotated[float, BeforeValidator(_number)]
"""A number, also as a fraction such as 8/255."""

# What several commands take, and what it means in all of them.
Data = Annotated[
    str,
    Field(
        description="mnist, cifar10, fashion-mnist, mnist-sample, cifar10-sample, a folder with one folder of "
        "images per class, or a file.npz with `images` and `labels`."
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
        description="Resize the images of a folder to size x size: shorter side, then the centre.",
    ),
]
Split = Annotated[
    Literal["test", "train"],
    Field(description="Which images of a named data set: test or train."),
]
Limit = Annotated[int | None, Field(ge=1, description="Use the first so many images.")]
Device = Annotated[str, Field(description="cpu, cuda, cuda:1, mps.")]
Seed = Annotated[int, Field(description="Of everything random.")]
Threats = Annotated[
    list[str],
    Field(
        description="Norm and radius, such as linf:0.3, l2:2.0, l1:10 or linf:8/255; give it once per threat."
    ),
]


# What pydantic says, in the words of the library.
_PLAINER = {
    "Input should be": "must be",
    "List should": "must",
    "greater than or equal to": "at least",
}


class Settings(BaseModel):
    """What decides the numbers of a run, whichever kind it is of."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    words: ClassVar[tuple[str, ...]] = ()
    """The command: "attack ensemble", "evaluate" or "train"."""
    always: ClassVar[tuple[str, ...]] = ("data",)
    """Settings that the line names even where they are the default."""
    examples: ClassVar[Mapping[str, str]] = {}
    """What a setting without a default could be."""

    @classmethod
    def load(cls, flags: Mapping[str, Any], file: Path | None = None) -> Self:
        """Settings from a YAML file and from flags, which override it.

        Args:
            flags: What was given on the command line; None means not given.
            file: YAML, or None.

        Raises:
            ValueError: Something is missing, unknown or out of range.
        """
        given = {name: value for name, value in flags.items() if value is not None}
        values = given if file is None else cls._merged(cls._read(file), given, file)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ValueError(cls._explain(error, values, given, file)) from error

    def to_yaml(self) -> str:
        """A file for --config that repeats the run."""
        return yaml.safe_dump(self.model_dump(), sort_keys=False, allow_unicode=True)

    def command(self, out: Path | None = None, **more: object) -> str:
        """The line that repeats the run: settings that are not the default, and what is essential.

        Args:
            out: The folder, to name it too.
            more: Flags that decide nothing about the numbers.
        """
        words, flags = self._line()
        return texts.line([*self.words, *words], {**flags, **more, "out": out})

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
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"`--config` must be YAML, got {str(file)!r}: {reason}.") from error
        if not isinstance(values, dict):
            raise ValueError(f"`--config` must hold settings as `name: value`, got {str(file)!r}.")
        kind = cls.words[-1]
        if values.get("kind", kind) != kind:
            line = " ".join(("saddlepoint", *cls.words[:-1], str(values["kind"])))
            raise ValueError(
                f"`--config` must be for {kind}, got one for {values['kind']}; use `{line}`."
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
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        flag = f"`--{name.replace('_', '-')}`"
        source = f" (in {file})" if file is not None and name and name not in flags else ""
        if first["type"] == "missing":
            return f"{flag} must be given, {cls._example(name, values)}."
        if first["type"] == "extra_forbidden":
            known = ", ".join(cls.model_fields)
            return f"`{name}` must be a known setting{source}, such as {known}."
        message = str(first["msg"]).removeprefix("Value error, ")
        if message.startswith("`"):
            return message.replace("`value`", flag) + source
        for words, ours in _PLAINER.items():
            message = message.replace(words, ours)
        return f"{flag} {message[0].lower()}{message[1:]}, got {first['input']!r}{source}."

    @classmethod
    def _example(cls, name: str, values: Mapping[str, Any]) -> str:
        """What a setting that is missing could be."""
        del values
        return cls.examples.get(name, "see --help")
