"""The fenced blocks of Markdown pages, and the commands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a page in a language, without their indentation: lines before the text, and text."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(
        rf"^(?P<indent> *)```{language}\n(?P<text>.*?)^(?P=indent)```",
        text,
        re.DOTALL | re.MULTILINE,
    )
    return [
        (
            text[: block.start("text")].count("\n"),
            re.sub(rf"^{block['indent']}", "", block["text"], flags=re.MULTILINE),
        )
        for block in found
    ]


def commands(block: str) -> Iterator[str]:
    """Lines that a reader types, continued ones in one piece, without the prompt and remarks."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            yield re.sub(r"\s+#\s.*$", "", line[2:])
