"""Models on the command line: every way to name one, what it is called, and what it may not do."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import saddlepoint as sp
from commands import inside
from saddlepoint import data, models
from saddlepoint.calls import call
from saddlepoint.runs import materials
from saddlepoint.runs.model_words import parse
from saddlepoint.runs.normalising import preparations
from saddlepoint.runs.settings import EnsembleSettings

NETS = """
import torch
from torch import nn

from helper import width

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        first, last = nn.Linear(784, width), nn.Linear(width, 10)
        self.layers = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Dropout(), last)

    def forward(self, x):
        return {"logits": self.layers(x)}

small = Small
ready = Small()

def broken():
    return undefined_name

def fails():
    class Net(nn.Module):
        def forward(self, x):
            return x @ x.flatten(1)
    return Net()

def function():
    return lambda x: x.flatten(1)[:, :10]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with nets.py and what it imports, which is the current one."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "helper.py").write_text("width = 16\n")
    monkeypatch.chdir(tmp_path)
    known, path = set(sys.modules), list(sys.path)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("nets", "helper", "json_", "nets_other"):
            del sys.modules[name]


@pytest.fixture
def images():
    x, y = data.sample("mnist", limit=8)
    return materials.Images(x, y, data.class_names("mnist"), "mnist")


def load(word, images, **options):
    (model,) = materials.load_models([word], images, **options).values()
    return model


def logits(model, images):
    with torch.no_grad():
        return call(model, images.x)


@pytest.mark.parametrize(
    ("word", "kind", "short", "risk"),
    [
        ("A", "shipped", "A", ""),
        ("mnist-a", "shipped", "mnist-a", ""),
        ("runs/x/model.safetensors", "card", "x", ""),
        ("w.pt:C", "architecture", "w", ""),
        ("w.pth:mnist_cnn", "architecture", "w", ""),
        ("nets.py:make", "code", "make", "runs code"),
        ("a/b/nets.py:Net.small", "code", "Net.small", "runs code"),
        ("pkg.nets:make", "code", "make", "runs code"),
        ("w.safetensors:a/nets.py:make", "code", "w", "runs code"),
        ("w.pt:pkg.nets:make", "code", "w", "runs code"),
        ("program.pt2", "program", "program", ""),
        ("a/model.onnx", "program", "model", ""),
        ("program.ts", "program", "program", "runs code"),
        ("timm:resnet18.a1_in1k", "timm", "resnet18.a1_in1k", ""),
        ("timm:resnet18+pretrained", "timm", "resnet18", "downloads"),
        ("torchvision:resnet18+pretrained", "torchvision", "resnet18", "downloads"),
        ("w.pt:timm:resnet18", "timm", "w", ""),
        ("hf:google/vit", "hf", "vit", "downloads"),
        ("hf:.", "hf", "", ""),
    ],
)
def test_words_are_taken_apart(word, kind, short, risk):
    found = parse(word)
    assert (found.kind, found.short, found.risk) == (kind, short, risk)


@pytest.mark.parametrize(
    "word",
    [
        "",
        "a b",
        "x.jpg",
        "pkg:make()",
        "timm:",
        "timm:x+best",
        "w.pt:timm:x+pretrained",
        "w.pt:x.pt2",
        "nets.py:",
    ],
)
def test_words_that_are_none(word):
    with pytest.raises(
        ValueError, match=r"`--models` must be one of: A,B,C,D .*docs/models\.md, got"
    ):
        parse(word)


class TestCode:
    @pytest.mark.parametrize(
        "word", ["nets.py:small", "./nets.py:Small", "nets:ready", "nets:small"]
    )
    def test_a_network_is_put_into_evaluation_mode(self, here, images, word):
        model = load(word, images)
        assert not any(part.training for part in model.modules())
        assert torch.equal(logits(model, images), logits(model, images))

    def test_parameters_of_a_file_go_into_the_network_of_a_factory(self, here, images):
        torch.manual_seed(3)
        source = load("nets.py:small", images)
        state = source.state_dict()
        expected = logits(source, images)
        save_file(state, here / "w.safetensors")
        torch.save(state, here / "plain.pt")
        torch.save(
            {"epoch": 3, "state_dict": state, "optimizer": {"lr": 0.1}}, here / "training.pth"
        )
        torch.save({"model": {f"module.{k}": v for k, v in state.items()}}, here / "parallel.pt")
        for file in ("w.safetensors", "plain.pt", "training.pth", "parallel.pt"):
            model = load(f"{file}:nets.py:small", images)
            assert not model.training
            assert torch.equal(logits(model, images), expected), file

    def test_wrong_parameters_are_named(self, here, images):
        save_file(models.load("mnist-a").state_dict(), here / "w.safetensors")
        with pytest.raises(
            ValueError,
            match=r"`w.safetensors` must hold the parameters of nets.py:small, got: layers.1.weight is missing",
        ):
            load("w.safetensors:nets.py:small", images)
        with pytest.raises(
            ValueError, match="must give a module to load parameters into, got function"
        ):
            load("w.safetensors:nets.py:function", images)
        torch.save({"epoch": 3, "lr": 0.1}, here / "w.pt")
        with pytest.raises(
            ValueError, match=r"must map names to tensors, got keys \['epoch', 'lr'\]"
        ):
            load("w.pt:nets.py:small", images)
        with pytest.raises(ValueError, match=r"must name a file that exists, got 'none.pt'"):
            load("none.pt:nets.py:small", images)

    def test_mean_and_std_are_for_it(self, here, images):
        plain = load("nets.py:ready", images)
        normalised = load("nets.py:ready", images, mean="0.1307", std="0.3081")
        by_hand = plain((images.x - 0.1307) / 0.3081)["logits"]
        torch.testing.assert_close(logits(normalised, images), by_hand)
        torch.testing.assert_close(
            logits(load("nets.py:ready", images, mean="mnist"), images), by_hand
        )

    @pytest.mark.parametrize(
        ("word", "message"),
        [
            (
                "nets.py:broken",
                r"NameError: name 'undefined_name' is not defined \(nets.py, line 20\)",
            ),
            ("nets.py:nothing", "AttributeError: there is no nothing in nets.py"),
            (
                "nets.py:smal",
                "AttributeError: there is no smal in nets.py, where the nearest name is small",
            ),
            ("none.py:make", "FileNotFoundError: there is no file none.py"),
            ("bad.py:make", r"SyntaxError: .*\(bad.py, line 2\)"),
            ("nowhere.nets:make", "ModuleNotFoundError: No module named 'nowhere'"),
        ],
    )
    def test_an_error_in_it_names_file_and_line(self, here, images, word, message):
        (here / "bad.py").write_text("x = 1\ndef make(:\n")
        with pytest.raises(ValueError, match=message):
            load(word, images)

    def test_a_file_of_the_folder_does_not_hide_a_library(self, here, images):
        sprung = here / "sprung"
        (here / "yaml.py").write_text(f"open({str(sprung)!r}, 'w')\n")
        (here / "late.py").write_text("import yaml\nfrom nets import small\n")
        load("late:small", images)
        assert not sprung.exists()


def test_files_of_one_name_in_two_folders(here, images):
    (here / "other").mkdir()
    (here / "other" / "nets.py").write_text("from torch import nn\nmake = nn.Flatten\n")
    assert isinstance(load("nets.py:small", images), nn.Module)
    assert isinstance(load("other/nets.py:make", images), nn.Flatten)


def test_the_network_inside_pyautoattack():
    """A network nobody here has written or trained, as a stranger brings it: code and a state dict."""
    package = pytest.importorskip("pyautoattack")
    folder = Path(package.__file__).parent / "examples"
    word = f"{folder / 'model_test.pt'}:{folder / 'resnet.py'}:ResNet18"
    x, y = data.sample("cifar10", limit=40)
    images = materials.Images(x, y, data.class_names("cifar10"), "cifar10")
    model = load(word, images)
    right = logits(model, images).argmax(1) == y
    assert right.float().mean() >= 0.7  # it was trained to withstand attacks, which costs accuracy
    # It takes pixels as they are: another normalisation than its own ruins it.
    ruined = logits(load(word, images, mean="cifar10"), images).argmax(1) == y
    assert ruined.float().mean() < 0.4
    found = sp.attack(sp.Ensemble([model], x[:8], y[:8]), sp.linf(8 / 255), steps=5)
    asked_again = model(found.adversarial).argmax(1)
    assert (asked_again != y[:8])[found.success].all()


class TestNormalisation:
    def test_networks_of_the_package_normalise_inside(self, images):
        with pytest.raises(ValueError, match="`--mean` must be left out for A, mnist-c"):
            materials.load_models(["A", "mnist-c"], images, mean="mnist")
        with pytest.raises(ValueError, match="`--std` must be given with `--mean`"):
            materials.load_models(["A"], images, mean="0.5")
        with pytest.raises(
            ValueError, match=r"`--mean` must be numbers or one of imagenet, half.* got 'imagnet'"
        ):
            materials.load_models(["A"], images, mean="imagnet")

    def test_it_is_in_the_settings_and_the_line_that_repeats_the_run(self, tmp_path):
        flags = {"models": "nets.py:a", "eps": "0.1", "mean": "0.485,0.456,0.406", "std": "0.2"}
        settings = EnsembleSettings.load(flags)
        assert "--mean 0.485,0.456,0.406 --std 0.2" in settings.command()
        assert settings.model_dump()["mean"] == "0.485,0.456,0.406"
        (tmp_path / "x.yaml").write_text(
            "mean: [0.5, 0.25, 0.5]\nstd: 0.5\nmodels: [A]\neps: 0.1\n"
        )
        read = EnsembleSettings.load({}, tmp_path / "x.yaml")
        assert (read.mean, read.std) == ("0.5,0.25,0.5", "0.5")


class TestTrust:
    @pytest.mark.parametrize(
        ("word", "risk"),
        [
            ("evilmod:make", "runs code"),
            ("evil.py:make", "runs code"),
            ("w.pt:evilmod:make", "runs code"),
            ("x.ts", "runs code"),
            ("hf:owner/model", "downloads"),
            ("timm:resnet18+pretrained", "downloads"),
        ],
    )
    def test_a_yaml_of_a_stranger_neither_runs_code_nor_downloads(self, tmp_path, word, risk):
        file = tmp_path / "stranger.yaml"
        file.write_text(f"models: ['{word}']\neps: 0.1\ntrust: true\n")
        with pytest.raises(ValueError, match="`trust` must be a known setting"):
            EnsembleSettings.load({}, file)
        file.write_text(f"models: ['A', '{word}']\neps: 0.1\n")
        with pytest.raises(ValueError, match=f"`--trust` must be given for .*{risk}"):
            EnsembleSettings.load({}, file)
        assert EnsembleSettings.load({}, file, trust=True).models == ["A", word]
        assert EnsembleSettings.load({"models": word}, file).models == [word]

    def test_torchscript_needs_it(self, tmp_path, images):
        (tmp_path / "x.ts").write_bytes(b"")
        with pytest.raises(
            ValueError, match=r"`--trust` must be given for .*is code of its author"
        ):
            load(str(tmp_path / "x.ts"), images)


def test_a_library_that_is_missing_is_named_with_its_extra(tmp_path, images, monkeypatch):
    for name in ("timm", "transformers", "torchvision", "torchvision.models", "onnx2pytorch"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "x.onnx").write_bytes(b"")
    for word, package, extra in (
        ("timm:resnet18", "timm", "timm"),
        ("hf:owner/model", "transformers", "hf"),
        ("torchvision:resnet18", "torchvision", "torchvision"),
        (str(tmp_path / "x.onnx"), "onnx2pytorch", "onnx"),
    ):
        with pytest.raises(
            ImportError, match=rf"needs {package}; .*pip install 'saddlepoint\[{extra}\]'"
        ):
            load(word, images)


class TestCommandLine:
    def test_an_error_of_a_network_names_file_and_line(self, here, capsys):
        words = ("--models", "nets.py:fails", "--eps", "0.1", "--limit", "4", "--out", here / "out")
        assert inside("attack", "ensemble", *words) == 1
        line = 1 + NETS.splitlines().index("            return x @ x.flatten(1)")
        assert f"(nets.py, line {line})" in capsys.readouterr().err

    def test_a_network_of_ones_own_from_its_file_to_a_report(self, here, capsys):
        torch.save(materials.from_code("nets.py", "small").state_dict(), here / "mine.pt")
        words = ("--eps", "0.1", "--limit", "8", "--steps", "3", "--out", here / "out")
        named = ("--models", "mine.pt:nets.py:small", "--mean", "0.13", "--std", "0.3")
        assert inside("attack", "ensemble", *named, *words) == 0, capsys.readouterr().err
        run = json.loads((here / "out" / "run.json").read_text())
        assert (run["settings"]["mean"], run["settings"]["std"]) == ("0.13", "0.3")
        assert "--models mine.pt:nets.py:small --mean 0.13 --std 0.3" in run["command"]
        assert (here / "out" / "report.html").is_file()

    def test_every_model_may_have_its_own(self):
        words = [parse("timm:resnet18"), parse("small.onnx"), parse("A")]
        known = sp.models.NORMALISATIONS
        assert preparations(words, "mnist", None) == [known["mnist"]] * 3
        assert preparations(words, "own,cifar10,own", None) == [None, known["cifar10"], None]
        found = preparations(words, "own;0.1,0.2,0.3;0.5", "own;0.5;0.25")
        assert found == [None, ((0.1, 0.2, 0.3), (0.5,) * 3), ((0.5,), (0.25,))]
        assert preparations(words, "own", None) == [None] * 3
        with pytest.raises(ValueError, match=r"one for each, 3, got 2: own,cifar10\."):
            preparations(words, "own,cifar10", None)
        with pytest.raises(ValueError, match=r"numbers or one of imagenet.* got 'cifar-10'"):
            preparations(words, "own,cifar-10,own", None)
        with pytest.raises(ValueError, match="`--std` must be given with `--mean`"):
            preparations(words, "own;0.5;own", None)


class TestFilesOfParameters:
    @pytest.mark.parametrize("options", [{}, {"mean": "cifar10"}])
    def test_what_they_are_for_must_be_said(self, images, options, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        torch.save(sp.models.load("mnist-a").state_dict(), "best.pt")
        message = "`--models` best.pt must name the network .*: best.pt:nets.py:factory"
        with pytest.raises(ValueError, match=message):
            materials.load_models(["best.pt"], images, **options)


@pytest.mark.parametrize(
    ("stems", "named"),
    [
        (["net", "net (2)", "net"], ["net", "net (2)", "net (3)"]),
        (["net", "net (3)", "net", "net"], ["net", "net (3)", "net (2)", "net (4)"]),
        (["net", "network", "net"], ["net", "network", "net (2)"]),
    ],
)
def test_every_model_has_a_name_of_its_own(images, tmp_path, stems, named):
    words = []
    for number, stem in enumerate(stems):
        (tmp_path / str(number)).mkdir()
        place = tmp_path / str(number) / f"{stem}.safetensors"
        save_file(models.load("mnist-c").state_dict(), place)
        words.append(f"{place}:C")
    assert list(materials.load_models(words, images)) == named
