"""The reports of docs/gallery: runs the commands that docs/gallery.md shows and copies their pages.

Then it draws the pictures of README, for which it needs playwright and Chromium. `make gallery` calls it.
`python tools/gallery.py RUNS` takes runs that are there already, `--pictures` draws the pictures only.
"""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pages

ROOT = Path(__file__).parent.parent
SHOWN = ROOT / "docs" / "gallery"
NAMES = ("demo", "universal", "evaluation", "training", "leaderboard")
LARGEST = 1_000_000
"""Bytes of a page."""
PICTURES = {"report": ("main", 918), "weights": ("#weights", 292)}
"""What is cut out of the demo's page, and how much of it from the top."""


def commands() -> list[list[str]]:
    """The words of every command of the page, without the name of the program."""
    (block,) = (text for _, text in pages.blocks(ROOT / "docs" / "gallery.md", "console"))
    return [shlex.split(line)[1:] for line in pages.commands(block)]


def copied(runs: Path) -> list[Path]:
    """Pages out of the folders of runs, each small enough to ship."""
    SHOWN.mkdir(exist_ok=True)
    found = []
    for name in NAMES:
        page = runs / name / "report.html"
        if name == "leaderboard":
            page = runs / name / "leaderboard.html"
        else:
            limit = ["--max-megabytes", "0.6"]
            command = [sys.executable, "-m", "saddlepoint", "report", str(runs / name), *limit]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        target = Path(shutil.copyfile(page, SHOWN / f"{name}.html"))
        if target.stat().st_size > LARGEST:
            raise ValueError(f"{target} has {target.stat().st_size} bytes, at most {LARGEST}")
        found.append(target)
    for page in sorted((runs / "leaderboard").glob("*/report.html")):  # where its links lead
        target = SHOWN / page.parent.name
        target.mkdir(exist_ok=True)
        found.append(Path(shutil.copyfile(page, target / page.name)))
    return found


def pictures() -> None:
    """The demo's page as it looks, as PNG files with few colours."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 1200}, color_scheme="light")
        page.goto((SHOWN / "demo.html").as_uri())
        for name, (part, height) in PICTURES.items():
            box = page.locator(part).bounding_box()
            assert box is not None
            area = {**box, "x": 0, "width": 1000, "height": height}
            image = Image.open(io.BytesIO(page.screenshot(clip=area, full_page=True)))
            few = image.convert("RGB").quantize(255, dither=Image.Dither.NONE)
            few.save(ROOT / "docs" / "assets" / f"{name}.png", optimize=True)
        browser.close()


def main(words: list[str]) -> None:
    """Everything, or what the words ask for."""
    if "--pictures" not in words:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            for command in [] if words else commands():
                subprocess.run(
                    [sys.executable, "-m", "saddlepoint", *command], cwd=place, check=True
                )
            copied(Path(words[0]) if words else place / "runs")
    pictures()


if __name__ == "__main__":
    main(sys.argv[1:])
