"""Notebooks among the examples as pages of the site, with their output."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

NAMES = ("own_ensemble", "evaluate", "train", "table_1")
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def all_of(root: Path) -> list[Path]:
    """The notebooks of a checkout, in the order of the menu."""
    return [root / "examples" / f"{name}.ipynb" for name in NAMES]


def write(path: Path, folder: Path, *, execute: bool = True) -> Path:
    """Writes a notebook as Markdown, with its pictures beside it.

    Args:
        path: Of the notebook, which is stored without output.
        folder: Where the page goes; it is made.
        execute: Run it, which shows the output; else the page has the input only.
    """
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    if execute:
        where = {"metadata": {"path": str(path.parent)}}
        nbclient.NotebookClient(
            notebook, timeout=3600, kernel_name="python3", resources=where
        ).execute()
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{path.stem}.md"
    page.write_text(markdown(json.loads(nbformat.writes(notebook)), page), encoding="utf-8")
    return page


def markdown(notebook: dict[str, Any], page: Path) -> str:
    """The text of a page; pictures are written beside it."""
    found = []
    for number, cell in enumerate(notebook["cells"]):
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            found.append(source)
            continue
        found.append(f"```python\n{source}\n```")
        shown = [
            _shown(output, page.with_name(f"{page.stem}-{number}-{place}.png"))
            for place, output in enumerate(_joined(cell.get("outputs", [])))
        ]
        if any(shown):
            inside = "\n\n".join(filter(None, shown))
            found.append(f'<div class="output" markdown="1">\n\n{inside}\n\n</div>')
    name = f"{page.stem}.ipynb"
    found.append(f"This page is `examples/{name}` of the checkout, run when the site was built.")
    return "\n\n".join(found) + "\n"


def _joined(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines that were printed one after the other, in one piece."""
    found: list[dict[str, Any]] = []
    for output in outputs:
        name = output.get("name")
        if found and name == "stdout" and found[-1].get("name") == name:
            text = _text(found[-1]["text"]) + _text(output["text"])
            found[-1] = {**output, "text": text}
        else:
            found.append(output)
    return found


def _shown(output: dict[str, Any], picture: Path) -> str:
    if output["output_type"] == "error":
        raise ValueError(f"{picture.stem}: {_text(output['traceback'])}")
    if output["output_type"] == "stream":
        return _plain(_text(output["text"]) if output["name"] == "stdout" else "")
    data = output.get("data", {})
    if "image/png" in data:
        picture.write_bytes(base64.b64decode(_text(data["image/png"])))
        return f"![Output of the cell above]({picture.name})"
    if "text/html" in data:
        html = _text(data["text/html"])
        # One block to the reader of Markdown: without blank lines it does not look inside.
        return "\n".join(line for line in html.splitlines() if line.strip())
    return _plain(_text(data.get("text/plain", "")))


def _plain(text: str) -> str:
    clean = _COLOURS.sub("", text).strip("\n")
    return f"```text\n{clean}\n```" if clean else ""


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
