"""Every subcommand as a user runs it, and every kind of wrong input."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import saddlepoint as sp
from children import Started
from commands import ENVIRONMENT, QUICK, SLOW_MODEL, begin, fresh, inside, run
from image_folders import digits
from saddlepoint import runs

pytestmark = pytest.mark.usefixtures("elsewhere")


class TestHelp:
    def test_help_does_not_import_torch(self):
        script = (
            "import sys; from saddlepoint.cli import app\n"
            "for words in sys.argv[1:]:\n"
            "    app([*words.split(), '--help'], result_action='return_value')\n"
            "    if 'torch' in sys.modules: sys.exit(f'{words} imports torch')"
        )
        commands = ("", "attack", "attack ensemble", "attack patch", "demo", "report", "doctor")
        commands = (*commands, "data fetch", "models list", "train", "evaluate", "reproduce")
        done = subprocess.run(
            [sys.executable, "-c", script, *commands],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Usage: saddlepoint") == len(commands)

    def test_help_starts_in_under_a_second(self, tmp_path):
        # Processor time: what others do on the machine does not count.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert fresh("--help", cwd=tmp_path).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1.0

    @pytest.mark.parametrize(
        "words",
        [
            ("attack", "ensemble"),
            ("attack", "universal"),
            ("attack", "transform"),
            ("attack", "patch"),
            ("evaluate",),
            ("train",),
            ("reproduce",),
            ("models",),
            ("models", "check"),
            ("models", "list"),
            ("models", "pack"),
            ("data",),
            ("data", "fetch"),
            ("data", "list"),
            ("demo",),
            ("doctor",),
            ("report",),
        ],
    )
    def test_help_has_examples(self, words, capsys):
        assert inside(*words, "--help") == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"saddlepoint {' '.join(words)}" in shown.partition("Example")[2]

    def test_version(self, capsys):
        assert inside("--version") == 0
        assert sp.__version__ in capsys.readouterr().out


class TestSubcommands:
    def test_demo(self, tmp_path):
        done = run("demo", "--limit", 3, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].endswith("report: runs/demo/report.html")
        assert "min-max" in done.stdout
        assert "ASR_all" in done.stdout
        assert "\x1b" not in done.stdout + done.stderr
        folder = tmp_path / "runs" / "demo"
        record = json.loads((folder / "run.json").read_text())
        assert record["schema_version"] == runs.SCHEMA_VERSION
        rates = {"asr_all", "asr_all_among_correct", "asr_mean"}
        assert rates | {"accuracy", "weights"} <= set(record["metrics"])
        assert set(record["metrics"]["accuracy"]) == {"A", "B", "C", "D"}
        assert (folder / "report.html").stat().st_size < 2_000_000
        assert run("demo", "--limit", 1, "--quiet", cwd=tmp_path).stdout == ""  # replaced, silently

    def test_ensemble_to_json(self, tmp_path):
        words = ("attack", "ensemble", *QUICK, "--baseline", "average", "--out", "o", "--json")
        done = run(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        metrics = json.loads(done.stdout)
        assert metrics == {
            "status": "complete",
            "rows": 12,
            "done": 12,
            **runs.Run.read(tmp_path / "o").metrics,
        }
        assert metrics["clean_accuracy"]["A"] > 90

    def test_an_untrained_network_makes_no_headline(self, tmp_path, capsys):
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        sys.modules.pop("slow", None)
        words = ("--models", "slow:untrained", "--limit", 24, "--steps", 5)
        assert inside("attack", "ensemble", *words, "--eps", 0.01, "--out", "o") == 0
        out, err = capsys.readouterr()
        metrics = runs.Run.read(tmp_path / "o").metrics
        assert (metrics["rows"], metrics["rows_correct"]) == (24, 3)
        assert metrics["asr_all"] > 85  # what was printed as the success of the attack
        rate = metrics["asr_all_among_correct"]
        flat = " ".join(out.split())
        assert "of the 3 images that the model had right, a perturbation of its own" in flat
        assert f"{rate:.1f} %, with 95 % confidence" in flat
        assert "21 of 24 images were misclassified before any attack" in flat
        assert f"ASR among correct {rate:.1f}" in flat
        assert f"{round(3 * rate / 100)} fooled that were right" in err
        assert "untrained has 12 % of the images right before the attack" in err.splitlines()[-1]
        assert inside("report", "o") == 0
        flat = " ".join(capsys.readouterr().out.split())
        assert f"ASR among correct {rate:.1f}" in flat

    def test_steps_that_follow_from_evaluations_are_not_told_as_others(self, tmp_path):
        words = ("--models", "A", "--limit", 2, "--evaluations", 4, "--out", "o", "--quiet")
        assert inside("attack", "ensemble", *words) == 0
        page = (tmp_path / "o" / "report.html").read_text()
        for name, taken in (("steps", 3), ("restarts", 1)):
            told = f"{taken}, follows from evaluations"
            assert f'<th scope="row">{name}</th><td>{told}</td>' in page
        assert '<th scope="row">evaluations</th><td>4</td>' in page

    def test_universal(self, tmp_path):
        words = (
            "attack",
            "universal",
            "--data",
            "cifar10-sample",
            "--models",
            "A",
            "--eps",
            "8/255",
        )
        done = run(*words, "--group-size", 3, "--limit", 30, "--out", "u", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        record = runs.Run.read(tmp_path / "u")
        assert record.settings["eps"] == 8 / 255
        assert record.rows == 10
        assert record.domains == ("image 1", "image 2", "image 3")
        assert record.classes[0] == "airplane"
        assert "≤ 8/255" in done.stdout

    def test_transform(self, tmp_path):
        words = ("attack", "transform", "--models", "A,C", "--transforms", "identity,rotate:20")
        words = (*words, "--eps", 0.2)
        done = run(*words, "--limit", 6, "--steps", 5, "--out", "t", "--quiet", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == done.stderr == ""
        record = runs.Run.read(tmp_path / "t")
        assert record.domains == ("A/identity", "A/rotate:20", "C/identity", "C/rotate:20")
        assert "seen through A/rotate" in (tmp_path / "t" / "report.html").read_text()

    def test_report_redraws_and_compares(self, tmp_path, capsys):
        for name, rule in (("a", "average"), ("m", "minmax")):
            words = ("attack", "ensemble", *QUICK, "--rule", rule, "--out", name, "--quiet")
            assert inside(*words) == 0
        (tmp_path / "a" / "report.html").unlink()
        done = run("report", "a", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "a" / "report.html").is_file()
        capsys.readouterr()
        assert inside("report", "a", "m", "--out", "both") == 2
        assert (
            "`--out` must be an HTML file, such as board.html, got both" in capsys.readouterr().err
        )
        assert not (tmp_path / "both").exists()
        assert inside("report", "a", "m", "--out", "both.html") == 0
        assert "both.html" in capsys.readouterr().out
        assert "only the second" in (tmp_path / "both.html").read_text()
        assert inside("report", "a", "m", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert set(found["runs"]) == {"a", "m"}
        assert [len(each["places"]) for each in found["rankings"]] == [2]

    def test_doctor(self, tmp_path):
        done = run("doctor", "mnist-a", "--limit", 24, "--steps", 8, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "fit to be evaluated" in done.stdout
        assert "\x1b" not in done.stdout

    def test_doctor_fails_a_masked_model(self, tmp_path, capsys):
        (tmp_path / "masked.py").write_text(
            "import saddlepoint as sp, torch\n"
            "class Masked(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__(); self.net = sp.models.load('mnist-a'); self.eval()\n"
            "    def forward(self, x): return self.net((x * 8).round() / 8)\n"
        )
        assert inside("doctor", "masked:Masked", "--limit", 24, "--json") == 1
        findings = json.loads(capsys.readouterr().out)["Masked"]
        assert {f["name"] for f in findings if f["status"] == "fail"} >= {"gradients", "unbounded"}
        assert all(f["saw"] and f["means"] for f in findings)

    def test_models_and_data(self, tmp_path, capsys):
        assert inside("models", "list") == 0
        assert "mnist-a" in capsys.readouterr().out
        done = run("data", "fetch", "mnist-sample", "cifar10-sample", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "mnist-sample test: 1000 images 1x28x28" in done.stdout
        assert inside("data", "list") == 0
        assert "cifar10" in capsys.readouterr().out


WRONG = [
    (("nonsense",), "nonsense"),
    (("attack", "ensemble", "--models", "A", "--wrong", "1"), "--wrong"),
    (("attack", "ensemble"), "--models"),
    (("attack", "ensemble", "--models", "Z"), "A, B, C, D"),
    (("attack", "ensemble", "--models", "A", "--eps", "-1"), "--eps"),
    (("attack", "ensemble", "--models", "A", "--eps", "8/0"), "8/255"),
    (("attack", "ensemble", "--models", "A", "--eps", "nan"), "finite"),
    (("attack", "ensemble", "--models", "A", "--norm", "l3"), "'linf'"),
    (("attack", "ensemble", "--models", "A", "--rule", "best"), "minmax, average"),
    (("attack", "ensemble", "--models", "A", "--rule", "minmax:beta=1"), "gamma"),
    (("attack", "ensemble", "--models", "A", "--rule", "fixed:0.5,0.5"), "K = 1"),
    (("attack", "ensemble", "--models", "A", "--loss", "mse"), "cross-entropy"),
    (("attack", "ensemble", "--models", "A", "--steps", "many"), "--steps"),
    (("attack", "ensemble", "--models", "A", "--steps", "-3"), "--steps"),
    (("attack", "ensemble", "--models", "A", "--steps", "0"), "must be at least 1"),
    (("evaluate", "A", "--threat", "linf:0.1", "--limit", "0"), "`--limit` must be at least 1"),
    (("evaluate", "A", "--threat", "linf:0.1", "--suite", "all"), "'quick', 'paper'"),
    (
        ("train", "--data", "mnist-sample", "--out", "o"),
        "`--model` must be given, such as --model A",
    ),
    (("train", "--data=mnist-sample", "--model=A", "--out=o", "--limit=0"), "`--limit` must be"),
    (("attack", "ensemble", "--models", "A", "--eps", "8"), "write 8/255"),
    (("attack", "ensemble", "--models", "A", "--eps", "1.5"), "must be at most 1"),
    (("attack", "ensemble", "--models", "A", "--norm", "l0", "--eps", "0.5"), "must be at least 1"),
    (("attack", "ensemble", "--models", "A,C", "--rule", "fixed:0.2,0.9"), "sum to 1, got 1.1"),
    (("attack", "ensemble", "--models", "A", "--data", "imagenet"), "`--data` must be one of"),
    (("evaluate", "A", "--threat", "linf:8"), "write 8/255"),
    (("attack", "ensemble", "--models", "A", "--limit", "0"), "--limit"),
    (("attack", "ensemble", "--models", "A", "--device", "abacus"), "cpu"),
    (("attack", "ensemble", "--models", "A", "--step-size", "1"), "--step-size"),
    (("attack", "ensemble", "--models", "A", "--data", "none.npz", "--eps", "1"), "none.npz"),
    (("attack", "ensemble", "--models", "A", "--data", "none/", "--eps", "1"), "none/"),
    (("attack", "ensemble", "--models", "none.safetensors:A"), "none.safetensors"),
    (("attack", "ensemble", "--models", "no.such.module:make"), "ModuleNotFoundError"),
    (("attack", "ensemble", "--models", "slow:missing"), "AttributeError"),
    (("attack", "ensemble", "--models", "slow:broken"), "no weights here"),
    (("attack", "ensemble", "--models", "slow:number"), "int"),
    (("attack", "ensemble", "--models", "what is this"), "package.module:factory"),
    (("attack", "ensemble", "--config", "none.yaml"), "none.yaml"),
    (("attack", "ensemble", "--config", "broken.yaml"), "YAML"),
    (("attack", "ensemble", "--config", "odd.yaml"), "colour"),
    (("attack", "ensemble", "--config", "other.yaml"), "universal"),
    (("attack", "ensemble", "--models", "A", "--resume"), "--out"),
    (("attack", "ensemble", "--models", "A", "--resume", "--out", "other.yaml"), "folder"),
    (("attack", "universal", "--models", "A,C"), "one model"),
    (("attack", "transform", "--models", "A", "--eps", "1", "--transforms", "melt"), "crop_resize"),
    (("report", "none"), "run.json"),
    (("report",), "runs/demo"),
    (("doctor",), "mnist-a"),
    (("doctor", "A", "--eps", "7"), "--eps"),
    (("data", "fetch", "imagenet"), "cifar10"),
    (("data", "fetch"), "mnist"),
]


class TestWrongInput:
    @pytest.mark.parametrize(("words", "message"), WRONG, ids=lambda value: " ".join(value)[:60])
    def test_one_line_and_exit_code_2(self, words, message, tmp_path, capsys):
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        (tmp_path / "broken.yaml").write_text("a: [1,")
        (tmp_path / "odd.yaml").write_text("models: [A]\ncolour: red\n")
        (tmp_path / "other.yaml").write_text("kind: universal\nmodels: [A]\n")
        sys.modules.pop("slow", None)
        assert inside(*words) == 2
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert line.startswith("saddlepoint: ")
        assert message in line
        assert out == ""

    def test_the_same_from_a_shell(self, tmp_path):
        done = fresh("attack", "ensemble", "--models", "A", "--eps", "wide", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            "saddlepoint: `--eps` must be a number such as 0.2 or 8/255, got 'wide'.\n"
        )

    def test_library_errors_exit_1(self, tmp_path, capsys):
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        sys.modules.pop("slow", None)
        assert inside("attack", "ensemble", "--models", "slow:Raises", "--limit", 4) == 1
        (line,) = capsys.readouterr().err.splitlines()
        raised = 1 + SLOW_MODEL[: SLOW_MODEL.index("raise ZeroDivisionError")].count("\n")
        assert "model itself is broken" in line
        assert f"(slow.py, line {raised})" in line

    def test_a_limit_above_what_there_is_is_said(self, tmp_path, capsys):
        np.savez(tmp_path / "d.npz", images=np.zeros((3, 28, 28)), labels=np.arange(3))
        words = ("--models", "mnist-a", "--data", "d.npz", "--eps", 0.1, "--steps", 2)
        assert inside("attack", "ensemble", *words, "--limit", 99999, "--out", "o") == 0
        err = capsys.readouterr().err
        assert "--limit 99999: there are 3 images; using all of them" in err
        record = runs.Run.read(tmp_path / "o")
        assert (record.rows, record.settings["limit"]) == (3, 3)
        assert inside("attack", "ensemble", *words, "--limit", 3, "--out", "p") == 0
        assert "--limit" not in capsys.readouterr().err

    def test_a_radius_beyond_every_image_is_a_warning(self, tmp_path, capsys):
        words = ("--models", "A", "--norm", "l2", "--limit", 4, "--steps", 2)
        assert inside("attack", "ensemble", *words, "--eps", 29, "--out", "o", "--json") == 0
        assert "bounds nothing" in capsys.readouterr().err
        assert "bounds nothing" in runs.Run.read(tmp_path / "o").warnings[0]
        assert inside("attack", "ensemble", *words, "--eps", 27, "--out", "p", "--json") == 0
        assert "bounds nothing" not in capsys.readouterr().err
        words = ("evaluate", "A", "--threat", "L1:785", "--limit", 2, "--no-doctor", "--out", "q")
        assert inside(*words) == 0
        assert "bounds nothing" in capsys.readouterr().err

    def test_predicted_labels_are_attacked_and_success_is_counted_against_the_truth(self, tmp_path):
        words = (
            "--data",
            "cifar10-sample",
            "--models",
            "A",
            "--limit",
            12,
            "--eps",
            0.05,
            "--steps",
            5,
        )
        metrics = {}
        for labels in ("true", "predicted"):
            out = ("--labels", labels, "--out", labels, "--quiet")
            assert inside("attack", "ensemble", *words, *out) == 0
            record = runs.Run.read(tmp_path / labels)
            assert record.settings["labels"] == labels
            metrics[labels] = record.metrics
        x, y = sp.data.sample("cifar10", 12)
        model = sp.models.load("cifar10-a")
        clean = 100 * float((model(x).argmax(dim=1) == y).double().mean())
        assert clean < 100
        assert metrics["predicted"]["clean_accuracy"]["A"] == pytest.approx(clean, abs=1e-3)
        # Answers that were wrong are attacked, too, and some become right.
        assert metrics["true"]["asr_all"] == 100 > metrics["predicted"]["asr_all"]

    def test_resume_without_a_run_starts_one(self, tmp_path, capsys):
        assert inside("attack", "ensemble", *QUICK, "--out", "new", "--resume") == 0
        assert "nothing to resume" in capsys.readouterr().err
        assert runs.Run.read(tmp_path / "new").status == "complete"

    def test_a_run_is_not_overwritten_by_accident(self, tmp_path, capsys):
        words = ("attack", "ensemble", *QUICK, "--out", "o", "--quiet")
        assert inside(*words) == 0
        assert inside(*words) == 2
        assert "--overwrite" in capsys.readouterr().err
        assert inside(*words, "--overwrite") == 0


class TestModelsAndData:
    def test_own_weights_and_own_images(self, tmp_path):
        save_file(sp.models.load("mnist-c").state_dict(), tmp_path / "mine.safetensors")
        x, y = sp.data.sample("mnist", 100)
        for index, (image, label) in enumerate(zip(x, y, strict=True)):
            folder = tmp_path / "photos" / f"digit {int(label)}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image[0] * 255).byte().numpy()).save(folder / f"{index}.png")
        hits = float((sp.models.load("mnist-c")(x).argmax(1) == y).double().mean())
        words = ("--data", "photos/", "--models", "mine.safetensors:C", "--eps", "0.2", "--quiet")
        assert inside("attack", "ensemble", *words, "--steps", 10, "--out", "o") == 0
        record = runs.Run.read(tmp_path / "o")
        assert record.rows == 100
        assert record.domains == ("mine",)
        assert record.classes[3] == "digit 3"
        assert record.metrics["clean_accuracy"]["mine"] == 100 * hits
        assert "digit 3" in (tmp_path / "o" / "report.html").read_text()

    def test_images_that_are_nearly_black_are_noted(self, tmp_path, capsys):
        x, y = sp.data.sample("mnist", 12)
        np.savez(tmp_path / "d.npz", images=(x * 15).byte().numpy(), labels=y.numpy())
        words = ("--data", "d.npz", "--models", "mnist-c", "--eps", "0.1", "--steps", 2)
        assert inside("attack", "ensemble", *words, "--out", "o") == 0
        found = [line for line in capsys.readouterr().err.splitlines() if "nearly black" in line]
        assert len(found) == 1
        assert found[0].startswith("saddlepoint: warning: the images in d.npz are nearly black")

    def test_colour_for_a_network_of_grey_images(self, tmp_path, capsys):
        x, y = sp.data.sample("mnist", 4)
        colour = (x.expand(-1, 3, -1, -1) * 255).byte().numpy()
        np.savez(tmp_path / "d.npz", images=colour, labels=y.numpy())
        words = ("--data", "d.npz", "--models", "mnist-c", "--eps", "0.1", "--out", "o")
        assert inside("attack", "ensemble", *words) == 2
        error = capsys.readouterr().err
        assert "got images of 3 (colour) and mnist-c, which takes 1 (grey)" in error
        assert error.count("\n") == 1

    def test_a_missing_class_is_an_error_and_not_a_shift(self, tmp_path, capsys):
        x, y = digits(tmp_path / "f", without=3)
        right = float((sp.models.load("mnist-c")(x).argmax(1) == y).double().mean())
        attack = ("attack", "ensemble", "--data", "f", "--eps", "0.1", "--steps", 2, "--quiet")
        for words in (
            (*attack, "--models", "mnist-c", "--out", "o"),
            ("evaluate", "mnist-c", "--data", "f", "--threat", "linf:0.1", "--out", "o", "--quiet"),
            ("doctor", "mnist-c", "--data", "f"),
        ):
            assert inside(*words) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert "got '4' in place of 3, so that labels would be shifted" in line
            assert "`--classes`" in line
        for folder in (tmp_path / "f").iterdir():  # of words it is not known that one is missing
            shutil.copytree(folder, tmp_path / "words" / f"digit {folder.name}")
        assert inside("doctor", "mnist-c", "--data", "words") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "got 9 folders and 10 logits of mnist-c" in line
        assert "--classes" in line
        assert not (tmp_path / "o").exists()
        names = ",".join("0123456789")
        for number, given in enumerate((names, "mine.txt")):
            (tmp_path / "mine.txt").write_text(names.replace(",", "\n"))
            words = (*attack, "--models", "mnist-c", "--classes", given, "--out", f"o{number}")
            assert inside(*words) == 0
            record = runs.Run.read(tmp_path / f"o{number}")
            assert record.metrics["clean_accuracy"]["mnist-c"] == pytest.approx(100 * right)
            assert record.classes == tuple("0123456789")
            assert f"--classes {given}" in record.command
        assert inside("doctor", "mnist-c", "--data", "f", "--classes", names, "--steps", 2) == 0
        capsys.readouterr()
        words = (*attack, "--models", "mnist-c", "--classes", f"{names},A", "--out", "o")
        assert inside(*words) == 2
        assert "11 listed classes and 10 logits" in capsys.readouterr().err

    def test_evaluate_takes_classes(self, tmp_path, capsys):
        x, y = digits(tmp_path / "f", count=40, without=3)
        right = float((sp.models.load("mnist-c")(x).argmax(1) == y).double().mean())
        names = ",".join("0123456789")
        words = ("evaluate", "mnist-c", "--data", "f", "--threat", "linf:0.01", "--classes", names)
        assert inside(*words, "--limit", 99, "--no-doctor", "--out", "o") == 0
        record = runs.Run.read(tmp_path / "o")
        assert record.metrics["clean"] == pytest.approx(100 * right)
        assert f"--classes {names}" in record.command
        assert "--limit 99: there are" in capsys.readouterr().err

    def test_labels_a_model_does_not_know(self, tmp_path, capsys):
        np.savez(tmp_path / "d.npz", images=np.zeros((2, 28, 28)), labels=np.array([0, 10]))
        assert (
            inside("attack", "ensemble", "--models", "mnist-a", "--data", "d.npz", "--eps", 0.1)
            == 2
        )
        (line,) = capsys.readouterr().err.splitlines()
        assert "mnist-a" in line
        assert "10 logits" in line
        assert "label 10" in line

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("--data", "d.npz"), "`labels` must be numbers, got Python objects"),
            (("--data", "f"), "1 image directly in it"),
            (("--data", "f", "--classes", "a,a"), "`--classes` must name every class once"),
            (("--data", "mnist-sample", "--classes", "a,b"), "`--classes` must be left out"),
            (("--data", "none.py:digits"), "got FileNotFoundError: there is no file none.py"),
            (("--data", "nowhere/"), "file.py:dataset or package.module:dataset, got 'nowhere/'"),
            (("--data", "two"), "as many channels as the model takes, got images of 3 (colour)"),
        ],
    )
    def test_data_that_cannot_be_read_rightly(self, tmp_path, capsys, words, message):
        np.savez(tmp_path / "d.npz", images=np.zeros((2, 3, 3)), labels=np.array([0, None]))
        (tmp_path / "f").mkdir()
        Image.new("L", (8, 8)).save(tmp_path / "f" / "i.png")
        for name, size in (("a", 8), ("b", 9)):
            (tmp_path / "two" / name).mkdir(parents=True)
            Image.new("RGB", (size, size)).save(tmp_path / "two" / name / "i.png")
        assert inside("attack", "ensemble", "--models", "mnist-a", "--eps", 0.1, *words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line

    def test_images_are_resized(self, tmp_path, capsys):
        x, y = digits(tmp_path / "f")
        for file in (tmp_path / "f").rglob("*.png"):
            Image.open(file).resize((56, 56), Image.Resampling.BILINEAR).save(file)
        words = ("--data", "f", "--models", "mnist-c", "--size", 28, "--eps", 0.1, "--quiet")
        assert inside("attack", "ensemble", *words, "--steps", 2, "--out", "o") == 0
        record = runs.Run.read(tmp_path / "o")
        right = float((sp.models.load("mnist-c")(x).argmax(1) == y).double().mean())
        assert record.metrics["clean_accuracy"]["mnist-c"] >= 100 * right - 5

    def test_exported_program(self, tmp_path):
        dynamic = {0: torch.export.Dim.AUTO}
        program = torch.export.export(
            sp.models.load("mnist-a"), (torch.rand(2, 1, 28, 28),), dynamic_shapes=(dynamic,)
        )
        torch.export.save(program, tmp_path / "p.pt2")
        words = ("--models", "p.pt2,A", "--limit", 8, "--steps", 5, "--out", "o", "--quiet")
        assert inside("attack", "ensemble", *words) == 0
        accuracy = runs.Run.read(tmp_path / "o").metrics["accuracy"]
        assert accuracy["p"] == accuracy["A"]

    def test_code_runs_only_when_it_is_named(self, tmp_path, capsys):
        (tmp_path / "A.py").write_text("raise SystemExit('imported')")
        assert inside("attack", "ensemble", *QUICK, "--out", "o", "--quiet") == 0


def start(tmp_path: Path, *words: object, pages: int) -> Started:
    """A run of nine chunks that has done so many of them, and goes no further."""
    (tmp_path / "slow.py").write_text(SLOW_MODEL)
    process = begin("attack", "ensemble", *words, cwd=tmp_path, held_at=pages)
    process.wait_until(lambda: len(list(tmp_path.glob("*/pages/rows*.safetensors"))) == pages)
    return process


# Ctrl-C after the answers of the models and the first page, and again when something is called.
TWICE = """
import importlib, signal
from saddlepoint.runs import Store
where, put, left = importlib.import_module(module), Store.put, [2]
does = getattr(where, name)

def stopping(store, key, page):
    put(store, key, page)
    left[0] -= 1
    if left[0] == 0:
        signal.raise_signal(signal.SIGINT)

def again(*words, **more):
    setattr(where, name, does)
    signal.raise_signal(signal.SIGINT)
    return does(*words, **more)

Store.put = stopping
setattr(where, name, again)
"""


class TestResume:
    WORDS = ("--models", "slow:Slow,C", "--limit", 18, "--batch-size", 2, "--steps", 5)
    WORDS = (*WORDS, "--eps", 0.1, "--baseline", "average")

    def test_killed_run_continues_to_the_same_numbers(self, tmp_path, capsys):
        process = start(tmp_path, *self.WORDS, "--out", "killed", pages=2)
        process.kill()
        left = len(list((tmp_path / "killed" / "pages").glob("rows*")))
        assert left == 2
        assert runs.Run.read(tmp_path / "killed").status == "running"
        before = {
            path: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("pages/rows*")
        }
        assert before

        # Another configuration, other data and another model are refused.
        sys.modules.pop("slow", None)
        resume = ("--out", "killed", "--resume", "--quiet")
        other = [str(word) for word in self.WORDS]
        other[other.index("0.1")] = "0.3"
        assert inside("attack", "ensemble", *other, *resume) == 2
        assert "eps: 0.1 there, 0.3 here" in capsys.readouterr().err
        (tmp_path / "slow.py").write_text(SLOW_MODEL.replace("mnist-a", "mnist-d"))
        sys.modules.pop("slow", None)
        assert inside("attack", "ensemble", *self.WORDS, *resume) == 2
        assert "other parameters or code for Slow" in capsys.readouterr().err
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        sys.modules.pop("slow", None)
        assert inside("report", "killed") == 2
        assert "--resume" in capsys.readouterr().err

        assert inside("attack", "ensemble", *self.WORDS, *resume) == 0
        assert inside("attack", "ensemble", *self.WORDS, "--out", "whole", "--quiet") == 0
        killed, whole = (runs.Run.read(tmp_path / name) for name in ("killed", "whole"))
        assert killed.metrics == whole.metrics
        one, two = (runs.read_results(tmp_path / n)[1] for n in ("killed", "whole"))
        assert set(one) == set(two)
        assert all(torch.equal(one[name], two[name]) for name in one)
        # A finished run has nothing to resume: it is drawn again.
        assert inside("attack", "ensemble", *self.WORDS, *resume) == 0

    def test_ctrl_c_saves_says_how_to_continue_and_exits_130(self, tmp_path, capsys):
        process = start(tmp_path, *self.WORDS, "--out", "stopped", pages=1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == 130
        assert out == ""
        assert "Traceback" not in err
        done = int(re.search(r"stopped: (\d+) of 18 images are saved", err).group(1))
        assert done == 2
        record = runs.Run.read(tmp_path / "stopped")
        assert (record.status, record.done) == ("interrupted", done)
        command = err.splitlines()[-1].removeprefix("continue with: saddlepoint ").split()
        sys.modules.pop("slow", None)
        capsys.readouterr()
        assert inside(*command) == 0
        assert f"continuing after {done} of 18 images" in capsys.readouterr().err
        assert runs.Run.read(tmp_path / "stopped").metrics["rows"] == 18

    @pytest.mark.parametrize(
        "place",
        [
            "saddlepoint.runs.execute.end_undisturbed",
            "saddlepoint.runs.execute._leave",
            "saddlepoint.cli.runs_shown._tell_way_on",
            "sys.exit",
        ],
    )
    def test_a_second_ctrl_c_neither_breaks_the_record_nor_the_exit_code(
        self, place, tmp_path, nursery
    ):
        """Wherever it comes: just after the first, while that is recorded and told, at the very end."""
        module, _, name = place.rpartition(".")
        patch = f"module, name = {module!r}, {name!r}\n{TWICE}"
        words = ("attack", "ensemble", *QUICK, "--out", "stopped")
        (ended,) = nursery.run(*words, cwd=tmp_path, patch=patch)
        assert ended.code == 130, ended.err
        assert "Traceback" not in ended.err
        assert "--resume" in ended.err.splitlines()[-1]
        assert runs.Run.read(tmp_path / "stopped").status == "interrupted"
