"""The page of the doctor, and `doctor --out`."""

from __future__ import annotations

import re

import pytest

from commands import inside
from run_factory import HOSTILE
from saddlepoint import report
from saddlepoint.doctor import Finding

FINE = Finding("gradients", "ok", "all of them are there", "nothing is masked")
ODD = Finding("range", "warn", "pixels up to 1.2", "another scale", "divide by 255")
WRONG = Finding("outputs", "fail", "rows sum to one", "these are probabilities", "return logits")


def plain(html: str) -> str:
    return " ".join(
        re.sub(r"<[^>]*>", " ", html.partition("<main>")[2].partition("<script>")[0]).split()
    )


class TestPage:
    @pytest.mark.parametrize(
        ("models", "heading"),
        [
            ({"a": [FINE]}, "a is fit to be evaluated"),
            ({"a": [FINE, ODD]}, "a can be evaluated, with doubts"),
            ({"a": [FINE, WRONG, ODD]}, "a is not fit to be evaluated"),
            ({"a": [FINE], "b": [FINE]}, "Both models can be evaluated"),
            ({"a": [FINE], "b": [ODD]}, "Both models can be evaluated, 1 with doubts"),
            ({"a": [WRONG], "b": [ODD]}, "1 of 2 models is not fit to be evaluated"),
        ],
    )
    def test_says_who_is_fit(self, tmp_path, models, heading):
        text = report.write_findings(models, tmp_path / "d.html").read_text()
        assert f"<h1>{heading}</h1>" in text

    def test_has_every_finding_the_worst_first(self, tmp_path):
        page = report.write_findings({"a": [FINE, ODD, WRONG]}, tmp_path / "deep" / "d.html")
        text = plain(page.read_text())
        assert "3 checks: 1 failed, 1 to look at, 1 fine." in text
        assert (
            text.index("rows sum to one") < text.index("pixels up to") < text.index("all of them")
        )
        assert "Usually means: these are probabilities What to do: return logits" in text
        assert "nothing is masked" not in text  # fine as it is

    def test_hostile_names_stay_text(self, tmp_path):
        found = [Finding(*([HOSTILE[0], "fail", *HOSTILE[1:]]))]
        text = report.write_findings({HOSTILE[0]: found}, tmp_path / "d.html").read_text()
        assert text.count("<script") == 1
        assert "<img" not in text
        assert "49<b>" not in text

    def test_writes_over_its_own_page_only(self, tmp_path):
        page = tmp_path / "d.html"
        report.write_findings({"a": [FINE]}, page)
        report.write_findings({"a": [WRONG]}, page)
        page.write_text("mine")
        with pytest.raises(ValueError, match="must be free"):
            report.write_findings({"a": [FINE]}, page)
        assert page.read_text() == "mine"

    def test_needs_a_model(self, tmp_path):
        with pytest.raises(ValueError, match="`findings` must be of at least one model"):
            report.write_findings({}, tmp_path / "d.html")


class TestCommand:
    LINE = ("doctor", "mnist-a", "--limit", "8", "--steps", "2")

    @pytest.mark.parametrize(("out", "page"), [("d.html", "d.html"), ("seen", "seen/doctor.html")])
    def test_leaves_a_page(self, tmp_path, monkeypatch, capsys, out, page):
        monkeypatch.chdir(tmp_path)
        code = inside(*self.LINE, "--out", out)
        told = capsys.readouterr().out.splitlines()
        assert told[-1] == f"report: {page}"
        text = plain((tmp_path / page).read_text())
        assert "8 images of mnist-sample, linf 0.2" in text
        assert (
            f"saddlepoint doctor mnist-a --data mnist-sample --limit 8 --steps 2 --out {out}"
            in text
        )
        assert ("not fit to be evaluated" in text) == (code == 1)

    def test_refuses_what_is_in_the_way_before_any_work(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine.html").write_text("mine")
        (tmp_path / "notes").write_text("mine")
        assert inside(*self.LINE, "--out", "mine.html") == 2
        assert "must be free" in capsys.readouterr().err
        assert inside(*self.LINE, "--out", "notes") == 2
        assert "`--out` must be an HTML file or a folder" in capsys.readouterr().err

    def test_json_stays_json(self, tmp_path, capsys):
        import json

        inside(*self.LINE, "--json", "--out", tmp_path)
        said = capsys.readouterr()
        assert "mnist-a" in json.loads(said.out)
        assert f"report: {tmp_path / 'doctor.html'}" in said.err
