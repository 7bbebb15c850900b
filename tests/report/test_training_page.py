"""The page of a training: counts, intervals, axes in percent, and lines that do not hide each other."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import torch

from run_factory import make_training
from saddlepoint.evaluation import wilson
from saddlepoint.report.epoch_chart import epoch_chart
from saddlepoint.report.training_page import _tests
from saddlepoint.runs import TrainingMetrics, settings_of
from saddlepoint.runs.settings import TrainSettings


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def drawn(folder) -> str:
    return (folder / "report.html").read_text()


class TestNumbers:
    def test_the_headline_has_counts_and_an_interval(self, tmp_path):
        make_training(tmp_path)
        low, high = wilson(21, 40)
        text = plain(drawn(tmp_path)).replace("&thinsp;", " ").replace("&nbsp;", " ")
        assert "52.5 % of 40 test images are classified correctly under every threat" in text
        assert (
            f"21 of 40, with 95 % confidence between {100 * low:.1f} and {100 * high:.1f} %" in text
        )

    def test_every_test_has_its_own(self, tmp_path):
        make_training(tmp_path)
        table = drawn(tmp_path).partition('<section id="tests">')[2].partition("</section>")[0]
        lines = [plain(line) for line in table.split("<tr")[2:]]
        found = [
            re.search(r"(\d+) of (\d+) ([\d.]+) ([\d.]+)\u2013([\d.]+)$", line) for line in lines
        ]
        counts = [(int(each[1]), int(each[2])) for each in found]
        assert counts == [(160, 200), (121, 200), (34, 40), (22, 40), (24, 40), (21, 40)]
        for (right, count), each in zip(counts, found, strict=True):
            assert float(each[3]) == round(100 * right / count, 1)
            assert [float(each[4]), float(each[5])] == [
                round(100 * e, 1) for e in wilson(right, count)
            ]

    def test_every_test_has_a_name_of_its_own(self, tmp_path):
        run = make_training(tmp_path)
        few = TrainingMetrics.of(run)
        every = replace(few, rows=40, accuracy=85.0, fgsm_accuracy=60.0)
        threats = ["linf", "l2", "union"]
        settings = settings_of(run, TrainSettings)
        assert [each["name"] for each in _tests(few, settings)] == [
            *("clean", "FGSM", "clean, of these 40"),
            *threats,
        ]
        assert [each["name"] for each in _tests(every, settings)] == ["clean", "FGSM", *threats]

    def test_attacks_are_told_as_they_ran(self, tmp_path):
        make_training(tmp_path, test_steps=10, test_restarts=1)
        text = plain(drawn(tmp_path))
        assert text.count("the first 40, 1 attack of 10 steps per threat") == 3
        assert "held-out images, under three attacks of 20 steps per threat." in text

    def test_epochs_are_counted_and_the_kept_one_is_marked(self, tmp_path):
        make_training(
            tmp_path, validation=[(0.5, 0.5, 0.75, 0.5), (0.5, 0.6, 0.9, 0.5), (0.2,) * 4]
        )
        table = drawn(tmp_path).partition('<section id="epochs">')[2].partition("</section>")[0]
        lines = [plain("<tr" + line) for line in table.split("<tr")[2:]]
        assert ["kept" in line for line in lines] == [False, True, False]
        assert "50.0 20 of 40 60.0 24 of 40 90.0 36 of 40 50.0 20 of 40" in lines[1]
        assert "The parameters kept are those of epoch 2, the best on 40 held-out images" in plain(
            drawn(tmp_path)
        )
        assert table.count(">kept</text>") == 2

    def test_every_setting_is_told(self, tmp_path):
        make_training(tmp_path, mix=0.8, mean="cifar10")
        text = plain(drawn(tmp_path))
        for told in ("mix 0.8", "mean cifar10", "recipe name fast, epochs 2"):
            assert told in text

    def test_names_the_parameters_and_what_to_do_with_them(self, tmp_path):
        make_training(tmp_path)
        network = str(tmp_path / "model.safetensors")
        section = plain(drawn(tmp_path).partition('<section id="network">')[2])
        assert f"Its parameters are in {network}" in section
        (line,) = [each for each in section.split("saddlepoint ") if each.startswith("evaluate")]
        for part in (
            f"evaluate {network}",
            "--data mnist-sample",
            "--split test",
            "--threat linf:0.1",
        ):
            assert part in line
        assert "--limit" not in line

    def test_the_line_takes_few_of_many_test_images(self, tmp_path):
        make_training(tmp_path, data="mnist")
        section = drawn(tmp_path).partition('<section id="network">')[2]
        assert " --limit 1000 " in plain(section)


class TestLines:
    def test_axes_are_percent_and_alike(self, tmp_path):
        make_training(tmp_path)
        section = drawn(tmp_path).partition('<section id="epochs">')[2].partition("</section>")[0]
        charts = re.findall(r"<svg.*?</svg>", section, re.S)
        ticks = [re.findall(r'text-anchor="end">([^<]+)<', chart) for chart in charts]
        assert ticks == [["0 %", "25 %", "50 %", "75 %", "100 %"]] * 2

    def test_lines_at_one_place_are_dashes_that_do_not_cover_each_other(self):
        same = torch.tensor([0.2, 0.4, 0.6])
        chart = epoch_chart([same, same, same, same + 0.3], list("abcd"), "Accuracy")
        dashes = re.findall(
            r"stroke-dasharray:([\d.]+) ([\d.]+);stroke-dashoffset:(-?[\d.]+)", chart
        )
        assert len(dashes) == 3 * 2  # d runs alone
        for segment in (0, 1):
            mine = dashes[segment::2]
            period = {float(on) + float(off) for on, off, _ in mine}
            assert len(period) == 1
            (length,) = period
            on = float(mine[0][0])
            starts = sorted(-float(begin) % length for *_, begin in mine)
            gaps = [b - a for a, b in zip(starts, [*starts[1:], starts[0] + length], strict=True)]
            assert min(gaps) >= on - 0.2

    def test_points_at_one_place_have_rims(self):
        chart = epoch_chart([torch.tensor([0.5])] * 3, list("abc"), "Accuracy")
        radii = [float(r) for r in re.findall(r'<circle[^>]* r="([\d.]+)"', chart)]
        assert len(set(radii)) == 3
        assert radii == sorted(radii, reverse=True)  # the largest is drawn first

    def test_ticks_are_whole_epochs_at_equal_distances(self):
        for count in (1, 2, 4, 7, 15, 50, 350):
            chart = epoch_chart([torch.full((count,), 0.5)], ["a"], "Accuracy")
            ticks = [int(t) for t in re.findall(r'text-anchor="middle">(\d+)<', chart)]
            assert len({b - a for a, b in pairwise(ticks)}) <= 1
            assert set(ticks) <= set(range(1, count + 1))
