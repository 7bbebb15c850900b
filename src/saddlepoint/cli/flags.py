"""Flags of the command line: those of the settings, made from them, and those that all runs share."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from cyclopts import Parameter
from pydantic import BeforeValidator

from saddlepoint.runs.settings import Settings

from .errors import UsageError

if TYPE_CHECKING:
    from saddlepoint.runs import Run

__all__ = ["Flag", "ImagesRunning", "Running", "check_models", "given", "takes"]

Flag = Annotated[bool, Parameter(negative=())]
Command = TypeVar("Command", bound=Callable[..., int])


@Parameter(name="*")
@dataclass(kw_only=True)
class Running:
    """What decides where things go and how much is said."""

    out: Path | None = None
    """Folder for run.json, tensors.safetensors, report.html and what else comes out. [default: a new one in
    runs]"""
    resume: Flag = False
    """Continue the run in --out, if there is one."""
    overwrite: Flag = False
    """Replace the run in --out."""
    quiet: Flag = False
    """Print errors only."""
    json: Flag = False
    """Print the metrics as JSON."""
    config: Path | None = None
    """YAML file with settings; flags override it."""
    print_config: Flag = False
    """Print the settings as YAML and stop."""
    trust: Flag = False
    """Load TorchScript files, which are code of their authors, and models that run code or are downloaded
    because a --config file names them."""

    def flags(self) -> dict[str, object]:
        """Those that the line names which repeats the run."""
        return {"trust": self.trust}

    def lost(self, run: "Run") -> str:
        """What of a run that was stopped has to be done again, if that has to be said."""
        del run
        return ""


@Parameter(name="*")
@dataclass(kw_only=True)
class ImagesRunning(Running):
    """The same for runs that find adversarial images."""

    save_images: Path | None = None
    """A new folder for the adversarial images as 8-bit PNG, one folder per class, which --data can read; the
    models are asked again about what is read back."""


def takes(settings: type[Settings]) -> Callable[[Command], Command]:
    """A command whose argument `settings` are the flags of these settings, None where one is not given."""

    def decorate(command: Command) -> Command:
        command.__annotations__["settings"] = _flags(settings) | None
        return command

    return decorate


def check_models(flags: Mapping[str, Any], *named: str) -> None:
    """Refuse at once files that are not there and names they do not have, see `check_there`.

    Args:
        flags: Of the command, by name.
        named: Models that are named without a flag.
    """
    from saddlepoint.runs.model_words import check_there
    from saddlepoint.runs.texts import renamed, split

    words = {"MODEL": list(named)}
    words |= {f"--{name}": split(flags.get(name) or "") for name in ("models", "model", "victims")}
    for flag, models in words.items():
        try:
            check_there(models)
        except ValueError as error:
            raise UsageError(renamed(str(error), {"--models": flag})) from error


def given(settings: Any) -> dict[str, Any]:
    """The flags of a command by name, as `Settings.load` takes them."""
    return {} if settings is None else asdict(settings)


def _flags(settings: type[Settings]) -> Any:
    """The fields of settings as flags, none of them required: a file may have them."""
    fields: list[tuple[str, Any, Any]] = []
    for name, info in settings.model_fields.items():
        if name == "kind":
            continue
        text = any(isinstance(each, BeforeValidator) for each in info.metadata)
        kinds = [k for k in (bool, int) if info.annotation in (k, k | None)]
        kind: Any = list[str] if name == "threat" else (kinds[0] if kinds and not text else str)
        required = settings.demanded.get(name, info.is_required())
        named = [name, settings.also[name]] if name in settings.also else [name]
        flags = [f"--{each.replace('_', '-')}" for each in named]
        flag = Parameter(flags, help=_help(info, required=required), negative=())
        fields.append((name, Annotated[kind | None, flag], field(default=None)))
    # Without a module of its own it would count as one of Python's types, which have no flags.
    home = {"__module__": __name__}
    made = make_dataclass(f"{settings.__name__}Flags", fields, kw_only=True, namespace=home)
    return Parameter(name="*")(made)


def _help(info: Any, *, required: bool) -> str:
    """What a setting is, and its default."""
    text = str(info.description)
    if required:
        return f"{text} [required]"
    default = None if info.is_required() else info.get_default()
    if default is None or isinstance(default, bool) or default == [] or "[default" in text:
        return text
    shown = ",".join(default) if isinstance(default, list) else default
    return f"{text} [default: {shown}]"
