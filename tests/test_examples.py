"""Every example runs as it stands and finds what its heading promises."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
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
