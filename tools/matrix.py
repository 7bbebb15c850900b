"""`make matrix`: the tests in every Python that is declared, as far as it and its wheels are here.

Each has an environment of its own, `.venv-3.12` and so on; that of `make test` is taken as it is. What was
tested goes into docs/results/matrix.json and from there into docs/install.md; `--render` writes the page only.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STORE = ROOT / "docs" / "results" / "matrix.json"
PAGE = ROOT / "docs" / "install.md"
_BLOCK = re.compile(r"(<!-- matrix -->\n).*?(<!-- end -->)", re.DOTALL)
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")


def interpreter(version: str) -> str | None:
    """A Python of this version: by its name, or among those of pyenv."""
    found = shutil.which(f"python{version}")
    places = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for python in [found, *map(str, places)]:
        works = python and subprocess.run([python, "-c", "import venv"], capture_output=True)
        if works and works.returncode == 0:
            return python
    return None


def environment(version: str, python: str, prefix: str) -> Path:
    """Its environment, made if it is not there, with what the tests need."""
    place = Path(f"{prefix}-{version}")
    if not (place / "bin" / "python").exists():
        subprocess.run([python, "-m", "venv", str(place)], check=True)
    inside = place / "bin" / "python"
    pip = [str(inside), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    limits = ["--constraint", "constraints.txt"]
    subprocess.run([*pip, *limits, "torch"], cwd=ROOT, check=True)
    subprocess.run([*pip, *limits, "--editable", ".[dev]"], cwd=ROOT, check=True)
    return inside


def of_make_test(version: str, prefix: str) -> Path | None:
    """The Python of `make test`, which has all that tests need, if it is of this version."""
    python = Path(prefix) / "bin" / "python"
    if not python.exists():
        return None
    asked = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    shown = subprocess.run(asked, capture_output=True, text=True).stdout
    return python if shown.strip() == version else None


def tested(python: Path, words: list[str]) -> dict[str, Any]:
    """Counts of the tests, and versions of what they ran with."""
    asked = "import platform, torch; print(platform.python_version(), torch.__version__)"
    shown = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True)
    versions = shown.stdout.split()
    done = subprocess.run(
        [str(python), "-m", "pytest", "-q", "-m", "not slow and not browser and not zoo", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    sys.stdout.write(done.stdout)
    if done.returncode not in (0, 1):  # 1: some failed
        return {"missing": f"pytest ended with {done.returncode}"}
    counts = {word: int(number) for number, word in _COUNTS.findall(done.stdout.splitlines()[-1])}
    scope = " ".join(word for word in words if not word.startswith("-")) or "all"
    return {
        "python": versions[0],
        "torch": versions[1],
        "tests": scope,
        "commit": commit(),
        **counts,
    }


def commit() -> str:
    """What is tested, as git names it; nothing where there is no git."""
    asked = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def render(results: dict[str, Any]) -> str:
    """The table of the page."""
    lines = [
        "| Python | torch | commit | tests | passed | failed | skipped |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    for version, found in sorted(results.items()):
        if "missing" in found:
            lines.append(f"| {version} | | | **not tested**: {found['missing']} | | | |")
            continue
        counts = [str(found.get(word, 0)) for word in ("passed", "failed", "skipped")]
        noted = found.get("commit") or "not noted"
        row = [found["python"], found["torch"], noted, found["tests"], *counts]
        lines.append(f"| {' | '.join(row)} |")
    parts = [each for each in results.values() if each.get("tests", "all") != "all"]
    said = "`make matrix` ran these tests, on Linux without a GPU. GPUs, macOS and Windows were not tested."
    said += " Where files are named, these only were run." if parts else ""
    return f"\n{said}\n\n" + "\n".join(lines) + "\n\n"


def keep(results: dict[str, Any]) -> None:
    """Writes store and page."""
    STORE.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    new = _BLOCK.sub(lambda found: f"{found[1]}{render(results)}{found[2]}", text)
    PAGE.write_text(new, encoding="utf-8")


def outcome(version: str, options: argparse.Namespace) -> dict[str, Any]:
    """What the tests say in one version, or why they did not run."""
    if (own := of_make_test(version, options.prefix)) is not None:
        return tested(own, options.tests.split())
    python = interpreter(version)
    if python is None:
        return {"missing": "no interpreter"}
    inside = Path(f"{options.prefix}-{version}") / "bin" / "python"
    try:
        if not options.installed:
            inside = environment(version, python, options.prefix)
    except subprocess.CalledProcessError:
        return {"missing": "a package has no wheel for it"}
    return tested(inside, options.tests.split())


def main() -> int:
    """Runs the tests in every version; each is kept as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=["3.11", "3.12", "3.13"])
    parser.add_argument("--prefix", default=str(ROOT / ".venv"), help="of the environments")
    parser.add_argument("--tests", default="", help="words for pytest; all tests by default")
    parser.add_argument(
        "--installed", action="store_true", help="take the environments as they are"
    )
    parser.add_argument("--render", action="store_true", help="write the page again, run nothing")
    options = parser.parse_args()
    results = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    for version in [] if options.render else options.versions:
        results[version] = outcome(version, options)
        keep(results)
    keep(results)
    bad = [
        version for version, found in results.items() if found.get("failed") or found.get("error")
    ]
    sys.stdout.write(f"{len(results)} versions, failures in {', '.join(bad) or 'none'}\n")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
