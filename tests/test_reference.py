"""The reference is complete: every public name is on a page, and has an example, which runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import sys

import pytest

from folders import ROOT

sys.path.insert(0, str(ROOT / "tools"))
reference = importlib.import_module("reference")


def test_every_public_name_is_on_a_page_once() -> None:
    listed = list(reference.listed())
    assert sorted(listed) == sorted(set(listed))
    assert sorted(reference.public()) == sorted(listed)


def test_every_public_name_has_an_example() -> None:
    assert reference.incomplete() == []


def test_a_missing_example_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    import saddlepoint as sp

    monkeypatch.setattr(sp.MinMax, "__doc__", "How the weights move.")
    assert reference.incomplete() == ["saddlepoint.MinMax"]


VALUES = [
    name
    for name, value in reference.public().items()
    if not (inspect.isclass(value) or inspect.isfunction(value))
]


# Doctest runs the examples of classes and functions by itself, but does not see those of values.
@pytest.mark.parametrize("name", VALUES)
def test_the_example_of_a_value_runs(name: str) -> None:
    module, _, last = name.rpartition(".")
    home, text = reference.assigned(module, last)
    names = dict(vars(importlib.import_module(home)))
    test = doctest.DocTestParser().get_doctest(text, names, name, home, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
