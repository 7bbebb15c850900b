"""Comments that are almost markers are refused, because what is below them would stay as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import inside
from saddlepoint.experiments import write_tables
from saddlepoint.experiments.document import has_markers

TABLE = "must be written `<!-- table: NAME -->`, `<!-- table: NAME, details -->` or"
ABOUT = "must be written `<!-- about: NAME, NAME; DIGEST -->`, the digest being letters and digits"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("<!-- table: cost --> ", TABLE),
        ("<!--table: cost-->", TABLE),
        ("<!-- table : cost -->", TABLE),
        ("<!-- table:cost -->", TABLE),
        ("<!-- Table: cost -->", TABLE),
        ("<!-- table: cost, details, paired -->", TABLE),
        ("<!-- table: cost -->.", TABLE),
        ("> <!-- table: cost ->", TABLE),
        ("<!-- claims: -->", "must be written `<!-- claims -->`, with these spaces and nothing"),
        ("<!--claims-->", "must be written `<!-- claims -->`"),
        ("<!-- behind: cost; networks -->", "must be written `<!-- behind: NAME, NAME -->`"),
        ("<!-- level: cost; networks -->", "must be written `<!-- level: NAME, NAME -->`"),
        ("<!-- about: universal-cifar10; TODO-T5 -->", ABOUT),
        ("<!-- about: universal-cifar10 -->", ABOUT),
    ],
)
def test_what_is_almost_a_marker_is_refused(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "numbers.md"
    before = f"Numbers\n\n{line}\nold numbers\n<!-- end -->\n"
    document.write_text(before)
    assert inside("reproduce", "--summary", document) == 2
    error = capsys.readouterr().err
    assert f"`{line.removeprefix('> ').strip()}` {said}" in error
    assert str(document) in error
    assert document.read_text() == before


@pytest.mark.parametrize(
    "text",
    [
        "<!-- table of contents -->\n",
        "<!-- about this page -->\n",
        "<!-- claims of others -->\n",
        "<!-- end of defence -->\n",
        "A table begins with `<!-- table: NAME -->`; `<!--claims-->` is none.\n",
    ],
)
def test_other_comments_stay_as_they_are(text: str) -> None:
    assert not has_markers(text)
    assert write_tables(text, Path()) == text
