"""What pages look like, as far as tests can tell: colours that mean one thing, bands that stay apart."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

import pytest
import torch

from run_factory import make_evaluation, make_run
from saddlepoint import runs
from saddlepoint.report import pictures, weight_charts
from saddlepoint.report.evaluation_page import evaluation_headline
from saddlepoint.report.patch_page import hardest_views
from saddlepoint.report.sentences import ball_text
from saddlepoint.runs.metric_parts import HeldOut, ViewSuccess

STYLE = (resources.files("saddlepoint.report") / "assets" / "report.css").read_text()


def variables(scheme: int) -> dict[str, str]:
    """Colours by name, of the light (0) or the dark (1) page."""
    block = re.findall(r":root \{(.*?)\n *\}", STYLE, re.S)[scheme]
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))


def hue(colour: str) -> tuple[float, float]:
    """Hue in degrees and saturation."""
    red, green, blue = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
    top, low = max(red, green, blue), min(red, green, blue)
    if top == low:
        return 0.0, 0.0
    turn = {
        red: (green - blue) / (top - low) % 6,
        green: 2 + (blue - red) / (top - low),
        blue: 4 + (red - green) / (top - low),
    }[top]
    return 60 * turn, (top - low) / top


class TestColours:
    @pytest.mark.parametrize("scheme", [0, 1])
    def test_no_domain_has_the_colour_of_fooled_or_not_fooled(self, scheme):
        found = variables(scheme)
        domains = [found[f"d{k}"] for k in range(8)]
        assert len(set(domains)) == 8
        for name in ("hit-fill", "miss-fill", "hit", "miss"):
            mine, _ = hue(found[name])
            for colour in domains:
                other, strong = hue(colour)
                apart = abs(mine - other) % 360
                # Brown is as dark as vermilion is bright; grey has no hue.
                assert min(apart, 360 - apart) > 12 or strong < 0.75, (name, colour)

    def test_only_domains_have_colours_of_domains(self):
        rules = re.findall(r"([^{}]+)\{([^{}]*var\(--d\d\)[^{}]*)\}", STYLE)
        assert {selector.strip() for selector, _ in rules} == {f".d{k}" for k in range(8)}

    def test_perturbations_have_no_colour(self):
        sizes = []
        encode = pictures.encode_png

        def look(pixels):
            sizes.append(pixels)
            return encode(pixels)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pictures, "encode_png", look)
            pictures.sign_picture(torch.tensor([[[0.5, -0.5, 0.0]]]), 0.5)
        (pixels,) = sizes
        assert pixels[:, 0].T.tolist() == [[255, 255, 255, 255], [0, 0, 0, 255], [0, 0, 0, 0]]

    def test_rules_and_the_hardest_have_none_either(self, tmp_path):
        make_run(tmp_path)
        text = (tmp_path / "report.html").read_text()
        bars = re.findall(r'<rect class="(bar[^"]*)"', text)
        assert bars == ["bar", "bar other"]

    def test_what_attacks_broke_has_the_colour_of_fooled(self, tmp_path):
        make_evaluation(tmp_path)
        text = (tmp_path / "report.html").read_text()
        assert re.search(r'<rect class="broke s0"', text)
        assert not re.search(r'<rect class="bar d\d', text)


@pytest.mark.parametrize("kind", ["universal", "transform"])
def test_no_mark_is_left_alone_on_a_line_below_a_caption(tmp_path, kind):
    make_run(tmp_path, kind, rows=4)
    text = (tmp_path / "report.html").read_text()
    captions = [
        each for each in re.findall(r"<small.*?</small>", text, re.S) if 'class="sign"' in each
    ]
    assert len(captions) > 4
    for caption in captions:  # the last letters hold it: captions may break anywhere else
        assert re.search(r'<span class="nowrap">[^<>]*[^<>\s] <span class="sign"', caption), caption
    assert ".nowrap { white-space: nowrap; }" in STYLE


def test_one_model_is_told_nothing_of_all_models_and_of_weights(tmp_path):
    make_run(tmp_path / "one", domains=1, rows=4)
    make_run(tmp_path / "two", domains=2, rows=4)
    one, two = ((tmp_path / name / "report.html").read_text() for name in ("one", "two"))
    assert "makes the model wrong." in one
    assert "makes all models wrong at the same time." in two
    assert ("<dt>Weights</dt>" in one, "<dt>Weights</dt>" in two) == (False, True)


def test_no_percent_sign_is_left_alone_on_a_line(tmp_path):
    make_run(tmp_path / "attack", rows=4)
    make_evaluation(tmp_path / "evaluation", rows=4, domains=1)
    for name in ("attack", "evaluation"):
        text = (tmp_path / name / "report.html").read_text()
        prose = text.partition('class="prose">')[2].partition("</div>")[0]
        assert "\xa0%" in prose
        assert " %" not in prose


class TestSmallMultiples:
    @pytest.mark.parametrize(("domains", "panels"), [(2, 0), (3, 3), (4, 4), (6, 6)])
    def test_three_domains_and_more_have_a_chart_each(self, tmp_path, domains, panels):
        make_run(tmp_path, domains=domains, rows=6)
        text = (tmp_path / "report.html").read_text()
        section = text.partition('<section id="weights">')[2].partition("</section>")[0]
        charts = re.findall(r"<svg.*?</svg>", section, re.S)
        bands = [chart.count('class="band') for chart in charts]
        # The last is the box plot.
        assert bands == ([1] * panels if panels else [domains]) + [0]

    def test_all_are_on_one_scale(self):
        weights = torch.zeros(3, 5, 4)
        weights[..., 0], weights[..., 1] = 0.7, 0.3
        charts = weight_charts.weights_panels(weights, "ABCD")
        ticks = [re.findall(r'text-anchor="end">([\d.]+)<', chart) for chart in charts]
        assert ticks == [["0", "0.4", "0.8"]] * 4


def test_the_median_radius_is_in_the_unit_of_the_threat(tmp_path):
    evaluation = make_evaluation(tmp_path / "run", rows=6, domains=2, eps=8 / 255)
    median = runs.EvaluationMetrics.of(evaluation).eps_min["linf"]["median"]
    assert median is not None
    page = (tmp_path / "run" / "report.html").read_text()
    row = page.partition("median smallest radius")[2].partition("</tr>")[0]
    assert f"{255 * median:.2g}/255<" in row


class TestTies:
    """Nothing is called the hardest, or to break most, that intervals do not set apart from all others."""

    def test_threats(self, tmp_path):
        evaluation = make_evaluation(tmp_path / "run", rows=6, domains=2)
        metrics = runs.EvaluationMetrics.of(evaluation)
        even = replace(metrics, robust=dict.fromkeys(metrics.robust, 50.0))
        assert "breaks most" not in " ".join(evaluation_headline(evaluation, even))
        ends = {"linf": (40.0, 60.0), "l2": (15.0, 35.0)}
        apart = replace(metrics, robust={"linf": 50.0, "l2": 25.0})
        apart = replace(apart, intervals=replace(apart.intervals, robust=ends))
        told = " ".join(evaluation_headline(evaluation, apart))
        assert f"The one that breaks most is {ball_text('l2', 0.2)}." in told
        bound = replace(
            apart, at_most=("robust.linf",)
        )  # an attack that failed might have broken all
        wider = {"linf": (30.0, 60.0), "l2": (15.0, 35.0)}
        close = replace(apart, intervals=replace(apart.intervals, robust=wider))
        none = (
            f"Which of the threats breaks most cannot be told by what they leave right of {metrics.rows} "
            f"images: the 95 % intervals of {ball_text('l2', 0.2)} (25.0 %) and {ball_text('linf', 0.05)} "
            "(50.0 %) overlap."
        )
        for each in (bound, close):
            said = " ".join(evaluation_headline(evaluation, each))
            assert none in said
            assert "The one that breaks most" not in said
        assert f"for this share of images: {ball_text('linf', 0.05)}: " in told

    def test_views(self):
        view = ViewSuccess(success=10.0, interval=(1.0, 20.0), plain=0.0, models={})
        counts = {"images": 5, "right": 4, "trials": 4, "mean": 10.0, "best_patch": 0, "maps": ()}
        worst = {"worst": 10.0, "worst_interval": (1.0, 20.0), "worst_view": "a"}
        others = (
            (10.0, (1.0, 20.0), []),
            (30.0, (10.0, 50.0), ["a", "b"]),
            (30.0, (21.0, 50.0), ["a"]),
        )
        for success, interval, expected in others:
            views = {"a": view, "b": replace(view, success=success, interval=interval)}
            assert hardest_views(HeldOut(**counts, **worst, views=views)) == expected
