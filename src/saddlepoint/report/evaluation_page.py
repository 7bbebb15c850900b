"""The report of an evaluation: what is still right, over the radius, attack by attack, what nearly falls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from saddlepoint.display import distance_text
from saddlepoint.doctor import worst
from saddlepoint.report import charts, sentences
from saddlepoint.report.foremost import foremost, overlapping
from saddlepoint.report.pictures import picture, sign_picture
from saddlepoint.report.template import render_template
from saddlepoint.runs import Accuracies, DomainMetrics, EvaluationMetrics, Run, settings_of
from saddlepoint.runs.evaluation_tables import prefix_of
from saddlepoint.runs.settings import EvaluateSettings

__all__ = [
    "accuracy_text",
    "attack_table",
    "evaluation_headline",
    "render_evaluation",
    "untouched",
]

_OVERHEAD = 60_000  # style, script, charts and text


def render_evaluation(run: Run, tensors: Mapping[str, Tensor], *, max_bytes: int) -> str:
    """The page.

    Args:
        run: The record of a finished evaluation.
        tensors: What `tensors.safetensors` holds.
        max_bytes: The gallery stops growing before the page exceeds this.
    """
    metrics = EvaluationMetrics.of(run)
    parts, threats, doctor = metrics.domains, list(metrics.radii), metrics.doctor
    settings = settings_of(run, EvaluateSettings)
    return render_template(
        "evaluation.html",
        run=run,
        metrics=metrics,
        settings=settings,
        title=f"Evaluation of {', '.join(run.hashes.models)} on {settings.data}",
        several=len(parts) > 1,
        nouns=_domains(run),
        everyone=_all(run),
        threats=threats,
        balls={name: _ball(name, radius) for name, radius in metrics.radii.items()},
        lines=evaluation_headline(run, metrics),
        share=accuracy_text,
        called=sentences.attack_text,
        untouched=untouched(metrics),
        failed=bool(metrics.failures),
        cut=any("cut short" in note for note in metrics.notes),
        bars=_bars(metrics),
        curves=[_curve(metrics, tensors, name) for name in threats],
        joint=[_joint(metrics, tensors, name) for name in metrics.joint],
        tables=[{"name": name, **attack_table(part)} for name, part in parts.items()],
        broke=[{"name": name, **_broke(part)} for name, part in parts.items()],
        gallery=_gallery(run, tensors, threats, max_bytes),
        streamed="labels" not in tensors,
        doctor={
            name: {
                "findings": findings,
                "state": worst(findings),
                "verdict": sentences.VERDICTS[worst(findings)],
            }
            for name, findings in doctor.items()
        },
        unfit=[name for name, findings in doctor.items() if worst(findings) == "fail"],
        doubtful=[name for name, findings in doctor.items() if worst(findings) == "warn"],
    )


def accuracy_text(part: Accuracies, name: str, threat: str = "") -> str:
    """A number in percent, with "at most" before it if an attack that counts for it failed or missed images.

    Args:
        part: The metrics of an evaluation, or of one of its domains.
        name: "clean", "union", "robust" or "joint".
        threat: For the last two.
    """
    value = getattr(part, name)[threat] if threat else getattr(part, name)
    return f"{_bound(part, name, threat)}{value:.1f}"


def evaluation_headline(run: Run, metrics: EvaluationMetrics) -> list[str]:
    """The outcome in two or three sentences, the most important one first.

    Args:
        run: The record.
        metrics: Its results.
    """
    count, several = metrics.rows, len(metrics.domains) > 1
    balls = _and([_ball(name, radius) for name, radius in metrics.radii.items()])
    low, high = metrics.intervals.union
    if untouched(metrics):
        who = _all(run).capitalize() if several else "The model"
        verb = "have" if several else "has"
        return [
            f"{who} {verb} none of the {count} images right without attack, so that no attack was needed and "
            f"none ran within {balls}: nothing is known of its robustness."
        ]
    who = f"{_all(run).capitalize()} classify" if several else "The model classifies"
    bound = _bound(metrics, "union")
    sure = f"with 95 % confidence between {low:.1f} and {high:.1f} %"
    if bound:
        sure = f"because not every attack could be run: {', '.join(metrics.because)}"
    lines = [
        f"{who} {bound}{_count(metrics.union, count)} of {count} images correctly under every attack within "
        f"{balls}: {bound}{metrics.union:.1f} %, {sure}. Without attack it is {metrics.clean:.1f} %."
    ]
    if len(metrics.robust) > 1:
        shares = "; ".join(
            f"{_ball(name, metrics.radii[name])}: {accuracy_text(metrics, 'robust', name)} %"
            for name in metrics.robust
        )
        lines.append(" ".join([f"Threat by threat it is {shares}.", *_breaks_most(metrics)]))
    if metrics.joint:
        shares = ", ".join(
            f"{_ball(name, metrics.radii[name])}: "
            f"{'at least ' if _bound(metrics, 'joint', name) else ''}{100 - value:.1f} %"
            for name, value in metrics.joint.items()
        )
        lines.append(
            f"One perturbation that fools {_all(run)} at once was found for this share of images: {shares}."
        )
    return lines


def _breaks_most(metrics: EvaluationMetrics) -> list[str]:
    """Which threat leaves the fewest images right, or that it cannot be told; nothing where all are even."""
    # An upper bound might be lower: what it breaks may be everything.
    ends = {
        name: (100 - high, 100.0 if _bound(metrics, "robust", name) else 100 - low)
        for name, (low, high) in metrics.intervals.robust.items()
    }
    names = foremost(ends, {name: 100 - share for name, share in metrics.robust.items()})
    balls = [_ball(name, metrics.radii[name]) for name in names]
    if len(names) > 1:
        told = [
            f"{ball} ({metrics.robust[name]:.1f} %)"
            for name, ball in zip(names, balls, strict=True)
        ]
        by = f"by what they leave right of {metrics.rows} images"
        return [overlapping("threats", told, "breaks most", by)]
    return [f"The one that breaks most is {ball}." for ball in balls]


def untouched(metrics: EvaluationMetrics) -> bool:
    """Whether no attack ran, because no image was right to begin with."""
    outcomes = [each for part in metrics.domains.values() for each in part.attacks]
    return metrics.clean == 0 and all(each.status == "not needed" for each in outcomes)


def attack_table(part: DomainMetrics) -> dict[str, Any]:
    """Attacks by threats: what each attack did under each threat, and what is left.

    Args:
        part: The metrics of one domain.

    Returns:
        `attacks`, names in the order they ran; `cells`, by attack and threat, None where it did not run.
    """
    names = list(dict.fromkeys(each.attack for each in part.attacks))
    found = {(each.attack, each.threat): each for each in part.attacks}
    return {
        "metrics": part,
        "attacks": names,
        "cells": {a: {t: found.get((a, t)) for t in part.radii} for a in names},
    }


def _bars(metrics: EvaluationMetrics) -> Markup:
    def bar(name: str, key: str, value: float, ends: tuple[float, float]) -> charts.Bar:
        return (f"{name} (at most)" if key in metrics.at_most else name, value, *ends)

    intervals = metrics.intervals
    rows = [bar("without attack", "clean", metrics.clean, intervals.clean)]
    rows += [
        bar(_ball(name, metrics.radii[name]), f"robust.{name}", value, intervals.robust[name])
        for name, value in metrics.robust.items()
    ]
    if len(metrics.robust) > 1:
        rows.append(bar("every attack of every threat", "union", metrics.union, intervals.union))
    return charts.interval_bars(rows)


def _curve(
    metrics: EvaluationMetrics, tensors: Mapping[str, Tensor], threat: str
) -> dict[str, Any]:
    """Accuracy over the radius under one threat, one line per domain."""
    parts = metrics.domains
    prefixes = [prefix_of(name) for name in parts]
    distances = [tensors[f"{prefix}{threat}/distance"] for prefix in prefixes]
    # For how many images, that are right, an attack has looked for the nearest wrong one.
    right = sum(_count(part.clean, part.rows) for part in parts.values())
    sought = 0
    for prefix, part in zip(prefixes, parts.values(), strict=True):
        tables = [
            tensors[f"{prefix}{threat}/{each.attack}/attacked"]
            for each in part.attacks
            if each.threat == threat and each.minimal
        ]
        sought += int(torch.stack(tables).any(dim=0).sum()) if tables else 0
    minimal, radius = sought > 0, metrics.radii[threat]
    return {
        "threat": threat,
        "sought": sought,
        "right": right,
        "chart": charts.survival_chart(
            distances,
            list(parts),
            radius,
            _until(distances, radius) if minimal else radius * 1.02,
            not minimal,
        ),
    }


def _joint(
    metrics: EvaluationMetrics, tensors: Mapping[str, Tensor], threat: str
) -> dict[str, Any]:
    """The smallest radius at which all domains fall, under one threat."""
    radii, radius = tensors[f"joint/{threat}/eps_min"], metrics.radii[threat]
    chart = charts.survival_chart([radii], ["all at once"], radius, _until([radii], radius), False)
    return {"threat": threat, "chart": chart}


def _until(distances: Sequence[Tensor], radius: float) -> float:
    """The end of an axis: where nearly all has fallen, but not too far from the radius."""
    known = [values[values.isfinite()] for values in distances]
    far = max((values.quantile(0.99).item() for values in known if len(values)), default=radius)
    end = min(max(1.15 * radius, far), 4 * radius)
    digit = 10.0 ** (math.floor(math.log10(end)) - 1)
    return math.ceil(end / digit - 1e-9) * digit


def _broke(part: DomainMetrics) -> dict[str, Any]:
    """Which attack broke each image first, as bars."""
    attacks = list(dict.fromkeys(each.attack for each in part.attacks if each.first))
    wrong = part.rows - _count(part.clean, part.rows)
    rows = []
    for threat, robust in part.robust.items():
        pieces = [
            (
                # All of them are fooled, and have its colour: shades tell attacks apart.
                f"broke s{min(attacks.index(each.attack), 7)}",
                f"broken by {sentences.attack_text(each.attack)}",
                each.first,
            )
            for each in part.attacks
            if each.threat == threat and each.first
        ]
        pieces.append(("wrong", "wrong without attack", wrong))
        pieces.append(("right", "still right", _count(robust, part.rows)))
        rows.append((_ball(threat, part.radii[threat]), pieces))
    ends = [f"{accuracy_text(part, 'robust', threat)} %" for threat in part.robust]
    return {"attacks": attacks, "chart": charts.share_bars(rows, ends)}


def _gallery(
    run: Run, tensors: Mapping[str, Tensor], threats: Sequence[str], max_bytes: int
) -> list[dict[str, Any]]:
    """Per threat the images closest to the boundary; the nearest of every threat come first into the page."""
    numbers = tensors["gallery.threat"].tolist()
    seen: dict[int, int] = {}
    ranks = []
    for position, number in enumerate(numbers):
        ranks.append((seen.get(number, 0), number, position))
        seen[number] = seen.get(number, 0) + 1
    size = _OVERHEAD
    found: dict[int, list[dict[str, Any]]] = {}
    for _, number, position in sorted(ranks):
        row = _card(run, tensors, position)
        size += len(repr(row)) + 900 + 150 * len(row["domains"])
        if size > max_bytes and found:
            break
        found.setdefault(number, []).append(row)
    return [{"threat": threats[number], "rows": found[number]} for number in sorted(found)]


def _card(run: Run, tensors: Mapping[str, Tensor], position: int) -> dict[str, Any]:
    row = int(tensors["gallery.rows"][position])
    clean, delta = tensors["gallery.clean"][position], tensors["gallery.delta"][position]
    label = int(tensors["labels"][row])
    says = tensors["gallery.says"][position].tolist()
    fooled = tensors["gallery.fooled"][position].tolist()
    return {
        "row": row,
        "label": sentences.class_name(run, label),
        "distance": distance_text(
            float(tensors["gallery.distance"][position]),
            list(EvaluationMetrics.of(run).radii.values())[
                int(tensors["gallery.threat"][position])
            ],
        ),
        "clean": picture(clean),
        # Each at its own strength: the smallest ones would not be seen on a scale for all.
        "delta": sign_picture(delta, float(delta.abs().max())),
        "adversarial": picture(clean + delta),
        "domains": [
            {
                "name": name,
                "says": sentences.class_name(run, said) if said >= 0 else "not a number",
                "fooled": wrong,
            }
            for name, said, wrong in zip(run.domains, says, fooled, strict=True)
        ],
    }


def _bound(part: Accuracies, name: str, threat: str = "") -> str:
    """The words before a number that is an upper bound, since not everything was attacked."""
    return "at most " if (f"{name}.{threat}" if threat else name) in part.at_most else ""


def _ball(threat: str, radius: float) -> str:
    return sentences.ball_text(threat, radius)


def _all(run: Run) -> str:
    return f"{'both' if len(run.domains) == 2 else f'all {len(run.domains)}'} {_domains(run)}"


def _domains(run: Run) -> str:
    if not settings_of(run, EvaluateSettings).transforms:
        return "models"
    return "views" if len(run.hashes.models) == 1 else "pairs of model and view"


def _count(percent: float, rows: int) -> int:
    return math.floor(percent * rows / 100 + 0.5)


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
