"""`make release`: source distribution and wheel, built twice, checked, and tried where the checkout is not.

Ends with an error at the first thing that is not as it has to be; uploads nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
LARGEST = 22_000_000
"""Bytes of a wheel."""
NEEDED = (
    "saddlepoint/py.typed",
    "saddlepoint/report/assets/report.html",
    "saddlepoint/report/assets/report.js",
    "saddlepoint/data/samples/mnist.npz",
    "saddlepoint/data/samples/cifar10.npz",
    "saddlepoint/models/parameters/mnist-a.safetensors",
    "saddlepoint/models/parameters/mnist-a.json",
)


def version() -> str:
    """The one place it is written in."""
    text = (ROOT / "src" / "saddlepoint" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)[0]


def disagreements() -> list[str]:
    """Places that name another version, or a release that the changelog does not have."""
    now = version()
    found = []
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    if f"\nversion: {now}\n" not in citation:
        found.append(f"CITATION.cff does not say version: {now}")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    dated = re.findall(rf"^## \[{re.escape(now)}\] - (\d{{4}}-\d\d-\d\d)$", changes, re.MULTILINE)
    if len(dated) != 1:
        found.append(f"CHANGELOG.md must have one heading ## [{now}] - date, got {len(dated)}")
    elif f"\ndate-released: {dated[0]}\n" not in citation:
        found.append(f"CITATION.cff does not say date-released: {dated[0]}, as CHANGELOG.md does")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "version" in project or "version" not in project["dynamic"]:
        found.append("pyproject.toml must take its version from the package")
    return found


def unreleased(changes: str) -> list[str]:
    """What keeps a changelog from being that of a release: entries that belong to no version yet."""
    waiting = re.search(r"^## \[Unreleased\]\s+(?!## )\S", changes, re.MULTILINE)
    return [f"CHANGELOG.md has entries under [Unreleased]: move them to [{version()}]"] * bool(
        waiting
    )


def built(folder: Path, date: str) -> dict[str, str]:
    """Builds both files into a folder; SHA-256 by name."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": date}
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def faults(wheel: Path, source: Path) -> list[str]:
    """What is missing in the files, or too much."""
    archived = zipfile.ZipFile(wheel)
    inside = archived.namelist()
    found = [f"the wheel lacks {name}" for name in NEEDED if name not in inside]
    info = f"saddlepoint-{version()}.dist-info"
    about = f"{info}/METADATA"
    shown = archived.read(about).decode() if about in inside else ""
    found += [] if shown else [f"the wheel lacks {about}"]
    found += [
        f"the description links {link}, which an index does not have"
        for link in re.findall(r"\]\(([^)]*)\)", shown)
        if not link.startswith("https://")
    ]
    found += [
        f"the wheel holds {name}" for name in inside if not name.startswith(("saddlepoint/", info))
    ]
    found += [f"the wheel holds {name}" for name in inside if "__pycache__" in name]
    if wheel.stat().st_size > LARGEST:
        found.append(f"the wheel has {wheel.stat().st_size} bytes, at most {LARGEST}")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = (
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
        "constraints.txt",
        "docs/start.md",
    )
    found += [f"the source distribution lacks {name}" for name in needed if name not in names]
    found += [
        f"the source distribution holds {name}" for name in names if name.startswith("build/")
    ]
    return found


def tried(wheel: Path, words: list[str]) -> None:
    """Installs the wheel into a new environment, far from the checkout, and runs the demo from there."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        limits = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *limits, "torch"], check=True)
        subprocess.run([*pip, *limits, f"{wheel}[cli]"], check=True)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        run = {"cwd": place, "check": True, "env": environment}
        told = [str(python), "-c", "import saddlepoint as s; print(s.__version__, s.__file__)"]
        answer = subprocess.run(told, **run, capture_output=True, text=True).stdout.split()
        if answer[0] != version() or not answer[1].startswith(str(place.resolve())):
            raise SystemExit(f"not the wheel that was installed: {answer}")
        command = str(place / "venv" / "bin" / "saddlepoint")
        subprocess.run([command, "demo", *words, "--out", "demo", "--quiet"], **run)
        metrics = json.loads((place / "demo" / "run.json").read_text(encoding="utf-8"))["metrics"]
        page = place / "demo" / "report.html"
        sys.stdout.write(
            f"the demo of the wheel: ASR_all {metrics['asr_all']} %, {page.stat().st_size} bytes of report\n"
        )


def main(words: list[str]) -> int:
    """Everything, in order; `words` are those of the demo, such as --limit 16."""
    found = disagreements()
    found += unreleased((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if not found:
        date = subprocess.run(
            ["git", "log", "-1", "--format=%ct"],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        shutil.rmtree(DIST, ignore_errors=True)
        hashes = built(DIST, date)
        with tempfile.TemporaryDirectory() as folder:
            if built(Path(folder), date) != hashes:
                found.append("two builds differ")
        wheel, source = next(DIST.glob("*.whl")), next(DIST.glob("*.tar.gz"))
        found += faults(wheel, source)
        strict = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)]
        subprocess.run(strict, check=True)
    sys.stdout.writelines(f"{line}\n" for line in found)
    if not found:
        for path in (wheel, source):
            sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes, {hashes[path.name]}\n")
        tried(wheel, words)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
