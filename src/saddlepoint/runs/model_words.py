"""How models are named on the command line and in settings, taken apart without loading anything.

A, mnist-a                                a network that comes with the package
nets.py:factory, package.module:factory   the user's own code
timm:NAME, torchvision:NAME, hf:FOLDER    a network of another library; NAME+pretrained downloads
program.pt2, model.onnx, program.ts       a file that holds network and parameters
onnxruntime:model.onnx                    the same as ONNX Runtime runs it, without gradients
scores:WORD                               any of these, asked for scores only
FILE:WORD                                 parameters (.safetensors, .pt) for one of the above, or for A to H
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

from saddlepoint.suffixes import ONNX, PARAMETERS, PROGRAMS, TORCHSCRIPT

__all__ = [
    "CARD",
    "HELP",
    "NETWORK",
    "ModelWord",
    "check_there",
    "default_data",
    "is_code",
    "parse",
]

HELP = (
    "A,B,C,D (networks of the data set), mnist-a, nets.py:factory or package.module:factory (your code), "
    "parameters.safetensors:A or parameters.pt:nets.py:factory (a state dict, and what it is for), "
    "program.pt2, program.ts (TorchScript, with --trust), model.onnx, timm:NAME, torchvision:NAME (random "
    "parameters; NAME+pretrained downloads), hf:FOLDER or hf:OWNER/NAME (which downloads), "
    "onnxruntime:model.onnx (scores without gradients), scores:A "
    "(any of these asked for scores only); guide: docs/models.md"
)
"""What a model can be, for help texts."""

NETWORK = "model.safetensors"
"""The parameters that every training leaves."""

CARD = "model.json"
"""What is said about them."""

_ZOOS = ("timm", "torchvision", "hf")

Kind = Literal[
    "shipped", "architecture", "card", "program", "code", "timm", "torchvision", "hf", "onnxruntime"
]


@final
@dataclass(frozen=True)
class ModelWord:
    """One model, as it was named.

    Attributes:
        kind: Where it comes from. "card" is a file of parameters whose card beside it says what it is for.
        name: Of the network: a letter, an architecture, a file, a factory, or what the library calls it.
        module: Of the factory, "nets.py" or "package.module".
        parameters: File of parameters to load into it.
        pretrained: Whether parameters are to be downloaded.
        scores: Whether it is to be asked for scores only, and not differentiated.
    """

    kind: Kind
    name: str
    module: str = ""
    parameters: str = ""
    pretrained: bool = False
    scores: bool = False

    def __str__(self) -> str:
        """The word as it was written."""
        network = f"{self.module}:{self.name}" if self.module else self.name
        zoo = f"{self.kind}:" if self.kind in _ZOOS else ""
        parts = (self.parameters, f"{zoo}{network}{'+pretrained' if self.pretrained else ''}")
        return ":".join(filter(None, parts))

    @property
    def short(self) -> str:
        """What the model is called in tables; one that was trained here by the folder of its training.

        Example:
            >>> [parse(w).short for w in ("A", "runs/best.pt:nets.py:big", "pkg.nets:small", "hf:runs/vit")]
            ['A', 'best', 'small', 'vit']
            >>> parse("runs/hardened/model.safetensors:nets.py:big").short
            'hardened'
        """
        if self.parameters:
            path = Path(self.parameters)
            return path.parent.name if path.name == NETWORK and path.parent.name else path.stem
        if self.kind in ("program", "onnxruntime"):
            return Path(self.name).stem
        return Path(self.name).name if self.kind == "hf" else self.name

    @property
    def risk(self) -> str:
        """What happens that a file of settings from somebody else may not decide; empty if nothing.

        Example:
            >>> parse("w.pt:nets.py:big").risk, parse("timm:resnet18").risk
            ('runs code', '')
        """
        if self.kind == "code" or Path(self.name).suffix in TORCHSCRIPT:
            return "runs code"
        remote = self.kind == "hf" and not Path(self.name).expanduser().is_dir()
        return "downloads" if self.pretrained or remote else ""


def parse(text: str) -> ModelWord:
    """Takes the name of a model apart.

    Raises:
        ValueError: It is none.

    Example:
        >>> word = parse("scores:best.safetensors:timm:resnet18")
        >>> word.kind, word.name, word.parameters, word.scores
        ('timm', 'resnet18', 'best.safetensors', True)
    """
    prefix, _, inner = text.partition(":")
    if prefix == "scores" and inner and not inner.startswith(("scores:", "onnxruntime:")):
        return replace(parse(inner), scores=True)
    if prefix == "onnxruntime" and Path(inner).suffix == ONNX:
        return ModelWord("onnxruntime", inner, scores=True)
    if prefix in ("scores", "onnxruntime"):
        raise ValueError(_refusal(text))
    parameters, word = "", text
    if Path(text.partition(":")[0]).suffix in PARAMETERS:
        parameters, _, word = text.partition(":")
    head, _, rest = word.partition(":")
    module, _, factory = word.rpartition(":")
    if parameters and not word:
        return ModelWord("card", "", parameters=parameters)
    if head in _ZOOS and rest:
        name, plus, option = rest.partition("+")
        if not name or (plus and (option != "pretrained" or parameters or head == "hf")):
            raise ValueError(_refusal(text))
        zoo: Kind = head  # type: ignore[assignment]
        return ModelWord(zoo, name, parameters=parameters, pretrained=bool(plus))
    if Path(word).suffix in PROGRAMS and not parameters:
        return ModelWord("program", word)
    if is_code(word):
        return ModelWord("code", factory, module, parameters)
    if word.replace("-", "_").isidentifier():
        return ModelWord("architecture" if parameters else "shipped", word, parameters=parameters)
    raise ValueError(_refusal(text))


def is_code(text: str) -> bool:
    """Whether a word that names data names something in Python code, which is imported then.

    Data has none of the other words of models: `hf:make` is `make` of the module `hf`.

    Example:
        >>> [is_code(word) for word in ("sets.py:small", "pkg.sets:small", "hf:make", "photos/", "mnist")]
        [True, True, True, False, False]
    """
    module, _, name = text.rpartition(":")
    return _is_dotted(name) and (module.endswith(".py") or _is_dotted(module))


def default_data(words: Sequence[str]) -> str:
    """The data that is meant where none is named: the sample of the data set of the first model, else MNIST's.

    Example:
        >>> default_data(["cifar10-b", "A"]), default_data(["nets.py:big"])
        ('cifar10-sample', 'mnist-sample')
    """
    return "cifar10-sample" if words and words[0].startswith("cifar10-") else "mnist-sample"


def check_there(words: Iterable[str]) -> None:
    """Refuse at once, before torch and images are loaded, files that are missing and names they do not have.

    A name is looked for in the text of a file; what is made in other ways is found out later. What a file
    imports is taken, and not suggested.

    Raises:
        ValueError: A file is not there, or has no such name.
    """
    for text in words:
        word = parse(text)
        files = (word.parameters, word.name if word.kind == "program" else "", word.module)
        for file in files:
            if file and (file != word.module or file.endswith(".py")) and not Path(file).is_file():
                raise ValueError(f"`--models` must name a file that exists, got {file!r}.")
        if word.kind == "code" and word.module.endswith(".py"):
            known = _names_in(Path(word.module))
            first = word.name.partition(".")[0]
            if known is not None and first not in known:
                listed = ", ".join(n for n, own in known.items() if own and not n.startswith("_"))
                raise ValueError(
                    f"`--models` {text} must name something in {word.module}, which has {listed or 'nothing'}, "
                    f"got {first!r}."
                )


def _names_in(file: Path) -> dict[str, bool] | None:
    """What a file of Python has at its top, and whether it is its own and not imported.

    None where that cannot be said without running it.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):  # said better where it is imported
        return None
    found: dict[str, bool] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = True
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(each.asname or each.name).partition(".")[0]: False for each in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id: True for each in targets if isinstance(each, ast.Name)}
        elif not isinstance(node, ast.Expr):  # a loop or a condition may define anything
            return None
    return None if "*" in found or "__getattr__" in found else found


def _is_dotted(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _refusal(text: str) -> str:
    return f"`--models` must be one of: {HELP}, got {text!r}."
