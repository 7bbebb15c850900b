"""The pages of the documentation: Python runs, commands are understood, and every page has its place."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclopts import CycloptsError

from folders import ROOT
from saddlepoint import cli
from shortened import short_suites

sys.path.insert(0, str(ROOT / "tools"))
pages = importlib.import_module("pages")
links = importlib.import_module("links")

DOCS = ROOT / "docs"
# The guides to training and to patches have tests of their own.
WITH_PYTHON = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if pages.blocks(page, "python") and page.name not in ("training.md", "patches.md")
]
WITH_COMMANDS = [
    page
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if pages.blocks(page, "console")
]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_the_python_of_a_page_runs_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with short_suites():
        for line, text in pages.blocks(page, "python"):
            exec(compile("\n" * line + text, str(page), "exec"), namespace)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("new", "old", "at_most", "worse"),
    [
        ([1, 1], [2, 2], False, False),
        ([1, 2], [1, 2], False, False),
        ([2, 2], [1, 1], False, True),
        ([1, 2], [1, 2], True, True),
    ],
)
def test_the_gate_lets_no_worse_or_unattacked_checkpoint_pass(
    new: list[int], old: list[int], at_most: bool, worse: bool
) -> None:
    ((_, text),) = pages.blocks(DOCS / "recipes" / "checkpoints-in-ci.md", "python")
    gate: dict[str, Any] = {"__name__": "gate"}
    exec(text, gate)
    places = [
        {"run": "runs/new", "rank": new, "at_most": at_most},
        {"run": "runs/old", "rank": old, "at_most": False},
    ]
    assert gate["worse"]({"rankings": [{"places": places}]}) is worse
    apart = [{"places": [place]} for place in places]
    with pytest.raises(ValueError, match="too many values"):
        gate["worse"]({"rankings": apart})


def words(command: str) -> list[str] | None:
    """What follows `saddlepoint`, also behind torchrun; None for others, and for a shell's variables."""
    found = re.match(r"(?:torchrun .*? -m )?saddlepoint (.*)", command)
    return shlex.split(found[1].split(" > ")[0]) if found and "$" not in command else None


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    every = [each for _, block in pages.blocks(page, "console") for each in pages.commands(block)]
    ours = [given for each in every if (given := words(each)) and "..." not in given]
    refused = {}
    for given in ours:
        try:
            cli.app.parse_args(given, exit_on_error=False, print_error=False)
        except CycloptsError as error:
            refused[shlex.join(given)] = str(error)
    assert refused == {}
    assert bool(ours) == any("saddlepoint " in each and "$" not in each for each in every)


def test_only_the_page_on_installing_speaks_of_the_package_index() -> None:
    told = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    told += (ROOT / "examples").iterdir()
    found = {
        name(page) for page in told if page.is_file() and "saddlepoint[" in page.read_text("utf-8")
    }
    assert found == {"docs/install.md"}


def test_a_command_with_a_wrong_flag_is_noticed() -> None:
    given = words("saddlepoint evaluate mnist-a --thread linf:0.1")
    assert given is not None
    with pytest.raises(CycloptsError, match="--thread"):
        cli.app.parse_args(given, exit_on_error=False, print_error=False)


def menu(items: object) -> list[str]:
    if isinstance(items, str):
        return [items]
    if isinstance(items, dict):
        return menu(next(iter(items.values())))
    assert isinstance(items, list)
    return [page for item in items for page in menu(item)]


def test_every_page_is_in_the_menu_and_every_entry_is_a_page() -> None:
    listed = menu(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert len(listed) == len(set(listed))
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    made = {"changelog.md", "contributing.md"} | {
        f"notebooks/{path.stem}.md" for path in (ROOT / "examples").glob("*.ipynb")
    }
    later = {"BENCHMARKS.md", "TRANSFER_RESULTS.md", "transfer.md", "patches.md", "scores.md"}
    assert written | made <= set(listed)
    assert set(listed) - written - made <= later


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_links_of_a_page_lead_to_what_the_site_has(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    for link, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if link.startswith("https://"):
            continue
        target = (page.parent / link).resolve()
        target = target if link else page
        assert target.is_file(), link
        # The site has what docs has, without JSON, and these two: tools/website.py.
        beside = target in (ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md")
        assert beside or target.is_relative_to(DOCS), link
        assert target.suffix != ".json", link
        if anchor and target.is_file() and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Of the headings of a page, as the site names them; those of the reference come from its docstrings."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    plain = (
        re.sub(r"[^\w\s-]", "", title.lower()) for title in re.findall(r"^#+ (.*)$", text, re.M)
    )
    return {re.sub(r"[\s]+", "-", title.strip()) for title in plain} | set(
        re.findall(r"^::: (\S+)$", text, re.M)
    )


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "one.html").write_text(
        '<a href="two.html#here">a</a><a href="two.html#gone">b</a><a href="three.html">c</a>'
        '<a href="https://pypi.org/x">d</a><a href="https://pipy.org/x">e</a>'
        '<a href="http://pypi.org/x">f</a><a href="../up.html">g</a><a href="#top">h</a>'
        '<script src="https://pypi.org/x.js"></script>'
    )
    (tmp_path / "two.html").write_text('<p id="here"></p>')
    found = [fault.removeprefix("one.html: ") for fault in links.faults(tmp_path)]
    assert found == [
        "fetches https://pypi.org/x.js from the network",
        "two.html#gone: no such anchor",
        "three.html: no such file",
        "https://pipy.org/x: a host that tools/links.py does not know",
        "http://pypi.org/x: not https",
        "../up.html: outside the site",
        "#top: no such anchor",
    ]
