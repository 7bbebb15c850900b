"""What a run says, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from saddlepoint.display import attack_text, radius_text
from saddlepoint.report.foremost import hard_domains, overlapping
from saddlepoint.runs import AttackMetrics, Run, TrainingMetrics, settings_of
from saddlepoint.runs.attack_words import weighted
from saddlepoint.runs.metrics import Share
from saddlepoint.runs.rule_words import rule_name, rule_text
from saddlepoint.runs.settings import AttackSettings, TrainSettings

__all__ = [
    "NOUNS",
    "VERDICTS",
    "Nouns",
    "attack_text",
    "ball_text",
    "class_name",
    "effort_text",
    "figure",
    "headline",
    "method_name",
    "method_text",
    "spent_noun",
    "target_text",
    "training_lines",
    "transfer_lines",
]

VERDICTS: Mapping[str, str] = {
    "ok": "fit to be evaluated",
    "warn": "look at the warnings before trusting numbers",
    "fail": "not fit: numbers about it would be wrong",
}
"""What the doctor says of a model, by its worst finding."""

_NORMS = {"linf": "ℓ∞", "l2": "ℓ2", "l1": "ℓ1", "l0": "ℓ0"}  # noqa: RUF001


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
    "patch": Nouns("Patch attack", "patch", "patches", "photograph", "photographs"),
    "transform": Nouns("Attack through transformations", "image", "images", "view", "views"),
}


def spent_noun(run: Run, count: float = 2) -> str:
    """What a row of an attack takes so many of; models without gradients are asked queries."""
    if settings_of(run, AttackSettings).gradient:
        return "query" if count == 1 else "queries"
    return "evaluation" if count == 1 else "evaluations"


def method_text(settings: AttackSettings) -> str:
    """What the perturbations were found by, in words: the weight rule, or random search, which follows none."""
    return rule_text(settings.rule) if weighted(settings.gradient) else "random search"


def effort_text(settings: AttackSettings) -> str:
    """What an attack may take, in words.

    Example:
        >>> from saddlepoint.runs.settings import EnsembleSettings
        >>> effort_text(EnsembleSettings(models=["A"], eps=0.2))
        '2 restarts of 25 steps'
    """
    if settings.evaluations is not None:
        return f"{settings.evaluations} evaluations"
    restarts = f"{settings.restarts} restarts of " if settings.restarts > 1 else ""
    return settings.gradient or f"{restarts}{settings.steps} steps"


def method_name(settings: AttackSettings) -> str:
    """The same without numbers."""
    return method_text(settings).partition(" (")[0]


def ball_text(norm: str, eps: float | str) -> str:
    """The set of perturbations in words.

    Args:
        norm: "linf", "l2", "l1" or "l0".
        eps: The radius; words of an attack from Python with a radius per image are left out.

    Example:
        >>> ball_text("linf", 8 / 255), ball_text("l2", 3.0)
        ('ℓ∞ ≤ 8/255', 'ℓ2 ≤ 3')
    """
    if isinstance(eps, str):
        return _NORMS.get(norm, norm)
    return f"{_NORMS.get(norm, norm)} ≤ {radius_text(float(eps))}"


def class_name(run: Run, index: int) -> str:
    """A class by its name, or by its number if it has none."""
    return run.classes[index] if 0 <= index < len(run.classes) else str(index)


def target_text(run: Run) -> str:
    """The class that an attack was to reach, in words; empty where there was none."""
    target = settings_of(run, AttackSettings).targeted
    if target is None:
        return ""
    known = {
        "next": "the next class",
        "least-likely": "the least likely class",
        "given": "the class to reach",
    }
    return known.get(str(target)) or (
        class_name(run, int(target)) if target.isdecimal() else str(target)
    )


def figure(run: Run, metrics: AttackMetrics) -> str:
    """What the number at the head of a report is a share of, and what it says."""
    nouns, several = NOUNS[run.kind], len(run.domains) > 1
    if metrics.rate is None:
        return f"There was no {nouns.row} {_right(run)} before the attack"
    count, target = metrics.rows_correct, target_text(run)
    start = f"of the {count} {nouns.rows} {_right(run)}"
    if count == 1:
        start = f"of the one {nouns.row} {_right(run)}"
    every = "both" if len(run.domains) == 2 else "all"
    if run.kind == "universal":
        are = "is" if count == 1 else "are"
        return f"{start} {are} {f'answered with {target}' if target else 'fooled'} as a whole"
    whom = f"them {every}" if several and run.kind == "ensemble" else "it"
    where = f" in {every} of them" if several and run.kind == "transform" else ""
    s = "s" if count == 1 else ""
    return (
        f"{start} make{s} {whom} answer {target}{where}"
        if target
        else f"{start} fool{s} {whom}{where}"
    )


def headline(run: Run, metrics: AttackMetrics, hard: Sequence[str] | None = None) -> list[str]:
    """The outcome in a few sentences, the most important one first.

    Args:
        run: The record.
        metrics: Its results.
        hard: Its `hard_domains`, for who has asked already.
    """
    hard = hard_domains(run, metrics) if hard is None else hard
    nouns, settings = NOUNS[run.kind], settings_of(run, AttackSettings)
    every = f"counted over every {nouns.row}, as the paper does, the success rate is {metrics.asr_all:.1f} %."
    if metrics.rate is None:
        rows = metrics.rows
        all_rows = f"{'' if rows == 1 else 'all '}{_wrong(run, rows, rows)}"
        start = f"Nothing can be said about the attack: {all_rows} before it."
        return [f"{start} {every[0].upper()}{every[1:]}"]
    share, low, high = metrics.rate
    count, wrong = metrics.rows_correct, metrics.rows - metrics.rows_correct
    # With one model there is one for every image in any case.
    one = "a perturbation of its own" if len(run.domains) == 1 else "one perturbation"
    lines = [
        f"For {round(share * count / 100)} of the {_count(count, nouns)} {_right(run)}, {one} "
        f"within {ball_text(settings.norm, settings.eps)} {_whole(run)}: {share:.1f} %, with 95 % confidence "
        f"between {low:.1f} and {high:.1f} %."
    ]
    if wrong:
        lines.append(f"{wrong} of {_wrong(run, metrics.rows, wrong)} before any attack; {every}")
    else:
        lines.append("No image was misclassified before the attack.")
    if target := target_text(run):
        lines.append(
            f"The attack was targeted ({target}): a {nouns.domain} counts as fooled where it "
            "answers the class to reach; accuracies count true classes as ever."
        )
    if metrics.baseline is not None and metrics.baseline.rate is not None:
        lines.append(_against(run, share, metrics.baseline.rate[0], metrics.lift_among_correct))
    domains = len(run.domains)
    if len(hard) == 1 < domains:
        (name,) = hard
        weight = metrics.weights[name]
        does = f"still classifies {metrics.accuracy[name]:.1f} % correctly under attack"
        if metrics.reached:
            does = f"answers {target} for only {metrics.reached[name]:.1f} % of all {nouns.rows}"
        held = f" and held a mean weight of {weight:.2f}, where equal shares would be {1 / domains:.2f}"
        lines.append(
            f"The hardest {nouns.domain} is {name}: it {does}{held if weighted(settings.gradient) else ''}."
        )
    elif len(hard) > 1:
        lines.append(_not_told_apart(nouns, metrics, hard))
        if weighted(settings.gradient) and not settings.rule.startswith(("average", "fixed")):
            name = max(metrics.weights, key=lambda each: metrics.weights[each])
            lines.append(
                f"The attack pulled most at {name}: a mean weight of {metrics.weights[name]:.2f}, where equal "
                f"shares would be {1 / domains:.2f}; weights go to what resists and bring accuracies together."
            )
    return lines


def _not_told_apart(nouns: Nouns, metrics: AttackMetrics, names: Sequence[str]) -> str:
    shares = metrics.reached or metrics.accuracy
    what = "answers of the class to reach" if metrics.reached else "accuracy under attack"
    told = [f"{name} ({shares[name]:.1f} %)" for name in names]
    by = f"by their {what} on {_count(metrics.rows, nouns)}"
    return overlapping(nouns.domains, told, "is the hardest", by)


def transfer_lines(run: Run, metrics: AttackMetrics) -> list[str]:
    """What the perturbations did to models that the attack never asked; nothing where there are none."""
    found = metrics.transfer
    if found is None:
        return []
    nouns, several = NOUNS[run.kind], len(found.victims) > 1
    who = (
        f"{_all(len(found.victims))} victims"
        if several
        else f"the victim {next(iter(found.victims))}"
    )
    if found.rate is None:
        return [f"Nothing can be said about transfer: no {nouns.row} was right by {who} before it."]
    share, low, high = found.rate
    lines = [
        f"Transfer, counted on its own: of the {found.rows_correct} {nouns.rows} that {who} had right, "
        f"{share:.1f} % (95 %: {low:.1f} to {high:.1f}) fool {'them' if several else 'it'}"
        f"{', at once' if several else ''}; the attack never asked {'them' if several else 'it'}."
    ]
    theirs = metrics.baseline and metrics.baseline.transfer
    if theirs and theirs.rate is not None:
        other = rule_name(settings_of(run, AttackSettings).baseline)
        lines.append(f"With {other} weights it is {theirs.rate[0]:.1f} % of them.")
    return lines


def training_lines(run: Run) -> list[str]:
    """What a training came to: the accuracy on all test images, and on those that were attacked, if any."""
    metrics, settings = TrainingMetrics.of(run), settings_of(run, TrainSettings)

    def told(share: Share) -> str:
        low, high = share.interval
        return f"{share.percent:.2f} % ({low:.1f} to {high:.1f})"

    eps = "" if metrics.fgsm_eps is None else f" (linf {radius_text(metrics.fgsm_eps)})"
    lines = [
        f"{settings.data} {settings.model}: accuracy on all {metrics.rows} test images (95 % interval): "
        f"clean {told(metrics.clean)}, FGSM{eps} {told(metrics.fgsm)}"
    ]
    if attacked := metrics.attacked:
        shares = ", ".join(f"{name} {told(share)}" for name, share in attacked.items())
        lines.append(f"on the first {metrics.rows_attacked} test images, attacked: {shares}")
    return lines


def _against(run: Run, ours: float, theirs: float, gain: float | None) -> str:
    """The baseline, by the same rate as the headline."""
    settings = settings_of(run, AttackSettings)
    rule, other = rule_name(settings.rule), rule_name(settings.baseline)
    start = f"With {other} weights instead of {rule} it is {theirs:.1f} %"
    if gain is None:
        return f"{start}."
    if abs(ours - theirs) < 0.05:
        return f"{start}, no difference."
    verb = "gain" if gain > 0 else "loss"
    points = f"{abs(ours - theirs):.1f} points ({gain:+.1f} % relative to {other})"
    return f"{start}: {rule} is a {verb} of {points}."


def _right(run: Run) -> str:
    """Which rows the headline counts."""
    count = len(run.domains)
    if run.kind == "universal":
        return "of which the model had every image right"
    if count == 1:
        return "that the model had right"
    if run.kind == "ensemble":
        return f"that {_all(count)} models had right"
    return f"that the model had right in {_all(count)} views"


def _wrong(run: Run, count: int, wrong: int) -> str:
    """How many rows there are, and what happened to so many that the headline does not count."""
    if run.kind == "universal":
        return f"{_count(count, NOUNS[run.kind])} had an image that was misclassified"
    where = "by at least one model" if run.kind == "ensemble" else "in at least one view"
    start = f"{count} {'image' if count == 1 else 'images'} {'was' if wrong == 1 else 'were'} misclassified"
    return start if len(run.domains) == 1 else f"{start} {where}"


def _count(number: int, nouns: Nouns) -> str:
    return f"{number} {nouns.row if number == 1 else nouns.rows}"


def _whole(run: Run) -> str:
    count, target = len(run.domains), target_text(run)
    if target:
        whom = (
            "the model answer"
            if run.kind != "ensemble" or count == 1
            else f"{_all(count)} models answer"
        )
        where = {"universal": f" on {_all(count)} images of the group", "ensemble": " at once"}
        return f"makes {whom} {target}" + (
            where.get(run.kind, f" in {_all(count)} views") if count > 1 else ""
        )
    if run.kind == "ensemble":
        return "fools the model" if count == 1 else f"fools {_all(count)} models at once"
    if run.kind == "universal":
        return f"fools the model on {_all(count)} images of the group"
    return f"fools the model in {_all(count)} views" if count > 1 else "fools the model"


def _all(count: int) -> str:
    return "both" if count == 2 else f"all {count}"
