"""The page of a universal attack: nothing is counted by the place of an image in its group."""

from __future__ import annotations

import re

import pytest
import torch

from run_factory import make_run
from saddlepoint import runs
from saddlepoint.cli import printing
from saddlepoint.report import page, weight_charts


@pytest.fixture(scope="module")
def universal(tmp_path_factory):
    folder = tmp_path_factory.mktemp("universal")
    return make_run(folder, "universal", domains=4, eps=0.04), folder


def before_the_gallery(folder) -> str:
    return (folder / "report.html").read_text().partition('<section id="gallery">')[0]


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


class TestPage:
    def test_has_no_table_or_chart_by_place(self, universal):
        run, folder = universal
        shown = before_the_gallery(folder)
        for name in run.domains:
            assert name not in shown
        assert "by place" not in shown
        assert '<option value="0">net 0 not fooled' not in (folder / "report.html").read_text()

    def test_says_whose_accuracy_it_is(self, universal):
        shown = plain((universal[1] / "report.html").read_text())
        assert "Accuracy is the share of single images that the model still gets right." in shown
        assert "a single image still gets right" not in shown

    def test_counts_images_of_all_groups(self, universal):
        run, folder = universal
        tensors = runs.read_results(folder)[1]
        shown = plain(before_the_gallery(folder))
        right, clean = int((~tensors["fooled"]).sum()), int((~tensors["clean_fooled"]).sum())
        average = int((~tensors["baseline.fooled"]).sum())
        assert f"images still right, of 80 {clean} {average} {right} " in shown
        assert f"images fooled, of all, % {run.metrics['baseline']['asr_mean']:.1f}" in shown

    def test_the_histogram_has_every_image_once_by_its_outcome(self, universal):
        _, folder = universal
        tensors = runs.read_results(folder)[1]
        bars = re.findall(
            r"<title>(\d+) from ([\d.]+) to ([\d.]+): ([a-z ]+)</title>", before_the_gallery(folder)
        )
        before, fooled = tensors["clean_fooled"], tensors["fooled"]
        for name, table in {
            "fooled": fooled & ~before,
            "not fooled": ~fooled & ~before,
            "wrong before the attack": before,
        }.items():
            assert sum(int(n) for n, *_, what in bars if what == name) == int(table.sum())
        light = sum(int(n) for n, low, *_ in bars if float(low) == 0)
        end = next(float(high) for _, low, high, _ in bars if float(low) == 0)
        assert light == int((tensors["weights"] < end).sum())

    def test_hard_images_have_the_largest_weights_and_easy_ones_the_smallest(self, universal):
        _, folder = universal
        weights = runs.read_results(folder)[1]["weights"].flatten().sort().values
        shown = before_the_gallery(folder)
        hard, easy = (
            [float(w) for w in re.findall(r"weight <b>([\d.]+)</b>", part)]
            for part in shown.partition("Hard images")[2].split("Easy images")
        )
        torch.testing.assert_close(torch.tensor(hard), weights[-6:].flip(0), atol=0.006, rtol=0)
        torch.testing.assert_close(torch.tensor(easy), weights[:6], atol=0.006, rtol=0)

    def test_few_bytes_leave_fewer_pictures(self, tmp_path):
        make_run(tmp_path, "universal", rows=40, channels=3)
        page.write_report(tmp_path, max_bytes=100_000)
        few = before_the_gallery(tmp_path).count("adversarial image")
        page.write_report(tmp_path)
        assert few <= before_the_gallery(tmp_path).count("adversarial image") == 12

    def test_the_console_has_totals_only(self, universal, capsys):
        run, _ = universal
        printing.summary(run)
        told = capsys.readouterr().out
        assert not any(name in told for name in run.domains)
        assert "mean weight" not in told
        metrics = runs.AttackMetrics.of(run)
        assert f"{metrics.asr_mean:.1f}" in told
        right = sum(metrics.accuracy.values()) / 4
        assert re.search(rf"images right +[\d.]+ +[\d.]+ +{right:.1f}", told)


class TestHistogram:
    def test_piles_add_up_to_the_axis(self):
        chart = weight_charts.histogram(
            {"hit": torch.zeros(3), "miss": torch.zeros(1)}, {"hit": "fooled"}, 0.5
        )
        low, high = (
            re.search(rf'<rect class="{style}" [^>]*y="([\d.]+)"[^>]*height="([\d.]+)"', chart)
            for style in ("hit", "miss")
        )
        # Three of four at the bottom, one above them up to the end of the axis.
        assert float(low[2]) == pytest.approx(3 * float(high[2]), abs=0.2)
        assert float(high[1]) == pytest.approx(12.0)
        assert float(low[1]) == pytest.approx(12.0 + float(high[2]), abs=0.2)
