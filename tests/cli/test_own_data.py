"""`--data file.py:dataset` and `--size`: data of one's own on the command line."""

from __future__ import annotations

import pytest
import torch

import saddlepoint as sp
from commands import inside
from image_folders import digits
from saddlepoint import runs
from saddlepoint.runs import materials

SETS = """
import torch
from torch.utils.data import Dataset, TensorDataset
import saddlepoint as sp
from beside import LIMIT

x, y = sp.data.sample("mnist", LIMIT)
ready = TensorDataset(x, y)

class Digits(Dataset):
    classes = list("zyxwvutsrq")
    def __len__(self):
        return LIMIT
    def __getitem__(self, index):
        return x[index], int(y[index])

def parts(split):
    return TensorDataset(x[:8], y[:8]) if split == "train" else TensorDataset(x[8:], y[8:])

def big():
    return [(torch.nn.functional.interpolate(x, scale_factor=2), y)]

def broken():
    raise KeyError("no images here")

number = 3

class Late(Digits):
    def __getitem__(self, index):
        return x[index], int(y[index]) if index < 5 else 1 // 0
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside.py").write_text("LIMIT = 20\n")
    (tmp_path / "code" / "mysets.py").write_text(SETS)


def loaded(spec: str, **options) -> materials.Images:
    return materials.load_images(spec, **options)


def test_the_numbers_of_a_data_set_in_code_are_those_of_its_images(tmp_path):
    quick = ("--models", "mnist-c", "--eps", 0.1, "--steps", 3, "--quiet")
    spec = "code/mysets.py:Digits"
    assert inside("attack", "ensemble", "--data", spec, *quick, "--limit", 12, "--out", "a") == 0
    assert inside("attack", "ensemble", *quick, "--limit", 12, "--out", "b") == 0
    one, other = (runs.Run.read(tmp_path / name) for name in "ab")
    assert one.metrics["accuracy"] == other.metrics["accuracy"]
    assert one.hashes.data == other.hashes.data
    assert one.classes == tuple("zyxwvutsrq")
    assert f"--data {spec}" in one.command


@pytest.mark.parametrize("name", ["ready", "Digits"])
def test_a_data_set_and_what_makes_one_are_read(name):
    x, y = sp.data.sample("mnist", 20)
    found = loaded(f"code/mysets.py:{name}")
    assert torch.equal(found.x, x)
    assert torch.equal(found.y, y)
    assert (found.family, found.places) == ("", "")


def test_packages_are_imported_by_name(tmp_path):
    (tmp_path / "mine16").mkdir()
    (tmp_path / "mine16" / "sets.py").write_text("def digits():\n    return [([[[0.5]]], 1)]\n")
    assert loaded("mine16.sets:digits").x.tolist() == [[[[0.5]]]]


def test_a_file_of_settings_may_not_name_code(tmp_path, capsys):
    (tmp_path / "theirs.yaml").write_text(
        "data: code/mysets.py:broken\nmodels: [mnist-a]\neps: 0.1\n"
    )
    words = ("attack", "ensemble", "--config", "theirs.yaml", "--out", "o", "--quiet", "--limit", 3)
    assert inside(*words) == 2
    assert (
        "its data 'code/mysets.py:broken' runs code; name it with --data" in capsys.readouterr().err
    )
    assert inside(*words, "--steps", 2, "--data", "code/mysets.py:Digits") == 0
    assert inside(*words, "--trust", "--overwrite") == 2
    assert "no images here" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["data", "test_data"])
@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("evil.py", "evil.py:a.pt2"),
        ("evil.py", "evil.py:a.onnx"),
        ("evil.py", "evil.py:a.npz"),
        ("evil.py", "evil.py:a.ts"),
        ("hf.py", "hf:make"),
        ("timm.py", "timm:x"),
        ("scores.py", "scores:make"),
        ("onnxruntime.py", "onnxruntime:x"),
        ("pk/pt.py", "pk.pt:make"),
        ("pkg/pth.py", "pkg.pth:A"),
        ("pkg/safetensors.py", "pkg.safetensors:A"),
    ],
)
def test_a_file_of_settings_may_not_name_code_that_looks_like_a_model(
    tmp_path, capsys, setting, file, word
):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("from pathlib import Path\nPath('ran').touch()\n")
    values = {"data": "mnist-sample"} | {setting: word}
    command = ("train",) if setting == "test_data" else ("attack", "ensemble")
    values |= {"model": "A"} if command == ("train",) else {"models": "mnist-a", "eps": "0.1"}
    text = "".join(f"{name}: '{value}'\n" for name, value in values.items())
    (tmp_path / "theirs.yaml").write_text(text)
    assert inside(*command, "--config", "theirs.yaml", "--out", "o", "--quiet") == 2
    assert not (tmp_path / "ran").exists()
    said = " ".join(capsys.readouterr().err.split())
    assert f"its {setting} '{word}' runs code; name it with --" in said


def test_code_that_takes_a_split_is_told_which():
    x, _ = sp.data.sample("mnist", 20)
    assert torch.equal(loaded("code/mysets.py:parts", split="train").x, x[:8])
    assert torch.equal(loaded("code/mysets.py:parts").x, x[8:])


def test_images_of_code_files_and_names_are_resized():
    x, y = sp.data.sample("mnist", 20)
    back = loaded("code/mysets.py:big", size=28, limit=20)
    assert float((back.x - x).abs().mean()) < 0.03
    assert torch.equal(sp.models.load("mnist-c")(back.x).argmax(1), y)
    assert loaded("mnist-sample", size=32, limit=3).x.shape == (3, 1, 32, 32)
    flat = loaded("mnist-sample", size=14, limit=20).x
    pooled = torch.nn.functional.avg_pool2d(x, 2)
    assert float((flat - pooled).abs().mean()) < 0.03


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "code/mysets.py:broken",
            r"got KeyError: 'no images here' \(.*code/mysets.py(:|, line )24\)",
        ),
        (
            "code/mysets.py:Late",
            r"must give images with labels, got ZeroDivisionError: .*/mysets.py(:|, line )30\)",
        ),
        ("code/mysets.py:nothing", "got AttributeError: there is no nothing in code/mysets.py"),
        ("code/none.py:x", "got FileNotFoundError: .*no file code/none.py"),
        (
            "code/mysets.py:number",
            "`--data` must be images, or a DataLoader or data set .*, got int",
        ),
        ("code/odd.py:x", r"got SyntaxError: .* \(.*odd.py(:|, line )1\)"),
        ("nowhere", "`--data` must be one of mnist, .* file.py:dataset or package.module:dataset"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path, spec, message):
    (tmp_path / "code" / "odd.py").write_text("x = (\n")
    with pytest.raises(ValueError, match=message):
        loaded(spec)


def test_a_letter_is_no_network_of_ones_own_data(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits(tmp_path / "photos")
    words = ("--models", "A", "--data", "photos", "--eps", "0.1", "--limit", "4")
    assert inside("attack", "ensemble", *words) == 2
    said = capsys.readouterr().err
    assert "write mnist-a or cifar10-a, or name your own, such as nets.py:factory" in said
    assert "did you mean" not in said
