"""Memory that is kept: counted by the pages that the system has to make, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

glibc = pytest.mark.skipif(
    "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}),
    reason="the memory of glibc",
)
# Three blocks of 48 MB are written, freed and taken again, ten times: each time 3 * 12,000 pages, or none.
COUNT = """
import resource, sys
def pages(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        blocks = [bytearray(48_000_000) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
pages(3)  # a round may begin before the blocks of the last one are free
size = resource.getpagesize()
print(pages(10) * size / (10 * 3 * 48_000_000))
"""
LIBRARY = "import saddlepoint\nsaddlepoint.keep_memory()\n"
COMMAND = """
from saddlepoint.cli import main
try:
    main(["--version"])
except SystemExit:
    pass
"""


def made_anew(before: str, **environment: str) -> float:
    """The share of the memory of all blocks whose pages had to be made again."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", before + COUNT],
        env=own | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(run.stdout.split()[-1])


@glibc
@pytest.mark.parametrize("how", [LIBRARY, COMMAND], ids=["library", "command line"])
def test_memory_is_kept(how: str) -> None:
    assert made_anew(how) < 0.3


@glibc
def test_importing_the_library_changes_nothing() -> None:
    assert made_anew("import saddlepoint, saddlepoint.allocator\n") > 0.9


@glibc
@pytest.mark.parametrize(
    "told",
    [
        {"MALLOC_ARENA_MAX": "4"},
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=4"},
    ],
    ids=["MALLOC_", "GLIBC_TUNABLES"],
)
def test_what_the_user_says_stands(told: dict[str, str]) -> None:
    assert made_anew(LIBRARY, **told) > 0.9
    assert made_anew(COMMAND, **told) > 0.9


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from saddlepoint import allocator

    for name in [name for name in os.environ if name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert allocator.keep_memory() is False


def test_a_system_without_mallopt_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As musl: a C library that knows neither name."""
    import ctypes

    from saddlepoint import allocator

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    monkeypatch.setattr(sys, "platform", "linux")
    assert allocator.keep_memory() is False
