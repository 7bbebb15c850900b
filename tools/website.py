"""The documentation site: `make docs` builds it in build/site and ends with an error at the first fault.

Pages are the Markdown files in docs. What is not written by hand is added here: changelog and contributing
from the top of the checkout, notebooks with their output. Then Zensical draws them, strictly, and every link
is followed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import links
import notebooks
import reference

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
# Pages that are written by a measurement or that belong to a feature: in the menu as soon as they exist.
LATER = {"BENCHMARKS.md", "TRANSFER_RESULTS.md", "transfer.md", "patches.md", "scores.md"}


def main() -> int:
    """Prepares, builds and checks; the number of faults, at most one, is the exit code."""
    faults = [f"no docstring or no example: {name}" for name in reference.incomplete()]
    prepare()
    faults += [f"not in the menu of mkdocs.yml: {page}" for page in unlisted(configuration())]
    if not faults:
        site = BUILD / "site"
        shutil.rmtree(site, ignore_errors=True)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        subprocess.run([*command, "--config-file", "mkdocs.yml"], cwd=BUILD, check=True)
        faults = list(links.faults(site))
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    if not faults:
        pages = len(list((BUILD / "site").rglob("*.html")))
        sys.stdout.write(
            f"{pages} pages, links inside lead somewhere, others to known hosts: build/site/index.html\n"
        )
    return bool(faults)


def prepare(run_notebooks: bool = True) -> None:
    """Everything that is drawn, below build/pages, and build/mkdocs.yml."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.json"))
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        # Seen from docs, which is the top of the site.
        text = text.replace("](docs/", "](").replace("](README.md", "](index.md")
        (PAGES / f"{name.lower()}.md").write_text(text, encoding="utf-8")
    for page in PAGES.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        # In the checkout these two are one folder above docs, on the site beside its pages.
        text = re.sub(r"\]\(((?:\.\./)*)\.\./(CHANGELOG|CONTRIBUTING)\.md", _beside, text)
        # GitHub reads Markdown inside, Python's reader wants to be asked.
        page.write_text(text.replace("<details>", '<details markdown="1">'), encoding="utf-8")
    for notebook in notebooks.all_of(ROOT):
        notebooks.write(notebook, PAGES / "notebooks", execute=run_notebooks)
    shutil.copytree(
        ROOT / "tools", BUILD / "tools", dirs_exist_ok=True
    )  # paths are from its folder
    (BUILD / "mkdocs.yml").write_text(yaml.safe_dump(configuration(), sort_keys=False), "utf-8")


def _beside(link: re.Match[str]) -> str:
    return f"]({link[1]}{link[2].lower()}.md"


def configuration() -> dict[str, Any]:
    """mkdocs.yml, without the pages that do not exist yet."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    found["nav"] = list(_existing(found["nav"]))
    return found


def _existing(menu: list[Any]) -> Iterator[Any]:
    for item in menu:
        target = next(iter(item.values())) if isinstance(item, dict) else item
        if isinstance(target, list):
            yield {next(iter(item)): list(_existing(target))}
        elif target not in LATER or (ROOT / "docs" / target).exists():
            yield item


def listed(menu: Any) -> Iterator[str]:
    """Pages of a menu."""
    for item in menu if isinstance(menu, list) else [menu]:
        if isinstance(item, str):
            yield item
        else:
            yield from listed(next(iter(item.values())))


def unlisted(config: dict[str, Any]) -> list[str]:
    """Pages that no menu leads to, and menus that lead to no page."""
    pages = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*.md")}
    return sorted(pages ^ set(listed(config["nav"])))


if __name__ == "__main__":
    sys.exit(main())
