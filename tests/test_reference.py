"""The reference is complete: every public name is on a page, and has an example, which runs."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import sys
import types
from pathlib import Path

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


# pytest collects src with --doctest-modules: what doctest finds in the module of a name is what runs.
@pytest.mark.parametrize("name", sorted(set(reference.public()) - set(VALUES)))
def test_doctest_finds_the_example_of_a_class_or_function(name: str) -> None:
    value = reference.public()[name]
    home = importlib.import_module(value.__module__)
    assert (ROOT / "src") in Path(str(home.__file__)).parents
    (test,) = doctest.DocTestFinder(recurse=False).find(
        value, f"{home.__name__}.{value.__qualname__}", home
    )
    assert any(test.name == each.name for each in found_in(home))
    assert [each.want for each in test.examples if each.want or each.exc_msg]
    assert not [each for each in test.examples if each.options.get(doctest.SKIP)]


@functools.cache
def found_in(home: types.ModuleType) -> list[doctest.DocTest]:
    return doctest.DocTestFinder().find(home)


def test_pytest_runs_the_examples(request: pytest.FixtureRequest) -> None:
    assert "src" in request.config.getini("testpaths")
    assert request.config.getoption("doctestmodules")


# Doctest runs the examples of classes and functions by itself, but does not see those of values.
@pytest.mark.parametrize("name", VALUES)
def test_the_example_of_a_value_runs(name: str) -> None:
    module, _, last = name.rpartition(".")
    home, text = reference.assigned(module, last)
    names = dict(vars(importlib.import_module(home)))
    test = doctest.DocTestParser().get_doctest(text, names, name, home, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
