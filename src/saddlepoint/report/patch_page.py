"""The report of a patch attack: the patch itself, where it works, and where it was heavy going."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from saddlepoint.report import sentences
from saddlepoint.report.foremost import foremost, overlapping
from saddlepoint.report.pictures import data_uri, encode_png, picture
from saddlepoint.report.template import render_template
from saddlepoint.report.weight_charts import weights_moved
from saddlepoint.runs import AttackMetrics, HeldOut, Run, settings_of
from saddlepoint.runs.attack_words import weighted
from saddlepoint.runs.rule_words import rule_name
from saddlepoint.runs.settings import PatchSettings

__all__ = ["patch_files", "patch_headline", "render_patch", "view_table"]

PRINT = 1024
"""The picture to print is at least so many pixels high and wide."""


def render_patch(run: Run, tensors: Mapping[str, Tensor]) -> str:
    """The page of a finished patch attack.

    Args:
        run: The record.
        tensors: What `tensors.safetensors` holds.
    """
    metrics, settings = AttackMetrics.of(run), settings_of(run, PatchSettings)
    held_out = _held_out(metrics)
    views, names = list(held_out.views), list(next(iter(held_out.views.values())).models)
    mask, canvas = tensors["patch.mask"], tensors["patch.canvas"]
    headings, lines = view_table(run, metrics)
    tall, wide = _pixels(canvas[0], mask).shape[1:]
    shape = (len(names), len(views), -1)
    history = tensors["history.weights"].unflatten(-1, shape).sum(dim=(2, 4))
    return render_template(
        "patch.html",
        run=run,
        settings=settings,
        title=f"Patch attack on {settings.data}",
        held_out=held_out,
        hardest=hardest_views(held_out),
        lines=patch_headline(run, metrics),
        models=", ".join(names),
        several=len(names) > 1,
        patches=[data_uri(encode_png(_pixels(each, mask))) for each in canvas],
        best=held_out.best_patch,
        tall=tall,
        wide=wide,
        headings=headings,
        table=lines,
        views=views,
        weighted=weighted(settings.gradient),
        by_view="view" in settings.parts,
        moved=weights_moved(history, views),
        examples=_examples(run, tensors, views, names),
        clean=[picture(each) for each in tensors["examples.clean"]],
    )


def patch_files(run: Run, tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """The best patch as PNG files: to print, every pixel a square, and pixel for pixel.

    Where the mask is no rectangle, what is around the patch is transparent.
    """
    best = _held_out(AttackMetrics.of(run)).best_patch
    pixels = _pixels(tensors["patch.canvas"][best], tensors["patch.mask"])
    factor = math.ceil(PRINT / max(pixels.shape[1:]))
    large = pixels.repeat_interleave(factor, dim=1).repeat_interleave(factor, dim=2)
    return {"patch.png": encode_png(large), "patch-true-size.png": encode_png(pixels)}


def patch_headline(run: Run, metrics: AttackMetrics) -> list[str]:
    """The outcome in a few sentences, the most important one first."""
    held_out = _held_out(metrics)
    (low, high), count = held_out.worst_interval, _models(held_out)
    patches = f"{run.rows} patches" if run.rows > 1 else "one patch"
    who = "the model" if count == 1 else "both models" if count == 2 else f"all {count} models"
    settings = settings_of(run, PatchSettings)
    target = settings.targeted
    goal = f"makes {who} answer its target ({target})" if target else f"fools {who}"
    looks = f", on average over {len(held_out.views)} views" if len(held_out.views) > 1 else ""
    hard = hardest_views(held_out)
    tied = [name for name, view in held_out.views.items() if view.success == held_out.worst]
    plain = max(held_out.views[name].plain for name in tied)
    where = f"Success is lowest in {' and '.join(tied)}:"
    if len(hard) == 1 < len(held_out.views):
        where = f"The hardest view is {hard[0]}:"
    lines = [
        f"On {held_out.right} held-out images that {who} had right, through looks that no patch was made with, "
        f"the patch {goal} in {held_out.mean:.1f} % of {held_out.trials} trials{looks} ({patches}).",
        f"{where} {held_out.worst:.1f} %, with 95 % confidence between {low:.1f} and {high:.1f} %. "
        f"A plain grey patch does the same there in {'' if len(tied) == 1 else 'at most '}{plain:.1f} %.",
    ]
    if len(hard) > 1:
        told = [f"{name} ({held_out.views[name].success:.1f} %)" for name in hard]
        by = f"by the success of the patch in {held_out.trials} trials"
        lines.append(overlapping("views", told, "is the hardest", by))
    if metrics.baseline is not None:
        other = _held_out(metrics.baseline)
        name = rule_name(settings.baseline)
        low, high = other.worst_interval
        lines.append(
            f"With {name} weights it is {other.worst:.1f} % ({low:.1f} to {high:.1f}) in the view where it is "
            f"lowest, and {other.mean:.1f} % on average."
        )
    return lines


def hardest_views(held_out: HeldOut) -> list[str]:
    """Views that may be the one in which success is lowest, lowest first; none where all are even."""
    views = held_out.views
    ends = {name: (100 - view.interval[1], 100 - view.interval[0]) for name, view in views.items()}
    return foremost(ends, {name: 100 - view.success for name, view in views.items()})


def view_table(run: Run, metrics: AttackMetrics) -> tuple[list[str], list[list[str]]]:
    """Headings and one line per view, then the mean: success in percent."""
    held_out = _held_out(metrics)
    settings = settings_of(run, PatchSettings)
    headings = ["view", "plain grey", sentences.method_name(settings), "95 %"]
    other = metrics.baseline and metrics.baseline.held_out
    if other:
        headings.insert(2, rule_name(settings.baseline))
    alone = next(iter(held_out.views.values())).models
    headings += [f"{name} alone" for name in alone] if len(alone) > 1 else []
    told = weighted(settings.gradient)
    headings += ["mean weight"] if told else []
    weights, lines = _view_weights(held_out, metrics), []
    for name, view in held_out.views.items():
        low, high = view.interval
        line = [name, f"{view.plain:.1f}", f"{view.success:.1f}", f"{low:.1f} to {high:.1f}"]
        if other:
            line.insert(2, f"{other.views[name].success:.1f}")
        line += [f"{share:.1f}" for share in view.models.values()] if len(alone) > 1 else []
        lines.append([*line, *([f"{weights[name]:.2f}"] if told else [])])
    plain = sum(view.plain for view in held_out.views.values()) / len(held_out.views)
    mean = ["mean", f"{plain:.1f}", f"{held_out.mean:.1f}"]
    if other:
        mean.insert(2, f"{other.mean:.1f}")
    return headings, [*lines, mean + [""] * (len(headings) - len(mean))]


def _view_weights(held_out: HeldOut, metrics: AttackMetrics) -> dict[str, float]:
    """The weights of all domains of a view together; domains are ordered by model, view and image."""
    numbers = torch.tensor(list(metrics.weights.values()), dtype=torch.float64)
    table = numbers.unflatten(0, (_models(held_out), len(held_out.views), -1)).sum(dim=(0, 2))
    return dict(zip(held_out.views, table.tolist(), strict=True))


def _examples(
    run: Run, tensors: Mapping[str, Tensor], views: Sequence[str], names: Sequence[str]
) -> list[dict[str, Any]]:
    """For every view the held-out images with the patch, and what every model says of them."""
    labels = tensors["examples.labels"].tolist()
    # The verdicts of the test: to be wrong is not enough where a class is to be reached.
    which = tensors["held_out.right"][0].all(dim=0).nonzero().flatten()[: len(labels)]
    best = _held_out(AttackMetrics.of(run)).best_patch
    fooled = tensors["held_out.fooled"][best][..., which]
    found = []
    for v, view in enumerate(views):
        pictures = []
        for e, label in enumerate(labels):
            says = tensors["examples.says"][v, :, e].tolist()
            pictures.append(
                {
                    "picture": picture(tensors["examples.seen"][v, e]),
                    "label": sentences.class_name(run, label),
                    "says": [
                        (name, sentences.class_name(run, said), bool(fooled[m, v, e]))
                        for m, (name, said) in enumerate(zip(names, says, strict=True))
                    ],
                }
            )
        found.append({"view": view, "pictures": pictures})
    return found


def _pixels(canvas: Tensor, mask: Tensor) -> Tensor:
    """The patch cut out of its canvas, 8-bit, (C, h, w); transparent around it where it is no rectangle."""
    rows, columns = mask.any(dim=1).nonzero().flatten(), mask.any(dim=0).nonzero().flatten()
    part = (
        ...,
        slice(int(rows[0]), int(rows[-1]) + 1),
        slice(int(columns[0]), int(columns[-1]) + 1),
    )
    image = canvas[part] if canvas.shape[0] in (1, 3) else canvas[part].mean(dim=0, keepdim=True)
    pixels = (image.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8)
    inside = mask[part]
    if bool(inside.all()):
        return pixels
    return torch.cat([pixels.expand(3, -1, -1), inside[None].to(torch.uint8) * 255])


def _models(held_out: HeldOut) -> int:
    return len(next(iter(held_out.views.values())).models)


def _held_out(metrics: Any) -> HeldOut:
    found = metrics.held_out
    assert isinstance(found, HeldOut)  # every patch attack has it
    return found
