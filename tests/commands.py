"""The command line in the process of the test: quicker than a new one, for everything that may end it."""

from __future__ import annotations

import pytest

from saddlepoint import cli

__all__ = ["inside"]


def inside(*words: object) -> int:
    """Run one command; its exit code."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in words])
    return int(stop.value.code or 0)
