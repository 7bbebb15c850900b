"""Templates of ours, filled in: no network, no code but ours, every value escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from saddlepoint.display import distance_text, radius_text
from saddlepoint.runs.plain import printable

__all__ = ["render_template"]

# Names of classes and models may hold what is no sign: commands of terminals, turns of the direction of text.
_TURNS = (0x061C, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LETTERS = map(chr, (*range(160), *_TURNS))
_CONTROLS = {ord(each): " " for each in _LETTERS if not each.isprintable() and each not in "\n\t"}


def render_template(name: str, **values: Any) -> str:
    """A template of ours with our style and script; the policy in its head allows no other code."""
    script = _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = (
        _environment()
        .get_template(name)
        .render(
            style=Markup(_asset("report.css")),
            script=Markup(script),
            policy=(
                "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
                f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
            ),
            **values,
        )
    )
    return text.translate(_CONTROLS) + "\n"


@cache
def _environment() -> Environment:
    # Everything is escaped; what is not is marked so in Python, in `charts` and here.
    made = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["printable"] = printable  # for JSON, which writes control characters in letters
    made.filters |= {"radius": radius_text, "distance": distance_text, "prose": _prose}
    return made


def _prose(sentence: str) -> str:
    """A sentence that breaks between no number and its percent sign."""
    return sentence.replace(" %", "\xa0%")


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")
