"""Every part of a user's code that can change a model's answers changes its hash, or the model has none."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from saddlepoint.runs.hashing import hash_model

HEAD = """
import abc, enum, functools, logging, collections, dataclasses
from typing import ClassVar, Generic, NamedTuple, TypeVar
import torch
import {helper}
from torch import nn

T = TypeVar("T")
"""
# What differs between two models is written as VALUE.
CODE = {
    "tuple": """
class Model(nn.Module):
    scales = (1.0, VALUE)
    def forward(self, x): return x * self.scales[1]
""",
    "list": """
class Model(nn.Module):
    scales = [[1.0], {"deep": VALUE}]
    def forward(self, x): return x * self.scales[1]["deep"]
""",
    "property": """
class Model(nn.Module):
    @property
    def scale(self): return VALUE
    def forward(self, x): return x * self.scale
""",
    "cached property": """
class Model(nn.Module):
    @functools.cached_property
    def scale(self): return VALUE
    def forward(self, x): return x * self.scale
""",
    "base class": """
class Base(nn.Module):
    table = {"scale": VALUE}
class Model(Base):
    def forward(self, x): return x * self.table["scale"]
""",
    "inner class": """
class Model(nn.Module):
    class Config:
        scales = (VALUE,)
    def forward(self, x): return x * self.Config.scales[0]
""",
    "data class": """
@dataclasses.dataclass
class Config:
    scales: list = dataclasses.field(default_factory=lambda: [VALUE])
class Model(nn.Module):
    def forward(self, x): return x * Config().scales[0]
""",
    "enum": """
class Scale(enum.Enum):
    LARGE = VALUE
class Model(nn.Module):
    def forward(self, x): return x * Scale.LARGE.value
""",
    "named tuple": """
class Config(NamedTuple):
    scale: float = VALUE
class Model(nn.Module):
    def forward(self, x): return x * Config().scale
""",
    "generic and abstract": """
class Base(nn.Module, Generic[T], abc.ABC):
    scales: ClassVar[tuple] = (VALUE,)
    log = logging.getLogger("mine")
    @abc.abstractmethod
    def forward(self, x): ...
class Model(Base[int]):
    def forward(self, x): return x * self.scales[0]
""",
    "slots": """
class Slotted:
    __slots__ = ("scale", "__dict__")
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.holder = Slotted()
        self.holder.scale = VALUE
    def forward(self, x): return x * self.holder.scale
""",
    "bound built-in": """
class Model(nn.Module):
    look_up = staticmethod({"scale": VALUE}.get)
    def forward(self, x): return x * self.look_up("scale")
""",
    "cache": """
@functools.lru_cache
def scale(): return VALUE
class Model(nn.Module):
    def forward(self, x): return x * scale()
""",
    "class method": """
class Model(nn.Module):
    @classmethod
    def scale(cls): return VALUE
    def forward(self, x): return x * self.scale()
""",
    "helper": """
class Model(nn.Module):
    def forward(self, x): return {helper}.scaled(x)
""",
    "helper in a call": """
class Model(nn.Module):
    def forward(self, x):
        import {helper} as helping
        return helping.scaled(x)
""",
    "helper handed on": """
class Model(nn.Module):
    def forward(self, x): return getattr({helper}, "sca" + "led")(x)
""",
    "helper as attribute": """
class Model(nn.Module):
    helping = {helper}
    def forward(self, x): return self.helping.scaled(x)
""",
}
HELPER = """
import torch
TABLE = {"scale": [VALUE]}
def _scale(): return TABLE["scale"][0]
def scaled(x): return x * _scale()
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """Models out of code with a value; the module has the same name whatever the value."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("code_of_model", "code_of_helper")

    def make(code: str, value: float) -> object:
        for name, text in zip(names, (HEAD + code, HELPER), strict=True):
            sys.modules.pop(name, None)
            text = text.replace("{helper}", names[1]).replace("VALUE", str(value))
            (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(names[0]).Model()

    yield make
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", CODE)
def test_every_part_of_the_code_is_in_the_hash(name: str, made: Callable[..., object]) -> None:
    one, again, other = (hash_model(made(CODE[name], value)) for value in (1.5, 1.5, 2.5))  # type: ignore[arg-type]
    assert one == again
    assert None not in (one, other)
    assert one != other


@pytest.mark.parametrize(
    "code",
    [
        "class Model(nn.Module):\n    lock = __import__('threading').Lock()\n",
        "class Model(nn.Module):\n    def forward(self, x):\n        import not_yet\n        return x\n",
    ],
)
def test_what_cannot_be_walked_leaves_no_hash(code: str, made: Callable[..., object]) -> None:
    assert hash_model(made(code, 0.0)) is None  # type: ignore[arg-type]
