"""What a newcomer types: names that are nearly right, words without a flag, a GPU that is not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import saddlepoint as sp
from commands import inside
from saddlepoint.cli.errors import with_suggestion
from saddlepoint.runs.preparing import device_of


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["attack", "ensemble", "--models", "A", "--eps", "0.1", "--data", "minst"], "mnist"),
        (["attack", "ensemble", "--models", "minst-a", "--eps", "0.1"], "mnist-a"),
        (["attack", "ensemble", "--models", "A", "--eps", "0.1", "--rule", "minmx"], "minmax"),
        (["attack", "ensemble", "--models", "A", "--rule", "MinMax"], "minmax"),
        (["attack", "ensemble", "--models", "A", "--loss", "crossentropy"], "cross-entropy"),
        (["attack", "ensemble", "--models", "A", "--norm", "inf", "--eps", "0.1"], "linf"),
        (["attack", "ensemble", "--models", "A", "--method", "atack"], "attack"),
        (
            ["attack", "transform", "--models", "A", "--eps", "1", "--transforms", "rotat:3"],
            "rotate",
        ),
        (["attack", "ensemble", "--models", "A", "--eps", "0.1", "--device", "cpuu"], "cpu"),
        (["attack", "ensemble", "--models", "A", "--eps", "0.1", "--device", "gup"], "gpu"),
        (["evaluate", "A", "--threat", "lnf:0.1"], "linf"),
        (["evaluate", "A", "--threat", "linf:0.1", "--suite", "quik"], "quick"),
        (["evaluate", "A", "--threat", "linf:0.1", "--on-failure", "rase"], "raise"),
        (["reproduce", "ensemble-minst"], "ensemble-mnist"),
        (["data", "fetch", "fashion-minst"], "fashion-mnist"),
        (["models", "check", "minst-a"], "mnist-a"),
        (["doctor", "mnist-aa"], "mnist-a"),
    ],
)
def test_a_name_that_is_nearly_right_is_suggested(
    words: list[str],
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a folder that is there, such as dist, may be nearer
    assert inside(*words) == 2
    said = capsys.readouterr().err.lower()
    assert f"did you mean {name}?" in said.replace('"', "")
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", ["train", "attack ensemble"])
def test_a_flag_that_is_far_from_all_others_is_not_taken_for_one(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside(*words.split(), "--budget", "5m") == 2
    said = capsys.readouterr().err
    assert said == "saddlepoint: Unknown option: --budget; --help names those there are.\n"
    assert inside(*words.split(), "--quit") == 2
    assert "Did you mean --quiet?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "word", "end"),
    [
        ("--device", "gpu", "torch finds no GPU; use cpu."),
        ("--targeted", "nxt", "got 'nxt'; did you mean next?"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_is_not_about_data_does_not_blame_it(
    flag: str, word: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside("attack", "ensemble", "--models", "A", "--eps", "0.1", flag, word) == 2
    assert capsys.readouterr().err.rstrip().endswith(end)


def test_two_radii_of_one_norm_are_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("evaluate A", "train --data mnist-sample --model A"):
        radii = "--threat linf:0.1 --threat linf:0.2"
        assert inside(*words.split(), *radii.split()) == 2
        assert (
            "got linf twice; make a run of its own for the other radius" in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    "text",
    [
        "`--eps` must be a number such as 0.2 or 8/255, got '0.2x'.",
        "`--models` must name a file that exists, got 'nets.pt'.",
        "`--data` must be one of mnist, cifar10, got 'photos/of/cats'.",
        "`--suite` must be 'quick' or 'paper', got 'linear'.",
        "`--limit` must be at least 1, got 0.",
    ],
)
def test_nothing_is_suggested_where_nothing_is_near(text: str) -> None:
    assert with_suggestion(text) == text


def test_the_setting_of_a_file_is_suggested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("model: [A]\neps: 0.2\n")
    assert inside("attack", "ensemble", "--config", tmp_path / "mine.yaml") == 2
    assert "did you mean models?" in capsys.readouterr().err


def test_words_without_a_flag_point_to_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert inside("evaluate", "A", "C", "--threat", "linf:0.1") == 2
    assert "one MODEL, got A and C; write --models A,C" in capsys.readouterr().err
    assert inside("evaluate", "A", "--models", "C", "--threat", "linf:0.1") == 2
    assert "got both" in capsys.readouterr().err
    assert inside("evaluate", "--threat", "linf:0.1") == 2
    assert "got neither" in capsys.readouterr().err
    assert inside("attack", "ensemble", "A", "C", "--eps", "0.1") == 2
    assert "got A and C; models are named by --models A,C" in capsys.readouterr().err
    assert inside("demo", "A") == 2
    assert "got A; see --help" in capsys.readouterr().err


def test_gpu_means_the_one_that_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_of("GPU") == torch.device("cuda")
    assert device_of("gpu:1") == torch.device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert device_of("gpu") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device_of("CPU") == torch.device("cpu")
    assert inside("attack", "ensemble", "--models", "A", "--eps", "0.1", "--device", "gpu") == 2
    assert "got 'gpu', and torch finds no GPU; use cpu" in capsys.readouterr().err
    assert inside("attack", "ensemble", "--models", "A", "--eps", "0.1", "--device", "tpuu:1") == 2
    said = capsys.readouterr().err
    assert "must be cpu, gpu, cuda, mps or xpu" in said
    assert len(said) < 200


def test_capital_norms_are_understood(tmp_path: Path) -> None:
    words = ["--models", "A", "--limit", "1", "--steps", "1", "--quiet"]
    line = ["attack", "ensemble", *words, "--norm", "L2", "--eps", "1", "--out", tmp_path / "a"]
    assert inside(*line) == 0
    assert '"norm": "l2"' in (tmp_path / "a" / "run.json").read_text()


def test_the_error_of_a_model_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, 10)).eval()
    wide = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32 * 32, 10)).eval()
    x, y = sp.data.sample("mnist", 4)
    problem = sp.Ensemble([flat, wide], x, y, names=["flat", "wide"])
    with pytest.raises(RuntimeError) as caught:
        sp.attack(problem, sp.linf(0.1))
    (told,) = caught.value.__notes__
    assert told == "raised by domain 1 (wide), for images of shape (4, 1, 28, 28)"
    with pytest.raises(RuntimeError) as caught:
        sp.success_rates(problem, problem.zeros())
    assert "domain 1 (wide)" in caught.value.__notes__[0]


def test_other_numbers_of_classes_name_the_models() -> None:
    models = [torch.nn.Linear(4, count).eval() for count in (10, 7, 10)]
    problem = sp.Ensemble(models, torch.rand(3, 4), torch.tensor([0, 1, 2]), names=["A", "B", "C"])
    with pytest.raises(ValueError, match="same classes, got 10 for A and 7 for B"):
        sp.attack(problem, sp.linf(0.1))


def test_the_command_line_says_whose_error_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small_nets.py").write_text(
        "import torch\n"
        "def wide():\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1024, 10)).eval()\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["--models", "A,small_nets:wide", "--eps", "0.1", "--limit", "4"]
    assert inside("attack", "ensemble", *words) in (1, 2)
    said = capsys.readouterr().err
    assert (
        "got images of 28x28 and wide, which takes 32x32; write --size 32, or wrap this one" in said
    )


def test_doctor_takes_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "mnist-c", "--limit", "8", "--steps", "2", "--json", "--device"]
    assert inside(*words, "cpu") in (0, 1)
    assert "mnist-c" in json.loads(capsys.readouterr().out)
    assert inside(*words, "cuda:7") == 2
    assert "`--device` must be one that is there" in capsys.readouterr().err


def test_a_key_of_a_file_that_is_nearly_right_is_suggested_and_others_are_not_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bad.yaml"
    for key, meant in (("stepz", "did you mean steps?"), ("xyzzy", "--help name them.")):
        path.write_text(f"models: [A]\n{key}: 3\n")
        assert inside("attack", "ensemble", "--config", path) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"saddlepoint: `{key}` must be a known setting (in {path}); ")
        assert line.endswith(meant)
        assert "quantize" not in line


def test_the_file_of_a_wrong_value_is_named_inside_the_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("models: [A]\neps: big\n")
    assert inside("attack", "ensemble", "--config", path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"got 'big' (in {path}).")


def test_the_list_of_data_says_what_is_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "saddlepoint").mkdir()
    (tmp_path / "saddlepoint" / "mnist-test.npz").write_bytes(b"")
    assert inside("data", "list") == 0
    words = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert words["mnist"] == "present: test"
    assert words["cifar10"] == "fetched on first use"
    assert words["mnist-sample"] == "embedded, the first 1,000 test images"


def test_help_says_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert inside("train", "--help") == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text.count("[required]") == 2  # --data and --model


@pytest.mark.parametrize("words", ["attack ensemble", "attack transform"])
def test_help_names_all_kinds_of_models(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert inside(*words.split(), "--help") == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for word in ("nets.py:factory", "program.pt2", "program.ts", "model.onnx", "timm:NAME"):
        assert word in text


def test_a_folder_that_is_not_there_is_told_and_its_neighbour_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images/photos").mkdir(parents=True)
    line = ("attack", "ensemble", "--models", "A", "--eps", "0.1", "--data")
    for given, meant in (("imags/", "images"), ("images/fotos", str(Path("images", "photos")))):
        assert inside(*line, given) == 2
        said = capsys.readouterr().err
        assert said.endswith(f"got {given!r}, which is not there; did you mean {meant}?\n")
    assert inside(*line, "image") == 2
    assert capsys.readouterr().err.endswith("did you mean images?\n")
    assert inside(*line, "somewhere/else/") == 2
    assert capsys.readouterr().err.endswith("got 'somewhere/else/', which is not there.\n")


@pytest.mark.parametrize("model", ["A", "sizenets.py:conv"])
@pytest.mark.parametrize("command", ["attack ensemble --eps 0.1", "evaluate --threat linf:0.1"])
def test_a_size_that_a_network_does_not_take_is_told_in_our_words(
    model: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sizenets.py").write_text(
        "from torch import nn\n"
        "def conv(): return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 26 * 26, 10))\n"
    )
    line = (*command.split(), "--models", model, "--data", "mnist-sample", "--limit", "2")
    assert inside(*line, "--size", "32", "--out", "r") == 2
    said = capsys.readouterr().err
    name = model.rpartition(":")[2]
    assert (
        f"`--size` must be one that the model takes, got images of 32x32 and {name}, which takes 28x28; write "
        "--size 28." in said
    )


@pytest.mark.parametrize(
    ("words", "flag"),
    [("--models A --eps 8", "--eps"), ("--models A,C --rule fixed:0.2,0.9 --eps 0.1", "--rule")],
)
def test_complaints_about_settings_name_the_flag(
    words: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside("attack", "ensemble", *words.split()) == 2
    assert capsys.readouterr().err.startswith(f"saddlepoint: `{flag}` ")


def test_more_grey_levels_than_files_hold_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert inside("attack", "ensemble", "--models", "A", "--quantize", "100000000") == 2
    assert "`--quantize` must be at most 65536, got 100000000." in capsys.readouterr().err
    x, y = sp.data.sample("mnist", 1)
    with pytest.raises(ValueError, match="`quantize` must be at most 65536"):
        sp.attack(sp.Ensemble([sp.models.load("mnist-a")], x, y), sp.linf(0.1), quantize=2**20)


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from saddlepoint import files
    from saddlepoint.cli.errors import one_line

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space") as raised:
        files.write_atomically(tmp_path / "run.json", b"{}")
    assert one_line(raised.value) == f"`{tmp_path / 'run.json'}`: no space left on device."
    assert list(tmp_path.iterdir()) == []


def test_notes_of_an_error_continue_its_sentence() -> None:
    from saddlepoint.cli.errors import one_line

    error = ValueError("`x` must be finite, see what it makes of this image.")
    error.add_note("asked as one of --victims")
    assert one_line(error).endswith("makes of this image; asked as one of --victims")
