"""Every example runs as it is and finds what its heading promises."""

import json
import runpy

import pytest

from folders import ROOT
from saddlepoint import cli

EXAMPLES = ROOT / "examples"
# Few images, to be quick; chance success (an undefended image is misclassified anyway) is far lower.
SMALL = {"ensemble": {"images": 6}, "universal": {"images": 40}, "transform": {"images": 16}}


@pytest.mark.parametrize("name", SMALL)
def test_example(name, capsys):
    path = EXAMPLES / f"{name}.py"
    main = runpy.run_path(str(path))["main"]
    found = main(**SMALL[name])
    assert set(found) == {"Average", "MinMax"}
    assert 0.3 < found["MinMax"] <= 1
    printed = capsys.readouterr().out
    for rule, rate in found.items():
        (row,) = [line for line in printed.splitlines() if line.startswith(rule)]
        assert f"{100 * rate:.1f}%" in row


@pytest.mark.parametrize("name", SMALL)
def test_examples_are_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60


def small_training(folder, seed, eps):
    """A training against linf and l2 of a few seconds; returns its folder."""
    words = "train --data mnist-sample --model A --method ampgd --limit 60 --held-out 20 --epochs 2 --steps 4"
    words += f" --test-images 2 --test-steps 1 --threat linf:0.2 --threat l2:{eps} --seed {seed}"
    with pytest.raises(SystemExit) as caught:
        cli.main([*words.split(), "--quiet", "--out", str(folder)])
    assert caught.value.code == 0
    return folder


def test_defence_figures_show_accuracy_over_epochs_and_weights_over_radii(tmp_path):
    """Runs as `train` writes them: two seeds of one radius, which are a band, and one of another."""
    example = runpy.run_path(str(EXAMPLES / "defence_figures.py"))
    made = [(0, 4.0), (1, 4.0), (0, 1.0)]
    folders = [small_training(tmp_path / f"{seed}-{eps}", seed, eps) for seed, eps in made]
    last = [
        json.loads((folder / "history.jsonl").read_text().splitlines()[-1])["stats"]
        for folder in folders
    ]
    by_radius = example["weights"](folders)
    assert [curve.label for curve in by_radius.curves] == ["linf", "l2"]
    for curve in by_radius.curves:
        one, two, alone = (each[f"weight/{curve.label}"] for each in last)
        assert curve.x == (1.0, 4.0)
        assert curve.y == pytest.approx((alone, (one + two) / 2))
        assert curve.low == pytest.approx((alone, min(one, two)))
        assert curve.high == pytest.approx((alone, max(one, two)))
    epochs = [json.loads(line) for line in (folders[2] / "history.jsonl").read_text().splitlines()]
    (panel,) = example["accuracy"](folders[2:])
    shown = {curve.label: curve for curve in panel.curves}
    assert shown["l2"].y == pytest.approx([100 * each["validation"]["l2"] for each in epochs])
    assert (set(shown), shown["l2"].low) == ({"linf", "l2", "union"}, ())
    assert panel.title == "AMPGD"
    files = example["main"](folders[:2], folders, [], tmp_path / "figures")
    assert [file.name for file in files] == [
        "defence-accuracy.png",
        "defence-accuracy.svg",
        "defence-weights.png",
        "defence-weights.svg",
    ]
    assert all(file.stat().st_size > 5000 for file in files)
