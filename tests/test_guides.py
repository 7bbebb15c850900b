"""The Python of guides runs, block after block, as a reader would run it."""

from __future__ import annotations

import re

import pytest

from folders import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["transfer"])
def test_the_python_blocks_of_a_guide_run_in_order(name: str) -> None:
    path = ROOT / "docs" / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks
    namespace: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        code = "\n" * line + block.group(1)  # so that errors name the line of the guide
        exec(compile(code, str(path), "exec"), namespace)
