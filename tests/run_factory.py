"""Small finished runs for the tests of reports: real attacks on tiny networks, names as given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import saddlepoint as sp
from saddlepoint import report, runs
from saddlepoint.evaluation import Ledger
from saddlepoint.evaluation.domains import robust_domains
from saddlepoint.report.training_page import render_training
from saddlepoint.runs.evaluation_tables import Result
from shortened import short_suites

HOSTILE = (
    "</script><script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 1">',
    "'-window.pwned=1-'{{ 7 * 7 }}<b>&amp;",
    "</title></style><svg onload=window.pwned=1>",
)


def network(seed: int, pixels: int, classes: int) -> nn.Module:
    """Networks that mostly agree with each other: what they have in common, and a part of their own."""
    common, own = (torch.Generator().manual_seed(s) for s in (100, seed))
    model = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 12), nn.ReLU(), nn.Linear(12, classes))
    with torch.no_grad():
        for parameter in model.parameters():
            shape = parameter.shape
            parameter.copy_(
                torch.randn(shape, generator=common) + 0.3 * torch.randn(shape, generator=own)
            )
    return model.eval()


def problem(
    kind: str, rows: int, domains: int, names: tuple[str, ...], channels: int
) -> sp.AbstractProblem:
    generator = torch.Generator().manual_seed(7)
    size, classes = 6, 4
    pixels = channels * size * size
    models = [network(seed, pixels, classes) for seed in range(domains)]
    if kind == "universal":
        groups = torch.rand(rows, domains, channels, size, size, generator=generator)
        labels = models[0](groups.flatten(0, 1)).argmax(dim=1).view(rows, domains)
        labels[::3, 0] = (
            labels[::3, 0] + 1
        ) % classes  # every third group has an image that is wrong
        return sp.Universal(models[0], groups, labels, names=names)
    x = torch.rand(rows, channels, size, size, generator=generator)
    y = models[0](x).argmax(dim=1)
    if kind == "transform":
        family = [sp.transforms.identity, sp.transforms.hflip, sp.transforms.random_rotate(-20, 20)]
        return sp.Transformed(models[0], family[:domains], x, y, names=names)
    return sp.Ensemble(models, x, y, names=names)


def make_constant(model: nn.Module, labels: torch.Tensor, *, rarest: bool = True) -> None:
    """Its answer is the rarest label, or the most frequent one, whatever the image."""
    found, counts = labels.unique(return_counts=True)
    label = found[counts.argmin() if rarest else counts.argmax()]
    with torch.no_grad():
        model[-1].weight *= 1e-3
        model[-1].bias.copy_(100.0 * nn.functional.one_hot(label, 4))


def make_run(
    folder: Path,
    kind: str = "ensemble",
    *,
    rows: int = 20,
    domains: int = 3,
    names: tuple[str, ...] | None = None,
    classes: tuple[str, ...] = ("cat", "dog", "bird", "ship"),
    data: str = "toy",
    rule: str = "minmax",
    baseline: bool = True,
    channels: int = 1,
    chunk: int = 8,
    eps: float = 0.1,
) -> runs.Run:
    names = names or tuple(f"net {k}" for k in range(domains))
    everything = problem(kind, rows, domains, names, channels)
    options = {"classes": classes, "data": data, "rule": rule, "baseline": baseline}
    return execute(folder, kind, everything, **options, chunk=chunk, eps=eps)


def execute(
    folder: Path,
    kind: str,
    everything: sp.AbstractProblem,
    *,
    classes: tuple[str, ...] = (),
    data: str = "toy",
    rule: str = "minmax",
    baseline: bool = False,
    chunk: int = 8,
    eps: float = 0.1,
) -> runs.Run:
    """A finished run on any problem, with its report."""
    ball = sp.LpBall(math.inf, eps)
    config = {"kind": kind, "data": data, "norm": "linf", "eps": eps, "rule": rule, "steps": 10}
    config |= {"baseline": "average" if baseline else None, "loss": "cw", "models": ["net"]}
    run = runs.Run(
        kind=kind,
        command=f"saddlepoint attack {kind} --data {data}",
        settings=config,
        seed=0,
        domains=everything.names,
        classes=classes,
        rows=len(everything),
        hashes=runs.Hashes(
            runs.hash_settings(config), {"net": "0"}, runs.hash_tensors({"x": everything.lower})
        ),
    )
    job = runs.Job(
        problem=everything,
        solve=lambda part, rule, callback: sp.attack(
            part, ball, rule=rule, steps=10, callback=callback
        ),
        rule=sp.MinMax() if rule == "minmax" else sp.Average(),
        baseline=sp.Average() if baseline else None,
        chunk=chunk,
    )
    with runs.opened(run, folder, resume=True) as execution:
        run = runs.attack_rows(job, execution)
    report.write_report(folder)
    return run


def make_evaluation(
    folder: Path,
    *,
    domains: int = 1,
    rows: int = 12,
    names: tuple[str, ...] | None = None,
    classes: tuple[str, ...] = ("cat", "dog", "bird", "ship"),
    data: str = "toy",
    channels: int = 1,
    size: int = 6,
    eps: float = 0.05,
    budget: float | None = None,
    constant: bool = False,
) -> runs.Run:
    """A finished evaluation with a made-up word of the doctor."""
    names = names or tuple(f"net {k}" for k in range(domains))
    generator = torch.Generator().manual_seed(7)
    models = [network(seed, channels * size * size, 4) for seed in range(domains)]
    x = torch.rand(rows, channels, size, size, generator=generator)
    labels = models[0](x).argmax(dim=1)
    if constant:
        make_constant(models[0], labels)
    everything = sp.Ensemble(models, x, labels, names=names)
    balls = {"linf": sp.LpBall(math.inf, eps), "l2": sp.LpBall(2, 4 * eps)}
    config = {"data": data, "models": list(names), "suite": "quick", "every_attack": False}
    config |= {"transforms": [], "budget": None, "threat": [f"linf:{eps}", f"l2:{4 * eps}"]}
    found = {"status": "warn", "saw": "x < y", "means": names[0], "do": "look"}
    run = runs.Run(
        kind=runs.EVALUATE,
        command=f"saddlepoint evaluate --data {data}",
        settings=config,
        seed=0,
        domains=names,
        classes=classes,
        rows=rows,
        hashes=runs.Hashes(
            runs.hash_settings(config), dict.fromkeys(names, "0"), runs.hash_tensors({"x": x})
        ),
        metrics={"doctor": {name: [{"name": "gradients", **found}] for name in names}},
    )

    def evaluate(ledger: Ledger) -> Result:
        if domains > 1:
            short = {"steps": 5, "searches": 3, "batch_size": (rows + 1) // 2, "budget": budget}
            return robust_domains(everything, balls, **short, ledger=ledger)
        y, options = everything.labels[:, 0], {"budget": budget, "ledger": ledger}
        return sp.robust_accuracy(models[0], x, y, balls, **options)

    with short_suites(), runs.opened(run, folder, resume=True) as execution:
        run = runs.finish_evaluation(execution, evaluate, everything)
    report.write_report(folder)
    return run


def make_training(
    folder: Path,
    *,
    validation: Sequence[tuple[float, ...]] = ((0.5, 0.5, 0.75, 0.5), (0.55, 0.6, 0.8, 0.55)),
    command: str = "saddlepoint train --data toy",
    **settings: object,
) -> runs.Run:
    """The page of a training that never was, with held-out accuracies as given: linf, l2, clean, union."""
    names, threats = ("linf", "l2", "clean", "union"), ["linf:0.1", "l2:1"]
    config = {"method": "ampgd", "data": "mnist-sample", "model": "A", "threat": threats}
    config |= {"recipe": {"name": "fast", "epochs": len(validation)}, "seed": 0, **settings}
    history = tuple(
        runs.Epoch(
            stats={"loss": 2.0, "weight/linf": 0.6, "weight/l2": 0.4},
            validation=dict(zip(names, shares, strict=True)),
        )
        for shares in validation
    )
    metrics = runs.TrainingMetrics(
        rows=200,
        rows_attacked=40,
        accuracy=80.0,
        fgsm_accuracy=60.5,
        robust_accuracy={"clean": 85.0, "linf": 55.0, "l2": 60.0, "union": 52.5},
        rows_held_out=40,
        history=history,
    )
    run = runs.Run(
        kind="train",
        command=command,
        settings=config,
        seed=0,
        domains=("linf", "l2"),
        classes=(),
        rows=len(history),
        hashes=runs.Hashes(runs.hash_settings(config), {"A": "0"}, "0"),
        status="complete",
        done=len(history),
        metrics=metrics.plain(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.json").write_text(sp.models.card("mnist-a").to_json())
    (folder / "report.html").write_text(render_training(run, folder))
    return run
