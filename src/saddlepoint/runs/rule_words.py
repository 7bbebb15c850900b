"""Weight rules as text: the words of settings, the objects of the library, and what people call them.

Modules with torch in them are imported when they are needed, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from saddlepoint.runs.plain import quoted
from saddlepoint.runs.texts import number, options, split, written

if TYPE_CHECKING:
    from saddlepoint import AbstractWeightRule

__all__ = ["RULES", "fixed", "full_rule", "rule", "rule_name", "rule_of", "rule_text"]


class _Known(NamedTuple):
    """The name of its class, what people call it, and its options."""

    made: str
    words: str
    options: tuple[str, ...] = ()


_KNOWN: Mapping[str, _Known] = {
    "minmax": _Known("MinMax", "min-max", ("step_size", "gamma")),
    "average": _Known("Average", "average"),
    "worst": _Known("WorstCase", "worst case"),
    "entropic": _Known("Entropic", "entropic", ("step_size",)),
    "fixed": _Known("Fixed", "fixed weights"),
}
RULES = tuple(f"{name}:W1,W2,..." if name == "fixed" else name for name in _KNOWN)
"""How rules are written."""


def rule(text: str) -> AbstractWeightRule:
    """A weight rule: minmax, average, worst, entropic, fixed:0.2,0.8; with options minmax:gamma=3.

    Example:
        >>> rule("minmax:gamma=5,step_size=1/100")
        MinMax(step_size=0.01, gamma=5.0)
        >>> rule("fixed:0.2,0.8")
        Fixed(weights=(0.2, 0.8))
    """
    from saddlepoint import rules

    name, _, rest = text.partition(":")
    if name == "fixed":
        given = [number(part, "rule") for part in split(rest)]
        if abs(sum(given) - 1) > 1e-5:
            raise ValueError(f"`rule` fixed must have weights that sum to 1, got {sum(given):g}.")
        return rules.Fixed(given)
    if name not in _KNOWN:
        raise ValueError(f"`rule` must be one of {', '.join(RULES)}, got {quoted(text)}.")
    made: AbstractWeightRule = getattr(rules, _KNOWN[name].made)(**_options(name, rest))
    return made


def full_rule(text: str, numbers: Mapping[str, float]) -> str:
    """A weight rule with every number it uses.

    Args:
        text: As for `rule`.
        numbers: What minmax takes where the text is silent; what is missing here too is the library's.

    Example:
        >>> full_rule("minmax:gamma=5", {"step_size": 1 / 150, "gamma": 1}), full_rule("average", {})
        ('minmax:gamma=5,step_size=1/150', 'average')
        >>> full_rule("minmax", {})
        'minmax:gamma=0.3,step_size=auto'
    """
    from saddlepoint.rules import Entropic, MinMax

    made = rule(text)
    if isinstance(made, MinMax):
        made = MinMax(**{**numbers, **_options(*text.partition(":")[::2])})
        step = "auto" if made.step_size is None else written(float(made.step_size))
        return f"minmax:gamma={written(float(made.gamma))},step_size={step}"
    if isinstance(made, Entropic):
        return f"entropic:step_size={written(float(made.step_size))}"
    return text


def fixed(weights: Sequence[float]) -> str:
    """Fixed weights as a rule, to the last bit.

    Example:
        >>> fixed((1 / 3, 1 / 3, 1 / 3, 0))
        'fixed:1/3,1/3,1/3,0'
    """
    return "fixed:" + ",".join(written(float(weight)) for weight in weights)


def rule_of(rule: AbstractWeightRule) -> str:
    """A rule as settings write it; one of the user's own by the name of its class.

    Example:
        >>> from saddlepoint import MinMax, WorstCase
        >>> rule_of(MinMax(gamma=5)), rule_of(WorstCase())
        ('minmax:gamma=5,step_size=auto', 'worst')
    """
    from saddlepoint import rules

    if isinstance(rule, rules.Fixed):
        return fixed(rule.weights)
    name = next((n for n, known in _KNOWN.items() if getattr(rules, known.made) is type(rule)), "")
    if not name:
        return type(rule).__name__
    numbers = {key: value for key, value in vars(rule).items() if value is not None}
    given = ",".join(f"{key}={written(float(value))}" for key, value in numbers.items())
    return full_rule(f"{name}{':' if given else ''}{given}", {})


def rule_text(rule: str) -> str:
    """A weight rule in words.

    Example:
        >>> rule_text("minmax:gamma=3"), rule_text("fixed:0.5,0.5")
        ('min-max (gamma=3)', 'fixed weights (0.5, 0.5)')
    """
    name, _, rest = rule.partition(":")
    words = _KNOWN[name].words if name in _KNOWN else name
    return words + (f" ({', '.join(rest.split(','))})" if rest else "")


def rule_name(rule: str | None) -> str:
    """A weight rule in words, without its numbers; empty for none.

    Example:
        >>> rule_name("minmax:gamma=3"), rule_name(None)
        ('min-max', '')
    """
    return rule_text(rule or "").partition(" (")[0]


def _options(name: str, rest: str) -> dict[str, Any]:
    """The numbers behind a name; None for "auto", which min-max makes of the number of domains."""

    def read(key: str, value: str) -> float | None:
        auto = (name, key, value) == ("minmax", "step_size", "auto")
        return None if auto else number(value, f"rule {key}")

    return options("rule", name, rest, _KNOWN[name].options, read)
