"""The README's Python runs, block after block, as a reader would run it."""

from __future__ import annotations

import re

from folders import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_python_blocks_of_the_readme_run_in_order() -> None:
    text = README.read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks
    namespace: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        code = "\n" * line + block.group(1)  # so that errors name the line of the README
        exec(compile(code, str(README), "exec"), namespace)
