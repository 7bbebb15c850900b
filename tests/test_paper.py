"""The paper's parameters, against a second transcription of its appendix and captions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from saddlepoint import paper

# As the appendix prints them: "norm: alpha, beta, gamma".
MNIST = "l0: 1 1/100 7; l1: 1/4 1/100 5; l2: 1/10 1/100 3; linf: 1/4 1/50 3"
CIFAR10 = "l0: 1 1/150 1; l1: 1/4 1/100 5; l2: 1/8 1/100 3; linf: 1/5 1/50 6"


@pytest.mark.parametrize(("data", "text"), [("mnist", MNIST), ("cifar10", CIFAR10)])
def test_ensembles(data: str, text: str) -> None:
    for entry in text.split("; "):
        norm, numbers = entry.split(": ")
        found = paper.parameters("ensemble", data, norm)
        assert found is not None
        alpha, beta, gamma = (float(Fraction(number)) for number in numbers.split())
        assert (found.alpha, found.beta, found.gamma, found.steps) == (alpha, beta, gamma, 50)


def test_universal_and_transformations_have_their_own() -> None:
    assert paper.parameters("universal", "cifar10", "linf") == paper.Parameters(1 / 6, 0.02, 4, 20)
    assert paper.parameters("universal", "mnist", "linf") == paper.Parameters(1 / 6, 0.02, 4, 20)
    assert paper.parameters("transform", "cifar10", "linf") == paper.Parameters(0.5, 0.01, 10, 20)


@pytest.mark.parametrize(
    ("kind", "data", "norm"),
    [
        ("universal", "mnist", "l2"),
        ("transform", "mnist", "linf"),
        ("transform", "cifar10", "l2"),
        ("ensemble", "fashion-mnist", "linf"),
        ("ensemble", "mnist", "l3"),
    ],
)
def test_where_the_paper_says_nothing_there_is_nothing(kind: str, data: str, norm: str) -> None:
    assert paper.parameters(kind, data, norm) is None
    assert paper.radius(kind, data, norm) is None


def test_radii() -> None:
    norms = ("l0", "l1", "l2", "linf")
    assert [paper.radius("ensemble", "mnist", n) for n in norms] == [30, 20, 3, 0.2]
    assert [paper.radius("ensemble", "cifar10", n) for n in norms] == [50, 30, 2, 0.05]
    assert [paper.radius("ensemble", "cifar10", n, "ABC") for n in norms] == [50, 30, 2, 0.05]
    assert [paper.radius("ensemble", "cifar10", n, "AEFH") for n in norms] == [70, 30, 1.5, 0.03]
    assert [paper.radius("universal", "mnist", "linf", n) for n in "ABCD"] == [0.2, 0.2, 0.3, 0.25]
    assert [paper.radius("universal", "cifar10", "linf", n) for n in "BHED"] == [
        0.02,
        0.02,
        0.35,
        0.05,
    ]
    assert paper.radius("universal", "cifar10", "linf", "A") is None
    assert paper.radius("universal", "cifar10", "l2", "D") is None
    assert paper.radius("transform", "cifar10", "linf", "A") == 0.03


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="`kind` must be one of ensemble, universal, transform"):
        paper.parameters("patch", "mnist", "linf")
    with pytest.raises(ValueError, match="`kind` must be one of"):
        paper.radius("patch", "mnist", "linf")
