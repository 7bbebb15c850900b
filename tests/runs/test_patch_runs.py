"""`attack patch`: what it tests the patches on, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import saddlepoint as sp
from commands import inside
from saddlepoint import runs
from saddlepoint.data.pixels import read_picture, unit
from saddlepoint.report.pictures import encode_png
from saddlepoint.runs import AttackMetrics, Run
from saddlepoint.runs.attack_words import patch, view, views
from saddlepoint.streams import JUDGE

VIEWS = "anywhere,anywhere+rotate:-30..30"
QUICK = (
    *("attack", "patch", "--data", "mnist-sample", "--models", "A,C", "--patch", "9x7"),
    *("--views", VIEWS, "--limit", 40, "--images-per-patch", 8, "--held-out", 20, "--steps", 3),
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Run, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("patch") / "run"
    assert (
        inside(*QUICK, "--baseline", "average", "--quantize", 256, "--out", folder, "--quiet") == 0
    )
    return folder, *runs.read_results(folder)


def test_patches_are_tested_on_images_that_none_was_made_with(finished) -> None:
    """Counted again from Python: groups of the first 20 images, the last 20 held out."""
    _, run, tensors = finished
    x, y = sp.data.sample("mnist", 40)
    models = [sp.models.channels_last(sp.models.load(f"mnist-{n}")) for n in "ac"]
    groups, truth = sp.data.group(x[:20], y[:20], 8)
    made = sp.Patched(models, sp.Patch(size=(9, 7)), groups, truth, views(VIEWS.split(",")))
    rates = sp.patch_rates(made.elsewhere(x[20:], y[20:]).on_grid(256), tensors["delta"])
    held_out = AttackMetrics.of(run).held_out
    assert (run.rows, held_out.images, held_out.right) == (2, 20, int(rates.right.all(0).sum()))
    for name, share, ends in zip(rates.views, rates.per_view, rates.intervals(), strict=True):
        seen = held_out.views[name]
        assert (seen.success, seen.interval[0]) == pytest.approx(
            (100 * share, 100 * ends[0]), abs=1e-3
        )
    assert held_out.worst == min(each.success for each in held_out.views.values())
    assert held_out.mean == pytest.approx(100 * rates.mean, abs=1e-3)
    assert tensors["held_out.fooled"].shape == (2, 2, 2 + 25 + 35, 20)
    assert [len(each.success) * len(each.success[0]) for each in held_out.maps] == [25, 35]


def test_a_cell_of_a_heat_map_is_the_view_it_names(finished) -> None:
    _, run, tensors = finished
    held_out = AttackMetrics.of(run).held_out
    right = tensors["held_out.right"][0].all(dim=0)
    corner = tensors["held_out.fooled"][:, :, 2 + 4].all(dim=1)[:, right]  # top right
    assert held_out.maps[0].success[0][4] == pytest.approx(
        100 * corner.double().mean().item(), abs=1e-3
    )
    last = tensors["held_out.fooled"][:, :, -1].all(dim=1)[
        :, right
    ]  # largest, turned by 90 degrees
    assert held_out.maps[1].success[-1][-1] == pytest.approx(
        100 * last.double().mean().item(), abs=1e-3
    )
    assert (held_out.maps[1].down[-1], held_out.maps[1].across[-1]) == ("x 1.5", "90°")


def test_weights_move_over_views_and_are_equal_inside_them(finished) -> None:
    _, _, tensors = finished
    weights = tensors["weights"].unflatten(1, (2, 2, 8))  # models, views, images
    torch.testing.assert_close(weights, weights[:, :1, :, :1].expand_as(weights))
    torch.testing.assert_close(weights.sum(dim=(1, 2, 3)), torch.ones(2))


def test_the_report_shows_the_patch_and_the_files_hold_it(finished) -> None:
    folder, run, tensors = finished
    best = AttackMetrics.of(run).held_out.best_patch
    small = unit(read_picture(folder / "patch-true-size.png"))
    first = tensors["patch.mask"].nonzero().amin(dim=0).tolist()
    own = tensors["patch.canvas"][best, :, first[0] : first[0] + 9, first[1] : first[1] + 7]
    assert small.shape[1:] == (9, 7)
    torch.testing.assert_close(small[:1], own, rtol=0, atol=1e-6)  # 8-bit: nothing is lost
    large = unit(read_picture(folder / "patch.png"))
    factor = large.shape[1] // 9
    assert large.shape[1:] == (9 * factor, 7 * factor)
    assert max(large.shape[1:]) >= 1024
    assert torch.equal(large[:, factor // 2 :: factor, factor // 2 :: factor], small)
    page = (folder / "report.html").read_text()
    assert 'href="patch.png"' in page
    assert page.count('class="heat"') == 2
    assert {path.name for path in folder.iterdir()} == set(run.files)


def test_pixels_that_the_patch_does_not_cover_are_the_images_bit_for_bit(
    finished, tmp_path
) -> None:
    """Which are covered is found out with two patches of one colour each, black and white."""
    _, run, tensors = finished
    x, y = sp.data.sample("mnist", 40)
    models = [sp.models.load("mnist-a"), sp.models.load("mnist-c")]
    groups, truth = sp.data.group(x[:20], y[:20], 8)
    made = sp.Patched(models, sp.Patch(size=(9, 7)), groups, truth, views(VIEWS.split(",")))
    best = AttackMetrics.of(run).held_out.best_patch
    part = made.elsewhere(x[20:], y[20:]).on_grid(256).take(torch.tensor([best]))
    clean, seen = tensors["examples.clean"], tensors["examples.seen"]
    which = tensors["held_out.right"][0].all(dim=0).nonzero().flatten()[: len(clean)]
    assert torch.equal(clean, x[20:][which])
    for v in range(seen.shape[0]):
        black, white = (
            part.photographs(end, v, JUDGE)[0, which] for end in (part.lower, part.upper)
        )
        covered = black != white
        for e in range(seen.shape[1]):
            path = tmp_path / "photograph.png"
            path.write_bytes(encode_png((seen[v, e] * 255).round().to(torch.uint8)))
            read = unit(read_picture(path))[:1]
            torch.testing.assert_close(read, seen[v, e], rtol=0, atol=1e-6)
            there = covered[e]
            assert 30 < int(there.sum()) < 2 * 63  # 9 x 7, or turned
            assert torch.equal(seen[v, e][~there], clean[e][~there])
            assert not torch.equal(seen[v, e][there], clean[e][there])


def test_a_complete_run_is_not_repeated_and_its_line_repeats_it(finished, capsys) -> None:
    folder, run, _ = finished
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    words = (*QUICK, "--baseline", "average", "--quantize", 256, "--out", folder, "--resume")
    assert inside(*words) == 0
    assert "is complete already" in capsys.readouterr().err
    assert before[runs.TENSORS] == (folder / runs.TENSORS).stat().st_mtime_ns
    assert "--patch 9x7" in run.command
    assert f"--views {VIEWS}" in run.command.replace("'", "")


def test_a_targeted_patch_leaves_out_the_images_of_the_class(tmp_path: Path) -> None:
    words = (*QUICK, "--targeted", 3, "--eps", "250/255")
    assert inside(*words, "--out", tmp_path / "run", "--quiet") == 0
    _, tensors = runs.read_results(tmp_path / "run")
    assert not (tensors["labels"] == 3).any()
    assert not (tensors["examples.labels"] == 3).any()
    assert torch.equal(tensors["fooled"], tensors["predictions"] == 3)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "answer its target (3)" in page
    assert "at most 0.980392 from grey" in page
    assert "A cross marks what is answered with the class to reach, a tick what is not." in page
    # Another wrong answer is no success, and a cross is one, as in all reports.
    shown = page.partition('id="examples"')[2].partition('id="run"')[0]
    reached = int((tensors["examples.says"] == 3).sum())
    assert int((tensors["examples.says"] != tensors["examples.labels"]).sum()) > reached
    assert shown.count('class="hit"') == shown.count("✕") == reached
    assert shown.count('class="miss"') == shown.count("✓")


def test_a_mask_of_a_file_is_the_patch_and_part_of_what_a_run_was_made_of(tmp_path, capsys) -> None:
    def draw(rows: slice) -> None:
        pixels = torch.zeros(1, 28, 28, dtype=torch.uint8)
        pixels[0, rows, 10:16] = 255
        pixels[0, rows.start, 10] = 0  # no rectangle
        (tmp_path / "mask.png").write_bytes(encode_png(pixels))

    draw(slice(8, 14))
    words = [*QUICK, "--out", tmp_path / "run", "--quiet"]
    words[words.index("9x7")] = tmp_path / "mask.png"
    assert inside(*words) == 0
    _, tensors = runs.read_results(tmp_path / "run")
    assert int(tensors["patch.mask"].sum()) == 35
    assert not tensors["delta"][..., ~tensors["patch.mask"]].any()
    draw(slice(9, 15))
    assert inside(*words, "--resume") != 0
    assert "other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--patch", "0"), "`--patch` must be a size"),
        (("--patch", "round"), "`--patch` must be a size"),
        (("--patch", "none.png"), "`--patch` must be a file that exists"),
        (("--patch", "40"), "`--patch` must fit into images of 28 x 28 pixels"),
        (("--views", "nowhere"), "`--views` must be here, anywhere"),
        (("--views", "here,here"), "`--views` must name every view once"),
        (("--views", "anywhere+scale:0"), "`--views` 'anywhere+scale:0': `scale` must be within"),
        (("--victims", "D"), "`--victims` must be left out for patch, got D"),
        (("--over", "pixel"), "`--over` must be view, image, model"),
        (("--held-out", "35"), "`--held-out` must leave 8 images for a patch"),
        (("--held-out", "35"), "take fewer, such as --held-out 13 --images-per-patch 13."),
        (("--eps", "8"), "`--eps` must be at most 1"),
        (("--rule", "fixed:0.5,0.25,0.25"), "must have one entry per domain, K = 2, got 3"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(change, message, tmp_path, capsys) -> None:
    words = list(QUICK)
    if change[0] in words:
        words[words.index(change[0]) + 1] = change[1]
    else:
        words += change
    assert inside(*words, "--out", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert message in " ".join(said.split())
    assert not (tmp_path / "run").exists()


def test_a_board_shows_a_patch_by_its_hardest_view(finished) -> None:
    folder, run, _ = finished
    entry = runs.rank_runs([folder]).alone[0].entry
    held_out = AttackMetrics.of(run).held_out
    assert entry.score == (held_out.worst, *held_out.worst_interval)


def test_views_and_patches_are_written_as_they_are_read() -> None:
    for text in ("here", "anywhere+scale:0.6..0.8", "at:0/1+rotate:-45+brightness:-0.3..-0.1"):
        assert view(text).name == text
    assert patch("8x6", 1.0) == sp.Patch(size=(8, 6))
    assert patch("8", 0.1).eps == 0.1


def test_metrics_are_read_back_as_they_were_written(finished) -> None:
    folder, run, _ = finished
    metrics = AttackMetrics.of(run)
    assert metrics.plain() == json.loads((folder / runs.RECORD).read_text())["metrics"]
    assert metrics.baseline.held_out is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: held.update(worst_view="from above"), "hardest view among them"),
        (lambda held: held.update(best_patch=7), "best patch among its rows"),
        (lambda held: held["views"].pop("anywhere"), "must have views"),
        (lambda held: held["maps"][0]["success"].pop(), "a heat map of cells"),
        (lambda held: held.update(worst="high"), "worst"),
    ],
)
def test_a_record_whose_parts_do_not_fit_is_refused(finished, change, message) -> None:
    _, run, _ = finished
    metrics = json.loads(json.dumps(run.metrics))
    change(metrics["held_out"])
    with pytest.raises(ValueError, match=message):
        runs.metrics_of(run.but(metrics=metrics))


def test_a_leaderboard_has_room_for_a_patch(finished, tmp_path, capsys) -> None:
    folder, _, _ = finished
    again = shutil.copytree(folder, tmp_path / "again")
    assert inside("report", folder, again, "--out", tmp_path / "board.html") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("Runs of this kind (patch) are not ranked.") == 2
