"""Follows the links inside a built site, without the network: `python tools/links.py build/site`.

Of links that lead elsewhere the host is compared with those that are known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

HOSTS = {
    "arxiv.org",
    "docs.python.org",
    "docs.pytorch.org",
    "github.com",
    "keepachangelog.com",
    "packaging.python.org",
    "proceedings.neurips.cc",
    "pypi.org",
    "pytorch.org",
    "semver.org",
    "zensical.org",
}
"""Where links may lead outside. A misspelt host is not among them; somebody who looked adds a new one."""

_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """What a page offers and wants: anchors, links, and files that a browser fetches by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser for every tag."""
        given = dict(attrs)
        self.anchors.update(str(given[name]) for name in ("id", "name") if given.get(name))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in _FETCHED and given.get(_FETCHED[tag]):
            kind = given.get("rel") or ""
            named = tag == "link" and kind in ("canonical", "next", "prev", "alternate")
            (self.links if named else self.fetched).append(str(given[_FETCHED[tag]]))


@cache
def read(path: Path) -> Page:
    """A page, read once."""
    return Page(path.read_text(encoding="utf-8"))


def faults(site: Path) -> Iterator[str]:
    """One line for every link that leads nowhere."""
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        page = read(path)
        for link in page.fetched:
            if urlsplit(link).scheme not in ("", "data"):
                yield f"{name}: fetches {link} from the network"
        # The page for missing pages is shown at any address: its links begin at the top.
        local = [] if name == "404.html" else page.links + page.fetched
        for link in dict.fromkeys(local):
            why = fault(link, path, site)
            if why:
                yield f"{name}: {link}: {why}"


def fault(link: str, path: Path, site: Path) -> str | None:
    """Why a link of the page at `path` is wrong; None if it is right."""
    parts = urlsplit(link)
    if parts.scheme in ("data", "javascript", "blob"):
        return None
    if parts.scheme or parts.netloc:
        if parts.scheme != "https":
            return "not https"
        return None if parts.hostname in HOSTS else "a host that tools/links.py does not know"
    target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
    if target.is_dir():
        target = target / "index.html"
    if not target.is_relative_to(site.resolve()) and target != path:
        return "outside the site"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target.suffix == ".html" and anchor not in read(target).anchors:
        return "no such anchor"
    return None


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1])))
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.exit(bool(found))
