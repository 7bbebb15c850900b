"""What a release says of itself agrees, and its files hold what they have to."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import saddlepoint
from folders import ROOT

sys.path.insert(0, str(ROOT / "tools"))
release = importlib.import_module("release")
matrix = importlib.import_module("matrix")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_in_one_place_and_others_agree() -> None:
    assert release.version() == saddlepoint.__version__
    assert release.disagreements() == []


def test_another_version_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "version", lambda: "9.9.9")
    assert release.disagreements() == [
        "CITATION.cff does not say version: 9.9.9",
        "CHANGELOG.md must have one heading ## [9.9.9] - date, got 0",
    ]


def test_a_version_that_the_changelog_has_twice_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("CITATION.cff", "pyproject.toml", "CHANGELOG.md"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    now = release.version()
    monkeypatch.setattr(release, "version", lambda: now)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    assert release.disagreements() == []
    with (tmp_path / "CHANGELOG.md").open("a") as changes:
        changes.write(f"\n## [{now}] - 2026-11-17\n")
    (said,) = release.disagreements()
    assert said == f"CHANGELOG.md must have one heading ## [{now}] - date, got 2"


def test_changes_that_no_version_has_are_noticed() -> None:
    heading, version = "# Changelog\n\n## [Unreleased]\n\n", "## [0.2.0] - 2026-11-17\n"
    assert release.unreleased(heading + version) == []
    assert release.unreleased(f"# Changelog\n\n{version}") == []
    (said,) = release.unreleased(f"{heading}### Added\n- More.\n\n{version}")
    assert (
        said == f"CHANGELOG.md has entries under [Unreleased]: move them to [{release.version()}]"
    )


def test_every_python_that_is_declared_is_in_matrix_and_continuous_integration() -> None:
    prefix = "Programming Language :: Python :: "
    declared = [
        each.removeprefix(prefix) for each in PROJECT["classifiers"] if each.startswith(prefix)
    ]
    assert declared == ["3.11", "3.12", "3.13"]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == declared
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"PYTHONS ?= {' '.join(declared)}\n" in makefile


def test_continuous_integration_calls_make_targets_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    steps = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert {"make lint", "make test", "make docs", "make release"} <= set(steps)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for step in steps:
        assert f"\n{step.removeprefix('make ')}:" in makefile


def test_the_page_says_what_the_matrix_ran() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert matrix.render(json.loads(matrix.STORE.read_text(encoding="utf-8"))) in page


def test_the_page_of_a_matrix_says_what_is_missing() -> None:
    written = matrix.render(
        {
            "3.11": {
                "python": "3.11.7",
                "torch": "2.13.0",
                "tests": "all",
                "commit": "0a1b2c3",
                "passed": 7,
            },
            "3.12": {"python": "3.12.1", "torch": "2.13.0", "tests": "all", "failed": 1},
            "3.14": {"missing": "no interpreter"},
        }
    )
    assert "| 3.11.7 | 2.13.0 | 0a1b2c3 | all | 7 | 0 | 0 |" in written
    assert "| 3.12.1 | 2.13.0 | not noted | all | 0 | 1 | 0 |" in written
    assert "| 3.14 | | | **not tested**: no interpreter | | | |" in written


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_commit_that_a_matrix_tests_is_noted() -> None:
    assert re.fullmatch(r"\w[\w.-]{6,}", matrix.commit())


def test_the_python_of_make_test_is_a_row_of_the_matrix_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.symlink_to(sys.executable)
    monkeypatch.setattr(matrix, "interpreter", lambda version: None)  # there is no other
    monkeypatch.setattr(
        matrix, "tested", lambda python, words: {"python": str(python), "words": words}
    )
    options = SimpleNamespace(
        prefix=str(tmp_path / ".venv"), installed=False, tests="tests/a.py -x"
    )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert matrix.outcome(here, options) == {"python": str(own), "words": ["tests/a.py", "-x"]}
    assert matrix.outcome("3.99", options) == {"missing": "no interpreter"}


def test_a_matrix_that_is_stopped_keeps_the_versions_it_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def outcome(version: str, _: object) -> dict[str, object]:
        if version == "3.12":
            raise KeyboardInterrupt
        return {"python": "3.11.7", "torch": "2.13.0", "tests": "all", "passed": 7}

    (tmp_path / "install.md").write_text("before\n<!-- matrix -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(matrix, "STORE", tmp_path / "matrix.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "install.md")
    monkeypatch.setattr(matrix, "outcome", outcome)
    monkeypatch.setattr(sys, "argv", ["matrix.py", "3.11", "3.12"])
    with pytest.raises(KeyboardInterrupt):
        matrix.main()
    results = json.loads((tmp_path / "matrix.json").read_text())
    assert list(results) == ["3.11"]
    page = (tmp_path / "install.md").read_text()
    assert page == f"before\n<!-- matrix -->\n{matrix.render(results)}<!-- end -->\nafter\n"


def test_extras_are_all_explained() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = page[page.index("## Extras") : page.index("## What was tested")]
    missing = [name for name in PROJECT["optional-dependencies"] if f"`{name}`" not in table]
    assert missing == []


def test_faults_of_the_files_are_noticed(tmp_path: Path) -> None:
    wheel, source = tmp_path / "a.whl", tmp_path / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in release.NEEDED[1:]:
            archive.writestr(name, "")
        archive.writestr("tests/test_a.py", "")
        about = f"saddlepoint-{release.version()}.dist-info/METADATA"
        archive.writestr(about, "[a](https://b.org) [b](docs/b.md)")
    with tarfile.open(source, "w:gz") as archive:
        archive.add(ROOT / "README.md", "saddlepoint-0/README.md")
    found = release.faults(wheel, source)
    assert f"the wheel lacks {release.NEEDED[0]}" in found
    assert "the wheel holds tests/test_a.py" in found
    assert [each for each in found if each.startswith("the description links")] == [
        "the description links docs/b.md, which an index does not have"
    ]
    assert "the source distribution lacks LICENSE" in found
    assert "the source distribution lacks README.md" not in found
