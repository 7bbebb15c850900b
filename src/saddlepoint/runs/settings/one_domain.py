"""What an attack on one domain takes where nothing is said: the defaults of `saddlepoint.attack`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from saddlepoint.runs import texts

if TYPE_CHECKING:
    from saddlepoint.runs.record import Run
    from saddlepoint.runs.settings.attack_settings import AttackSettings

__all__ = [
    "LOSSES",
    "Restarts",
    "Steps",
    "as_begun",
    "as_usual",
    "not_said",
    "said",
    "usual",
    "with_usual",
]

_TOGETHER = ("loss",), ("steps", "restarts")
"""Defaults: steps and restarts are left out together, or what is left out is that of several domains."""

LOSSES = (
    "cw, cross-entropy, soft-margin (which goes the same way and is never flat), dlr, or clipped:THRESHOLD, "
    "the C&W margin by which a domain is fooled enough and stops pulling: clipped:0 or clipped:-10."
)
Steps = Annotated[
    int,
    Field(
        ge=1,
        description="Updates in every restart. With one model, image or view alone, if neither this nor "
        "--restarts, --evaluations or --keep-going is given, 25 in each of two restarts.",
    ),
]
Restarts = Annotated[
    int,
    Field(
        ge=1,
        description="Of rows that are not fooled yet, with --method attack; 1 attacks every row once. With one "
        "model, image or view alone 2, see --steps.",
    ),
]


def usual(settings: AttackSettings) -> dict[str, Any]:
    """Loss, steps and restarts of an attack on one domain, where nothing is said; nothing for other attacks.

    Patches have numbers of their own.
    """
    exact = settings.method == "attack" and settings.gradient is None
    if not exact or settings.kind == "patch" or settings.num_domains != 1:
        return {}
    from saddlepoint.solver.schedule import ALONE

    names = (name for name in texts.LOSSES if ":" not in name)
    loss = {"loss": next(name for name in names if texts.loss(name) is ALONE.loss)}
    if settings.evaluations is not None or settings.keep_going:
        return loss
    return {**loss, "steps": ALONE.steps, "restarts": ALONE.restarts}


def with_usual(settings: AttackSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """What `settings`, made of what is `given`, have to take in place of the defaults of their fields."""
    found = usual(settings)
    open_ = [names for names in _TOGETHER if not any(given.get(n) is not None for n in names)]
    return {name: found[name] for names in open_ for name in names if name in found}


def said(settings: AttackSettings) -> dict[str, Any]:
    """Flags of the line that repeats an attack on one domain: None for what it takes without being told."""
    found = usual(settings)
    flags: dict[str, Any] = {}
    for names in _TOGETHER:
        values = {name: getattr(settings, name) for name in names if name in found}
        same = all(value == found[name] for name, value in values.items())
        flags |= dict.fromkeys(values) if same else values
    return flags


def as_usual(run: Run) -> dict[str, str]:
    """What an attack took because nothing was said, as "usual", however many domains there are.

    So that one model can be compared with several, each attacked as it is by default.
    """
    from saddlepoint.runs.reading import settings_of
    from saddlepoint.runs.settings.attack_settings import AttackSettings

    settings = settings_of(run, AttackSettings)
    fields, found = type(settings).model_fields, usual(settings)
    follows = {name: found.get(name, fields[name].default) for group in _TOGETHER for name in group}
    return {
        name: "usual"
        for group in _TOGETHER
        for name in group
        if all(getattr(settings, n) == follows[n] for n in group)
    }


def not_said(
    kind: type[AttackSettings], read: Mapping[str, Any], given: Mapping[str, Any]
) -> list[str]:
    """Settings of a file that are what follows from the others in it, so that flags may make them others."""
    names = [name for group in _TOGETHER for name in group]
    known = {**given, **read}
    with suppress(ValueError):  # which is told where the file is used
        written = kind.model_validate(known)
        free = kind.model_validate({n: v for n, v in known.items() if n not in names})
        return [
            name
            for group in _TOGETHER
            for name in group
            if all(getattr(written, n) == getattr(free, n) for n in group)
        ]
    return []


def as_begun(flags: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Flags with what the run in a folder, which is to be continued, took where they say nothing.

    Runs of one model were begun with the defaults of several before they had their own.
    """
    from saddlepoint.runs.preparing import begun_with

    follow = flags.get("evaluations") is not None or flags.get("gradient") is not None
    names = [name for group in _TOGETHER[: 1 if follow else 2] for name in group]
    open_ = [name for name in names if flags.get(name) is None]
    return {**flags, **{name: begun_with(folder, name, None) for name in open_}}
