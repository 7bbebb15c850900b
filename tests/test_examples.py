"""Every example runs as it is and finds what its heading promises."""

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


def test_class_weights_are_those_of_a_training_step(tmp_path):
    example = runpy.run_path(str(EXAMPLES / "class_weights.py"))
    means, errors, names = example["class_weights"]("mnist-max", 100, 12)
    assert names == ("linf", "l2", "l1")
    assert means.sum(dim=1).tolist() == pytest.approx([1.0] * 10, abs=1e-5)
    assert (float(means.max() - means.min()) > 0.05, bool((errors > 0).all())) == (True, True)
    panel = example["classes"]("mnist-max", 100, 12)
    assert [curve.y for curve in panel.curves] == [tuple(column) for column in means.T.tolist()]
    files = example["drawing"].draw(example["Sheet"]("defence-classes", (panel,)), tmp_path)
    assert [file.name for file in files] == ["defence-classes.png", "defence-classes.svg"]
