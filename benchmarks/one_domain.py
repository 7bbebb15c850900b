"""`attack` on one domain beside what it was before and beside APGD-CE, at 50 evaluations, row by row.

``python -m benchmarks.ceiling --tables alone`` measures what is not stored for the present code. Images are
test images from number 6000 on. APGD-CE and the robust CNN are those of pyautoattack.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import saddlepoint as sp
from saddlepoint.evaluation.verdicts import judge_domains

from .peers import machine, sound
from .peers.cases import THIRD_PARTY, Case, case_of
from .peers.cells import Store
from .peers.methods import APGD_CE, Work, missing

STORE, KIND = Path("docs/results/one-domain.json"), sound.rows(None)
FIRST, EVALUATIONS = 6000, 50
OURS: Mapping[str, Mapping[str, Any]] = {
    "now": {"evaluations": EVALUATIONS},
    "short": {"loss": sp.cw_margin, "steps": 24, "restarts": 2},
    "long": {"loss": sp.cw_margin, "steps": 49, "restarts": 1},
    "ceiling": {"steps": 200, "restarts": 10},
}
"""Options of `attack` by the name of the way: as it is, the margin with two restarts and one, the ceiling."""
WAYS = (*OURS, "apgd")


@dataclass(frozen=True)
class Lone:
    """One line: a case of one network, and how many rows."""

    case: Case
    rows: int


CASES = tuple(
    Lone(case_of("b", data, network, p, radius), rows)
    for data, network, p, radius, rows in (
        ("mnist", "mnist", 2.0, "2", 100),
        ("mnist", "mnist", 1.0, "8", 100),
        ("mnist", "a", math.inf, "0.1", 1000),
        ("mnist", "a", 2.0, "1.5", 500),
        ("mnist", "a", 1.0, "8", 500),
        ("mnist", "c", math.inf, "0.12", 200),
        ("mnist", "c", 2.0, "1.5", 200),
        ("mnist", "c", 1.0, "8", 200),
        ("mnist", "mnist", math.inf, "0.3", 100),
        ("cifar10", "a", math.inf, "0.01", 200),
        ("cifar10", "c", 2.0, "0.3", 150),
        ("cifar10", "c", 1.0, "5", 150),
    )
)


def found(way: str, case: Case, x: Tensor, y: Tensor) -> dict[str, str]:
    """Which rows a way fools, counted by our judge, and the evaluations that each took."""
    models = case.models()
    problem = sp.Ensemble(models, x, y)
    if way in OURS:
        result = sp.attack(problem, case.ball, **OURS[way])
        delta, spent = result.delta, result.num_forwards.tolist()
    else:
        work = Work(models, x, y, case.ball, EVALUATIONS, seed=0)
        delta, spent = APGD_CE.run(work).detach() - x, [EVALUATIONS] * len(x)
    broken = judge_domains(problem, delta, case.ball).broken.all(dim=1)
    return {
        "fooled": "".join("1" if each else "0" for each in broken.tolist()),
        "evaluations": " ".join(map(str, spent)),
    }


def measure(store: Store, only: str = "") -> None:
    """Add what is missing of the lines whose title has a text in it; nothing without pyautoattack."""
    gone = [why for need in ("pyautoattack", "h5py") if (why := missing(need))]
    if gone:
        print(f"one domain: skipped ({'; '.join(gone)})", flush=True)
        return
    code = machine.code_of("one_domain")
    for lone in CASES:
        if only in lone.case.title:
            _measure(lone, store, code)


def _measure(lone: Lone, store: Store, code: str) -> None:
    case, rows = lone.case, lone.rows
    shipped = {n: sp.models.card(n).sha256 for n in case.networks if n not in THIRD_PARTY}
    store.content["networks"].update(shipped)
    settings = {
        **{"rows": rows, "first": FIRST, "evaluations": EVALUATIONS, "networks": shipped},
        "options": machine.told(OURS),
        "code": code,
    }
    about = {"begun": machine.now(), "cpu": machine.cpu(), "wanted": len(WAYS)}
    about["versions"] = machine.versions()
    done = store.open(case.title, settings, about)
    x, y = sp.data.load(case.data, split="test")
    few = slice(FIRST, FIRST + rows)
    for way in WAYS:
        if way in done:
            continue
        began = time.process_time()
        cell = found(way, case, x[few], y[few])
        store.add(case.title, way, cell)
        count, spent = cell["fooled"].count("1"), time.process_time() - began
        print(f"{case.title}, {way}: {count} of {rows} fooled, {spent:.1f} s", flush=True)
