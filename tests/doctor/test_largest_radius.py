"""The doctor looks at the radius that is evaluated, the largest one too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import saddlepoint as sp
from commands import inside


def test_every_image_falls_within_the_whole_range_of_a_pixel() -> None:
    x, y = sp.data.sample("mnist")
    findings = sp.doctor.examine(
        sp.models.load("mnist-c"), x[:4], y[:4], eps=1.0, steps=5, queries=5
    )
    radii = next(each for each in findings if ", 0% at 1" in each.saw)
    assert radii.status == "ok"
    for eps in (0.0, 1.01):
        with pytest.raises(ValueError, match=r"`eps` must be in \(0, 1\], got"):
            sp.doctor.examine(sp.models.load("mnist-c"), x[:4], y[:4], eps=eps)


def test_evaluate_asks_the_doctor_about_the_radius_of_the_threat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def examine(model: object, x: object, y: object, *, eps: float, **options: Any) -> None:
        asked.append(eps)
        raise KeyboardInterrupt

    monkeypatch.setattr(sp.doctor, "examine", examine)
    assert inside("evaluate", "C", "--threat", "linf:1", "--limit", 2, "--out", tmp_path) == 130
    assert asked == [1.0]
