"""Parts of a page that a command writes: what stands between two marks is made anew, all else stays."""

from __future__ import annotations

from pathlib import Path

from benchmarks.stores import StoreError
from saddlepoint.files import write_atomically

END = "<!-- end -->"


def put(page: Path, made: str, opening: str, closing: str = END) -> None:
    """Put what was made between its marks.

    Args:
        page: Markdown with the marks, each on a line of its own.
        made: Whole lines.
        opening: The first mark.
        closing: The next mark after it.

    Raises:
        StoreError: There is no such page, or it lacks a mark.
    """
    if not page.is_file():
        raise StoreError(
            f"`{page}` must be a page with the marks {opening} and {closing}, got none."
        )
    text = page.read_text(encoding="utf-8")
    before, first, rest = text.partition(f"{opening}\n")
    _, last, after = rest.partition(closing)
    if not first or not last:
        raise StoreError(f"`{page}` must have the marks {opening} and {closing}, in this order.")
    write_atomically(page, f"{before}{first}{made}{last}{after}".encode())
