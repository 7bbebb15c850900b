"""Every example runs as it is and finds what its heading promises."""

import json
import runpy

import pytest

from folders import ROOT

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


def test_defence_figures_show_accuracy_over_epochs_and_weights_over_radii(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "defence_figures.py"))
    for eps in ("4.0", "1.0"):
        share = {"clean": 0.9, "linf": 0.2, "l2": 0.4, "union": 0.2}
        last = {"weight/linf": 1 - float(eps) / 8, "weight/l2": float(eps) / 8}
        run = {
            "config": {"method": "ampgd", "threat": ["linf:0.2", f"l2:{eps}"]},
            "history": [{"validation": share}, {"validation": {**share, "l2": 0.6}, **last}],
        }
        (tmp_path / eps).mkdir()
        (tmp_path / eps / "run.json").write_text(json.dumps(run))
    folders = [tmp_path / "4.0", tmp_path / "1.0"]
    by_radius = example["weights"](folders)
    assert [(c.label, c.x, c.y) for c in by_radius.curves] == [
        ("linf", (1.0, 4.0), (0.875, 0.5)),
        ("l2", (1.0, 4.0), (0.125, 0.5)),
    ]
    over_epochs = example["accuracy"](folders[0])
    assert {c.label: c.y for c in over_epochs.curves}["l2"] == (40, 60)
    assert over_epochs.title == "AMPGD"
    files = example["main"](folders[:1], folders, tmp_path / "figures")
    assert [file.name for file in files] == [
        "defence-accuracy.png",
        "defence-accuracy.svg",
        "defence-weights.png",
        "defence-weights.svg",
    ]
    assert all(file.stat().st_size > 5000 for file in files)
