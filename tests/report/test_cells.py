"""Names of a stranger's files in tables: read as they are, never run."""

import csv
import io
from pathlib import Path

import pytest

from run_factory import make_run
from saddlepoint.report import write_report
from saddlepoint.report.tables import Column, Table, to_csv, to_latex, to_markdown

EVIL = [
    r"\input{secret}",
    "=HYPERLINK(1)",
    "+1+1",
    "-2+3",
    "@SUM(1)",
    "<script>alert(1)</script>",
    "a\nb | c",
    "![x](http://host/x.png)",
]


def table(name: str) -> Table:
    columns = (Column("model"), Column(name))
    return Table(f"title {name}", columns, ((name, 1.0), ("net", -2.5)), (f"note {name}",))


@pytest.mark.parametrize("name", EVIL)
def test_csv_has_no_formula_and_one_line_per_row(name):
    rows = list(csv.reader(io.StringIO(to_csv(table(name)))))
    assert len(rows) == 3
    for text in (rows[0][1], rows[1][0]):
        assert not text.startswith(("=", "+", "-", "@"))
        assert "\n" not in text
    assert rows[2] == ["net", "-2.5"]  # numbers stay numbers


@pytest.mark.parametrize("name", EVIL)
def test_markdown_has_no_tag_no_picture_and_one_line_per_row(name):
    text = to_markdown(table(name))
    assert len(text.splitlines()) == 8
    assert "<" not in text
    assert "](" not in text
    # Two cells, so three bars that are not escaped, in every row.
    assert all(line.replace(r"\|", "").count("|") == 3 for line in text.splitlines()[2:6])


def test_markdown_shows_a_backslash_as_one():
    assert r"| \\input{secret} | 1.00 |" in to_markdown(table(r"\input{secret}"))


def test_latex_has_no_command_of_others():
    text = to_latex(table(r"\input{secret}"))
    assert r"\textbackslash{}input\{secret\} & 1.00 \\" in text
    assert r"\input" not in text
    assert r"\textless{}script\textgreater{}" in to_latex(table("<script>"))
    assert r"\_x \textasciicircum{}2" in to_latex(table("_x ^2"))
    assert len(to_latex(table("a\nb")).splitlines()) == len(to_latex(table("ab")).splitlines())


def test_no_control_character_reaches_a_page(tmp_path: Path) -> None:
    odd = "ca\x1b[31mt\x00\x07", "do\x9bg", "bi\u202erd", "sh\u061ci\u200bp"
    make_run(tmp_path / "run", rows=6, classes=odd, names=("ne\x1bt", "b", "c"))
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "do g" in page
    assert "\\u001b" not in page  # nor for a script to make one of
    left = {sign for sign in page if not sign.isprintable()} - {"\n", "\t"}
    assert all(ord(sign) >= 160 and sign.isspace() for sign in left), left
