"""The reports in the documentation are small, whole, and made by the commands beside them."""

from __future__ import annotations

import html
import importlib
import re
import shlex
import sys

from folders import ROOT

sys.path.insert(0, str(ROOT / "tools"))
gallery = importlib.import_module("gallery")
links = importlib.import_module("links")


def test_the_reports_are_small_and_fetch_nothing() -> None:
    pages = sorted(gallery.SHOWN.rglob("*.html"))
    assert {page.stem for page in pages} == {*gallery.NAMES, "report"}
    assert all(page.stat().st_size < gallery.LARGEST for page in pages)
    assert sum(page.stat().st_size for page in pages) < 5_000_000
    assert list(links.faults(gallery.SHOWN)) == []


def test_each_report_names_the_command_that_the_page_shows() -> None:
    shown = gallery.commands()
    for page in sorted(gallery.SHOWN.rglob("report.html")) + [
        gallery.SHOWN / f"{name}.html" for name in gallery.NAMES if name != "leaderboard"
    ]:
        name = page.parent.name if page.stem == "report" else page.stem
        (command,) = (words for words in shown if words[-1].endswith(f"/{name}"))
        text = page.read_text(encoding="utf-8")
        lines = re.findall(r"<code[^>]*>saddlepoint (.*?)</code>", text)
        (line,) = (
            html.unescape(line)
            for line in lines
            if line.startswith(f"{command[0]} --") or line.startswith(" ".join(command[:2]))
        )
        said = shlex.split(line)
        asked = command[: command.index("--out")]
        assert said[0] == asked[0], page
        # Settings that the command leaves out are written out in the report.
        pairs = set(zip(said, [*said[1:], ""], strict=True))
        given = zip(asked, [*asked[1:], ""], strict=True)
        assert {pair for pair in given if pair[0].startswith("--")} <= pairs, page


def test_the_pictures_are_small() -> None:
    for name in gallery.PICTURES:
        assert 5_000 < (ROOT / "docs" / "assets" / f"{name}.png").stat().st_size < 150_000
