"""What a run says, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from saddlepoint.report.record import Run

__all__ = [
    "NOUNS",
    "Nouns",
    "ball_text",
    "class_name",
    "evaluations",
    "hardest",
    "headline",
    "rule_text",
]

_NORMS = {"linf": "ℓ∞", "l2": "ℓ2", "l1": "ℓ1", "l0": "ℓ0"}  # noqa: RUF001
_RULES = {
    "minmax": "min-max",
    "average": "average",
    "worst": "worst case",
    "entropic": "entropic",
    "fixed": "fixed weights",
}


@final
@dataclass(frozen=True)
class Nouns:
    """What rows and domains are called."""

    title: str
    row: str
    rows: str
    domain: str
    domains: str


NOUNS: Mapping[str, Nouns] = {
    "ensemble": Nouns("Ensemble attack", "image", "images", "model", "models"),
    "universal": Nouns("Universal perturbation", "group", "groups", "image", "images"),
    "transform": Nouns("Attack through transformations", "image", "images", "view", "views"),
}


def rule_text(rule: str) -> str:
    """A weight rule in words.

    Example:
        >>> rule_text("minmax:gamma=3"), rule_text("fixed:0.5,0.5")
        ('min-max (gamma=3)', 'fixed weights (0.5,0.5)')
    """
    name, _, rest = rule.partition(":")
    return _RULES.get(name, name) + (f" ({rest})" if rest else "")


def ball_text(config: Mapping[str, Any]) -> str:
    """The set of perturbations in words.

    Example:
        >>> ball_text({"norm": "linf", "eps": 8 / 255}), ball_text({"norm": "l2", "eps": 3.0})
        ('ℓ∞ ≤ 8/255', 'ℓ2 ≤ 3')
    """
    norm, eps = str(config.get("norm", "")), config.get("eps")
    if not isinstance(eps, int | float):
        return _NORMS.get(norm, norm)
    return f"{_NORMS.get(norm, norm)} ≤ {_number(float(eps))}"


def class_name(run: Run, index: int) -> str:
    """A class by its name, or by its number if it has none."""
    return run.classes[index] if 0 <= index < len(run.classes) else str(index)


def evaluations(run: Run) -> str:
    """Gradient evaluations per row, in words; empty if nothing was counted."""
    count = run.gradient_evaluations.get("per_row")
    return "" if count is None else f"{count:.1f}"


def hardest(run: Run) -> str | None:
    """The domain with the highest remaining accuracy, the larger weight deciding ties."""
    accuracy, weights = run.metrics.get("accuracy"), run.metrics.get("weights")
    if not accuracy or not weights or run.kind == "universal":
        return None
    return str(max(accuracy, key=lambda name: (accuracy[name], weights[name])))


def headline(run: Run) -> list[str]:
    """The outcome in two to four sentences, the most important one first.

    Args:
        run: A record with metrics.
    """
    nouns, metrics = NOUNS[run.kind], run.metrics
    if not metrics:
        return [f"No {nouns.row} has been attacked yet."]
    count, domains = metrics["rows"], len(run.domains)
    hits = round(metrics["asr_all"] * count / 100)
    whole = _whole(run)
    low, high = metrics["intervals"]["asr_all"]
    rule = rule_text(str(run.config["rule"])).partition(" (")[0]
    lines = [
        f"For {hits} of {count} {nouns.rows}, one perturbation within {ball_text(run.config)} "
        f"{whole}: {metrics['asr_all']:.1f} %, with 95 % confidence between {low:.1f} and {high:.1f} %."
    ]
    if "baseline" in metrics:
        lines.append(_against(run, rule))
    name = hardest(run)
    if name is not None and domains > 1:
        kept, weight = metrics["accuracy"][name], metrics["weights"][name]
        lines.append(
            f"The hardest {nouns.domain} is {name}: it still classifies {kept:.1f} % correctly under attack"
            f" and held a mean weight of {weight:.2f}, where equal shares would be {1 / domains:.2f}."
        )
    return lines


def _against(run: Run, rule: str) -> str:
    metrics = run.metrics
    base = metrics["baseline"]["asr_all"]
    other = rule_text(str(run.config["baseline"])).partition(" (")[0]
    gain = metrics.get("lift")
    start = f"With {other} weights instead of {rule} it is {base:.1f} %"
    if gain is None:
        return f"{start}."
    if abs(metrics["asr_all"] - base) < 0.05:
        return f"{start}, no difference."
    verb = "gain" if gain > 0 else "loss"
    return f"{start}: {rule} is a {verb} of {abs(metrics['asr_all'] - base):.1f} points ({gain:+.1f} % lift)."


def _whole(run: Run) -> str:
    count = len(run.domains)
    if run.kind == "ensemble":
        return "fools the model" if count == 1 else f"fools all {count} models at once"
    if run.kind == "universal":
        return f"fools the model on all {count} images of the group"
    return f"fools the model in all {count} views" if count > 1 else "fools the model"


def _number(value: float) -> str:
    for top in (255,):
        scaled = value * top
        if value < 0.2 and abs(scaled - round(scaled)) < 1e-6 and round(scaled) > 0:
            return f"{round(scaled)}/{top}"
    return f"{value:g}"
