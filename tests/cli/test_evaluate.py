"""`saddlepoint evaluate` as a user runs it: numbers, folders, resuming, budgets, reports."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

import saddlepoint as sp
from children import Started
from commands import SLOW_MODEL, begin, inside, run
from elements import Elements
from folders import without_time
from run_factory import HOSTILE, make_evaluation
from saddlepoint import evaluation, report, runs
from saddlepoint.evaluation import RobustAccuracy
from saddlepoint.report import charts
from saddlepoint.runs import texts
from saddlepoint.runs.evaluation_tables import evaluation_metrics
from saddlepoint.runs.evaluation_task import examine_models
from saddlepoint.solver.inspection import look

pytestmark = pytest.mark.usefixtures("elsewhere")

MASKED = """
import saddlepoint as sp, torch
class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.net = sp.models.load('mnist-a'); self.eval()
    def forward(self, x): return self.net((x * 8).round() / 8)
"""
THREATS = ("--threat", "linf:0.2", "--threat", "l2:2.5")
QUICK = (*THREATS, "--limit", 10, "--batch-size", 4, "--no-doctor")


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    return make_evaluation(folder), folder


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    return make_evaluation(folder, domains=3), folder


def pages(folder: Path) -> dict[str, int]:
    """Finished batches; the answers of the models are kept beside them."""
    found = (p for p in folder.glob("pages/[!.]*") if not p.name.startswith("answers-"))
    return {p.name: p.stat().st_mtime_ns for p in found}


class TestCommand:
    def test_one_model_by_the_library_and_by_the_command(self, tmp_path):
        done = run("evaluate", "mnist-a", *QUICK, "--out", "o", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        x, y = sp.data.sample("mnist", 10)
        balls = {"linf": sp.LpBall(math.inf, 0.2), "l2": sp.LpBall(2, 2.5)}
        expected = sp.robust_accuracy(sp.models.load("mnist-a"), x, y, balls, batch_size=4)
        record = runs.Run.read(tmp_path / "o")
        assert (record.kind, record.status, record.done) == ("evaluate", "complete", 10)
        assert record.metrics["union"] == round(100 * expected.union, 4)
        assert record.metrics["robust"] == {
            name: round(100 * value, 4) for name, value in expected.per_threat.items()
        }
        tensors = runs.read_results(tmp_path / "o")[1]
        broken = tensors["domains/mnist-a/linf/attack-ce/broken"]
        assert torch.equal(broken, expected.outcomes[0].broken)
        assert torch.equal(tensors["domains/mnist-a/l2/distance"], expected.distance("l2"))
        assert not (tmp_path / "o" / "pages").exists()
        assert done.stdout.splitlines()[-1].endswith("report: o/report.html")
        assert (
            f"classifies {int(expected.still_right().sum())} of 10 images correctly" in done.stdout
        )
        assert "linf ours, cross-entropy (1/5): " in done.stderr
        assert "\x1b" not in done.stdout + done.stderr

    def test_everything_is_in_the_folder_and_can_be_drawn_again(self, tmp_path, capsys):
        assert inside("evaluate", "A", *QUICK, "--out", "o", "--quiet") == 0
        assert capsys.readouterr() == ("", "")
        names = {path.name for path in (tmp_path / "o").iterdir()}
        tables = {"table.md", "table.csv", "table.tex", "drawn.json"}
        assert names == {"run.json", "tensors.safetensors", "report.html", *tables}
        before = (tmp_path / "o" / "report.html").read_text()
        for name in ("report.html", "table.csv"):
            (tmp_path / "o" / name).unlink()
        assert inside("report", "o") == 0
        assert "union" in capsys.readouterr().out
        assert (tmp_path / "o" / "report.html").read_text() == before
        with (tmp_path / "o" / "table.csv").open() as file:
            rows = list(csv.DictReader(file))
        union = runs.Run.read(tmp_path / "o").metrics["union"]
        assert float(rows[-1]["accuracy"]) == union
        assert rows[0]["attack"] == "attack-ce"
        assert r"\begin{tabular}" in (tmp_path / "o" / "table.tex").read_text()

    def test_json_is_what_is_on_disk(self, tmp_path, capsys):
        assert inside("evaluate", "A", *QUICK, "--out", "o", "--json") == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed == {
            "status": "complete",
            "rows": 10,
            "done": 10,
            **runs.Run.read(tmp_path / "o").metrics,
        }

    def test_several_models(self, tmp_path, capsys):
        words = ("--models", "A,C", "--threat", "linf:0.2", "--limit", 4, "--no-doctor")
        assert inside("evaluate", *words, "--out", "o") == 0
        out = capsys.readouterr().out
        record = runs.Run.read(tmp_path / "o")
        assert record.domains == ("A", "C")
        assert set(record.metrics["domains"]) == {"A", "C"}
        assert record.metrics["joint"]["linf"] >= record.metrics["union"]
        assert record.metrics["eps_min"]["linf"]["median"] > 0
        assert "not all fooled at once" in out
        tensors = runs.read_results(tmp_path / "o")[1]
        assert tensors["joint/linf/eps_min"].shape == (4,)
        assert tensors["domains/C/linf/attack/broken"].shape == (4,)
        fooled = tensors["joint/linf/fooled"]
        assert record.metrics["joint"]["linf"] == pytest.approx(
            100 * (~fooled).double().mean().item(), abs=1e-4
        )

    def test_one_model_through_views(self, tmp_path):
        words = ("A", "--threat", "linf:0.2", "--limit", 3, "--no-doctor", "--quiet")
        both = ("--transforms", "identity,rotate:20", "--out", "two")
        assert inside("evaluate", *words, *both) == 0
        assert runs.Run.read(tmp_path / "two").domains == ("identity", "rotate:20")
        assert "both views" in (tmp_path / "two" / "report.html").read_text()
        assert inside("evaluate", *words, "--transforms", "rotate:20", "--out", "one") == 0
        one = runs.Run.read(tmp_path / "one").metrics
        two = runs.Run.read(tmp_path / "two").metrics["domains"]["rotate:20"]
        assert one["robust"] == two["robust"]

    def test_own_weights_and_own_code(self, tmp_path):
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        sys.modules.pop("slow", None)
        words = ("--threat", "linf:0.3", "--limit", 2, "--no-doctor", "--quiet")
        assert inside("evaluate", "slow:Slow", *words, "--out", "o") == 0
        assert runs.Run.read(tmp_path / "o").domains == ("Slow",)

    def test_what_the_doctor_fails_is_refused_with_the_reason(self, tmp_path, capsys):
        (tmp_path / "masked.py").write_text(MASKED)
        words = ("masked:Masked", "--threat", "linf:0.2", "--limit", 24, "--out", "o")
        assert inside("evaluate", *words) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert "Masked: not fit" in err
        assert "the gradient is exactly zero for 100% of the images." in err
        assert "usually means: something masks it" in err
        assert "what to do:    attack a differentiable copy" in err
        last = err.splitlines()[-1]
        assert last.startswith(
            "saddlepoint: not fit to be evaluated, numbers would be wrong: Masked ("
        )
        assert "gradients: the gradient is exactly zero" in last
        assert "--no-doctor" in last
        assert not (tmp_path / "o").exists()  # the same command works after mending
        assert inside("evaluate", *words, "--quiet") == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line == last

    def test_and_evaluated_all_the_same_without_the_doctor(self, tmp_path):
        (tmp_path / "masked.py").write_text(MASKED)
        words = ("masked:Masked", "--threat", "linf:0.2", "--limit", 6, "--out", "o", "--quiet")
        assert inside("evaluate", *words, "--no-doctor") == 0
        assert "doctor" not in runs.Run.read(tmp_path / "o").metrics
        text = (tmp_path / "o" / "report.html").read_text()
        assert "the gradient is zero" in text  # what the solver has to say is not lost

    def test_a_run_the_doctor_refused_is_not_replaced(self, tmp_path, capsys):
        assert inside("evaluate", "A", *QUICK, "--out", "o", "--quiet") == 0
        before = (tmp_path / "o" / "run.json").read_bytes()
        (tmp_path / "masked.py").write_text(MASKED)
        words = ("masked:Masked", "--threat", "linf:0.2", "--limit", 24, "--out", "o")
        assert inside("evaluate", *words, "--overwrite") == 1
        assert (tmp_path / "o" / "run.json").read_bytes() == before
        assert (tmp_path / "o" / "table.md").is_file()

    def test_warnings_are_shown_with_their_reason_and_change_no_exit_code(self, tmp_path, capsys):
        (tmp_path / "steep.py").write_text(
            MASKED.replace("self.net((x * 8).round() / 8)", "4 * self.net(x)")
        )
        words = ("steep:Masked", "--threat", "linf:0.2", "--limit", 24, "--out", "o")
        assert inside("evaluate", *words) == 0
        _, err = capsys.readouterr()
        assert "Masked: look at the warnings before trusting numbers" in err
        assert "! saturation" in err
        assert "usually means: the C&W margin is cut off" in err
        assert "what to do:    use --loss dlr" in err
        assert "✓" not in err
        text = (tmp_path / "o" / "report.html").read_text()
        head = text[: text.index('id="radius"')]
        assert "The doctor has doubts" in head
        for part in (
            "median margin between the two largest",
            "Usually means: the C&amp;W",
            "use --loss dlr",
        ):
            assert part in head

    def test_the_doctor_sees_all_classes_of_images_sorted_by_class(self):
        network = torch.nn.Linear(16, 2)
        network.bias.data += torch.tensor([9.0, 0.0])
        model = torch.nn.Sequential(
            torch.nn.Flatten(), network
        ).eval()  # says 0, whatever it is shown
        problem = sp.Ensemble([model], torch.rand(100, 1, 4, 4), torch.arange(100) // 50)
        found = examine_models({"zero": model}, problem, "own", {}, lambda *_: None)
        (finding,) = [each for each in found["zero"] if each.name == "normalisation"]
        assert (finding.status, finding.saw) == ("warn", "accuracy is 50%, chance is 50%.")

    def test_a_model_at_chance_is_warned_of(self, tmp_path, capsys):
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        words = ("--threat", "linf:0.2", "--limit", 20, "--data", "mnist", "--out", "r")
        assert inside("evaluate", "slow.py:untrained", *words, "--no-doctor") == 0
        assert "guessing among 10 classes 10 %" in capsys.readouterr().err
        assert inside("evaluate", "mnist-a", *words[:-1], "s", "--no-doctor") == 0
        assert "guessing" not in capsys.readouterr().err

    def test_the_command_repeats_the_run(self, tmp_path):
        words = ("A", *QUICK, "--seed", 3, "--every-attack", "--budget", "2m")
        assert inside("evaluate", *words, "--out", "one", "--quiet") == 0
        command = runs.Run.read(tmp_path / "one").command.split()
        assert command[0] == "saddlepoint"
        assert inside(*command[1:], "--out", "two", "--quiet") == 0
        one, two = (runs.Run.read(tmp_path / name) for name in ("one", "two"))
        assert one.hashes == two.hashes
        assert without_time(one.metrics) == without_time(two.metrics)
        assert one.settings["budget"] == 120

    def test_comparing(self, tmp_path, capsys):
        for name, model in (("a", "A"), ("c", "C")):
            assert inside("evaluate", model, *QUICK, "--out", name, "--quiet") == 0
        capsys.readouterr()
        assert inside("report", "a", "c", "--out", "both.html") == 0
        assert "both.html" in capsys.readouterr().out
        assert "Which model is more robust?" in (tmp_path / "both.html").read_text()
        words = ("--models", "A", "--limit", 4, "--steps", 3, "--out", "attack", "--quiet")
        assert inside("attack", "ensemble", *words) == 0
        assert inside("report", "a", "attack") == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "comes first" not in out
        assert out.count("There is no other run of this kind") == 2

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("A",), "--threat linf:0.3"),
            ((*THREATS,), "one MODEL"),
            (("A", "--models", "B", *THREATS), "both"),
            (("A,C", *THREATS), "one MODEL, got A and C; write --models A,C to"),
            (("--models", ",", *THREATS), "at least one model"),
            (("Z", *THREATS), "A, B, C, D"),
            (("none.safetensors:A", *THREATS), "none.safetensors"),
            (("A", "--threat", "l3:1"), "linf, l2, l1, l0"),
            (("A", "--threat", "linf"), "linf:0.3"),
            (("A", "--threat", "linf:0.1", "--threat", "linf:0.2"), "twice"),
            (("A", "--threat", "linf:0.1:0.2"), "norm:radius"),
            (("A", "--threat", "linf:0"), "positive"),
            (("A", *THREATS, "--suite", "all"), "suite"),
            (("A", *THREATS, "--budget", "soon"), "60s, 5m or 90"),
            (("A", *THREATS, "--budget", "-3"), "--budget"),
            (("A", *THREATS, "--limit", "0"), "--limit"),
            (("A", *THREATS, "--batch-size", "0"), "--batch-size"),
            (("A", *THREATS, "--transforms", "melt"), "crop_resize"),
            (("A", *THREATS, "--transforms", "paper-random"), "deterministic"),
            (("A", *THREATS, "--device", "abacus"), "cpu"),
            (("A", *THREATS, "--resume"), "--out"),
        ],
        ids=lambda value: " ".join(map(str, value))[:50],
    )
    def test_wrong_input_is_one_line_and_exit_code_2(self, words, message, capsys):
        assert inside("evaluate", *words) == 2
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert line.startswith("saddlepoint: ")
        assert message in line
        assert out == ""
        assert not Path("runs").exists()

    def test_help_has_examples(self, capsys):
        assert inside("evaluate", "--help") == 0
        assert "saddlepoint evaluate --models A,B,C,D" in " ".join(capsys.readouterr().out.split())

    @pytest.mark.parametrize(
        ("text", "value"), [("60s", 60), ("5m", 300), ("90", 90), ("1h", 3600)]
    )
    def test_times(self, text, value):
        assert texts.seconds(text) == value

    def test_batch_size_follows_memory(self):
        class Hungry(torch.nn.Module):
            def forward(self, x):
                wide = x.flatten(1).repeat(1, 4096)
                return (wide.exp() * wide).reshape(len(x), 4, -1).mean(dim=2)

        x, y = torch.rand(4, 1, 64, 64), torch.zeros(4, dtype=torch.long)
        assert look(sp.Ensemble([Hungry().eval()], x, y)).rows(accumulate=False) < 16
        small = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4096, 4)).eval()
        assert look(sp.Ensemble([small], x, y)).rows(accumulate=False) == 128


# Ctrl-C at the third layer of a network that the doctor asks.
IMPATIENT = """
import signal, torch
from saddlepoint import doctor
examine, left = doctor.examine, [3]
def hook(*_):
    left[0] -= 1
    if left[0] == 0:
        signal.raise_signal(signal.SIGINT)
def examined(*words, **more):
    torch.nn.modules.module.register_module_forward_hook(hook)
    return examine(*words, **more)
doctor.examine = examined
"""


class TestResume:
    WORDS = ("slow:Slow", *THREATS, "--limit", 12, "--batch-size", 2, "--no-doctor")

    def start(self, tmp_path: Path, out: str, count: int) -> Started:
        """An evaluation that has so many pages, and goes no further."""
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        words = ("evaluate", *self.WORDS, "--out", out)
        process = begin(*words, cwd=tmp_path, held_at=count)
        process.wait_until(lambda: len(pages(tmp_path / out)) == count)
        return process

    def test_killed_evaluation_continues_to_the_same_numbers(self, tmp_path, capsys, monkeypatch):
        self.start(tmp_path, "killed", 3).kill()
        assert runs.Run.read(tmp_path / "killed").status == "running"
        kept = len(pages(tmp_path / "killed"))
        assert kept == 3
        shutil.copytree(tmp_path / "killed", tmp_path / "copy")

        # Another configuration, other data and another model are refused.
        resume = ("--out", "killed", "--resume", "--quiet")
        sys.modules.pop("slow", None)
        other = [str(word) for word in self.WORDS]
        other[other.index("linf:0.2")] = "linf:0.3"
        assert inside("evaluate", *other, *resume) == 2
        assert "linf:0.2" in capsys.readouterr().err
        other = [str(word) for word in self.WORDS]
        other[other.index("12")] = "11"
        assert inside("evaluate", *other, *resume) == 2
        assert "limit: 12 there, 11 here" in capsys.readouterr().err
        (tmp_path / "slow.py").write_text(SLOW_MODEL.replace("mnist-a", "mnist-d"))
        sys.modules.pop("slow", None)
        assert inside("evaluate", *self.WORDS, *resume) == 2
        assert "other parameters or code for Slow" in capsys.readouterr().err
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        sys.modules.pop("slow", None)
        assert inside("report", "killed") == 2
        assert "--resume" in capsys.readouterr().err
        assert inside("evaluate", *self.WORDS, "--out", "killed") == 2
        assert "--overwrite" in capsys.readouterr().err
        assert len(pages(tmp_path / "killed")) == kept

        run_batches = []
        batch = evaluation.OurAttack.run

        def count(attack, target):
            run_batches.append(target.rows.tolist())
            return batch(attack, target)

        monkeypatch.setattr(evaluation.OurAttack, "run", count)
        assert inside("evaluate", *self.WORDS, *resume) == 0
        resumed = len(run_batches)
        run_batches.clear()
        assert inside("evaluate", *self.WORDS, "--out", "whole", "--quiet") == 0
        assert resumed == len(run_batches) - kept
        killed, whole = (runs.Run.read(tmp_path / name) for name in ("killed", "whole"))
        assert without_time(killed.metrics) == without_time(whole.metrics)
        one, two = (runs.read_results(tmp_path / n)[1] for n in ("killed", "whole"))
        assert set(one) == set(two)
        assert all(torch.equal(one[name], two[name]) for name in one)
        # A finished evaluation has nothing to resume: it is drawn again.
        run_batches.clear()
        assert inside("evaluate", *self.WORDS, *resume) == 0
        assert run_batches == []

        # A damaged batch is run again.
        path = tmp_path / "copy" / "pages" / next(iter(pages(tmp_path / "copy")))
        path.write_bytes(path.read_bytes()[:-7])
        assert inside("evaluate", *self.WORDS, "--out", "copy", "--resume", "--quiet") == 0
        assert len(run_batches) == resumed + 1
        assert without_time(runs.Run.read(tmp_path / "copy").metrics) == without_time(whole.metrics)

    @pytest.mark.parametrize("after", [1, 7, 13])
    def test_several_domains_stopped_anywhere_end_with_the_same_numbers(
        self, several, tmp_path, monkeypatch, after
    ):
        put, puts = runs.Store.put, []

        def stop(self, key, page):
            put(self, key, page)
            puts.append(key)
            if len(puts) == after:
                raise KeyboardInterrupt

        monkeypatch.setattr(runs.Store, "put", stop)
        with pytest.raises(runs.RunInterrupted):
            make_evaluation(tmp_path, domains=3)
        assert runs.Run.read(tmp_path).status == "interrupted"
        assert len(list((tmp_path / "pages").glob("[!.]*"))) == after
        run = make_evaluation(tmp_path, domains=3)
        assert len(puts) == len(set(puts)) > after  # nothing is run twice
        whole, folder = several
        assert without_time(run.metrics) == without_time(whole.metrics)
        one, two = (runs.read_results(f)[1] for f in (folder, tmp_path))
        assert set(one) == set(two)
        assert all(torch.equal(one[name], two[name]) for name in one)

    def test_changed_data_is_refused(self, tmp_path, capsys):
        import numpy as np

        x, y = sp.data.sample("mnist", 4)
        np.savez(tmp_path / "d.npz", images=x.numpy(), labels=y.numpy())
        words = ("mnist-a", "--data", "d.npz", *THREATS, "--no-doctor", "--out", "o", "--quiet")
        assert inside("evaluate", *words) == 0
        np.savez(tmp_path / "d.npz", images=1 - x.numpy(), labels=y.numpy())
        assert inside("evaluate", *words, "--resume") == 2
        assert "same data" in capsys.readouterr().err

    def test_ctrl_c_saves_says_how_to_continue_and_exits_130(self, tmp_path):
        process = self.start(tmp_path, "stopped", 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == 130
        assert out == ""
        assert "Traceback" not in err
        done = int(re.search(r"stopped: (\d+) finished batches are saved", err).group(1))
        assert done == len(pages(tmp_path / "stopped")) == 2
        assert runs.Run.read(tmp_path / "stopped").status == "interrupted"
        command = err.splitlines()[-1].removeprefix("continue with: saddlepoint ").split()
        sys.modules.pop("slow", None)
        assert inside(*command, "--quiet") == 0
        assert runs.Run.read(tmp_path / "stopped").status == "complete"

    def test_ctrl_c_while_the_doctor_works(self, tmp_path, nursery):
        words = ("evaluate", "mnist-a", "--threat", "linf:0.1", "--limit", 12, "--out", "o")
        (ended,) = nursery.run(*words, cwd=tmp_path, patch=IMPATIENT)
        assert ended.code == 130, ended.err
        # The folder was not open yet: there is nothing to continue.
        assert ended.err == "doctor: examining mnist-a ...\nsaddlepoint: stopped\n"
        assert not (tmp_path / "o").exists()

    def test_the_doctor_is_not_asked_twice(self, tmp_path, monkeypatch):
        words = ("A", *THREATS, "--limit", 6, "--out", "o", "--quiet")
        assert inside("evaluate", *words) == 0
        record = runs.Run.read(tmp_path / "o")
        for name in record.drawn:
            (tmp_path / "o" / name).unlink()
        record.but(status="interrupted", metrics={"doctor": record.metrics["doctor"]}).write(
            tmp_path / "o"
        )
        monkeypatch.setattr(sp.doctor, "examine", None)
        assert inside("evaluate", *words, "--resume") == 0
        again = runs.Run.read(tmp_path / "o")
        assert without_time(again.metrics) == without_time(record.metrics)


class TestTrouble:
    def test_a_budget_cuts_short_and_says_so(self, tmp_path, capsys):
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        sys.modules.pop("slow", None)
        words = ("slow:Slow", *THREATS, "--limit", 8, "--batch-size", 2, "--no-doctor")
        assert inside("evaluate", *words, "--budget", "1e-4s", "--out", "o") == 0
        out, err = capsys.readouterr()
        metrics = runs.Run.read(tmp_path / "o").metrics
        (part,) = metrics["domains"].values()
        cut = [each for each in part["attacks"] if each["status"] == "cut short"]
        assert cut
        assert all(each["accuracy"] is None for each in cut)
        assert "cut short by the budget of 0.0001 s" in " ".join(metrics["notes"])
        assert "cut short by the budget" in err
        assert "cut short" in out
        text = (tmp_path / "o" / "report.html").read_text()
        assert text.index("cut short by the budget of 0.0001 s") < text.index('id="radius"')
        assert "cut short" in (tmp_path / "o" / "table.md").read_text()

    def test_what_the_budget_never_let_be_attacked_is_not_robust(self, tmp_path, capsys):
        (tmp_path / "slow.py").write_text(SLOW_MODEL)
        sys.modules.pop("slow", None)
        words = ("slow:Slow", "--threat", "linf:0.3", "--limit", 8, "--no-doctor")
        assert inside("evaluate", *words, "--budget", "1e-6s", "--out", "runs/none") == 0
        out = " ".join(capsys.readouterr().out.split())
        metrics = runs.Run.read(tmp_path / "runs" / "none").metrics
        assert metrics["union"] == metrics["clean"]
        assert metrics["at_most"] == ["robust.linf", "union"]
        assert metrics["intervals"]["union"][0] == 0
        assert all(
            "was cut short by the budget before 8 images" in why for why in metrics["because"]
        )
        assert "The model classifies at most " in out
        assert "because not every attack could be run: linf " in out
        page = (tmp_path / "runs" / "none" / "report.html").read_text()
        assert "Attacks were cut short by the budget, so that numbers are upper bounds" in page
        assert f"at most {metrics['union']:.1f}" in page
        table = (tmp_path / "runs" / "none" / "table.md").read_text()
        assert [line for line in table.splitlines() if line.endswith("at most |")]
        assert inside("evaluate", *words, "--budget", "10m", "--out", "runs/all") == 0
        assert runs.Run.read(tmp_path / "runs" / "all").metrics["at_most"] == []
        capsys.readouterr()
        assert inside("report", "runs/none", "runs/all") == 0
        assert "none comes first" not in capsys.readouterr().out

    @pytest.fixture
    def no_l2(self, monkeypatch):
        """Attacks under l2 raise."""
        batch = evaluation.OurAttack.run

        def fail(attack, target):
            if target.ball.p == 2:
                raise ArithmeticError("no l2 today")
            return batch(attack, target)

        monkeypatch.setattr(evaluation.OurAttack, "run", fail)

    @pytest.mark.usefixtures("no_l2")
    def test_an_attack_that_fails_is_an_error_and_nothing_is_lost(
        self, tmp_path, capsys, monkeypatch
    ):
        assert inside("evaluate", "A", *QUICK, "--out", "o", "--quiet") == 1
        out, err = capsys.readouterr()
        saved, again, line = err.splitlines()
        assert "finished batches are saved in o" in saved
        assert again.startswith("continue with: saddlepoint evaluate ")
        assert "l2 attack-ce failed on 10 images (ArithmeticError: no l2 today)" in line
        assert "--resume" in line
        assert "--on-failure note" in line
        assert out == ""
        kept = pages(tmp_path / "o")
        assert len(kept) >= 3  # all that was done under linf
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        assert inside("evaluate", "A", *QUICK, "--out", "o", "--quiet", "--resume") == 0
        assert inside("evaluate", "A", *QUICK, "--out", "whole", "--quiet") == 0
        one, two = (runs.Run.read(tmp_path / name).metrics for name in ("o", "whole"))
        assert without_time(one) == without_time(two)
        assert (one["failures"], one["at_most"]) == ([], [])

    @pytest.mark.usefixtures("no_l2")
    def test_or_stands_beside_every_number_it_concerns(self, tmp_path, capsys):
        assert inside("evaluate", "A", *QUICK, "--out", "o", "--quiet") == 1
        words = ("A", *QUICK, "--out", "o", "--on-failure", "note")
        assert inside("evaluate", *words, "--resume") == 1  # goes on from what was done
        out, err = capsys.readouterr()
        assert "note: l2 attack failed on 10 images: ArithmeticError: no l2 today" in err
        record = runs.Run.read(tmp_path / "o")
        metrics = record.metrics
        assert metrics["at_most"] == ["robust.l2", "union"]
        assert metrics["failures"][0] == {
            "threat": "l2",
            "attack": "attack-ce",
            "images": 10,
            "error": "ArithmeticError: no l2 today",
            "domain": "",
        }
        union = f"at most {metrics['union']:.1f}"
        accuracy = next(line for line in out.splitlines() if line.startswith(" accuracy")).strip()
        assert accuracy.split()[1] == f"{metrics['robust']['linf']:.1f}"
        assert accuracy.endswith(f"at most 100.0   {union}")
        assert "The model classifies at most " in out
        said = (
            f": {union} %, because not every attack could be run: l2 attack-ce failed on 10 images"
        )
        assert said in " ".join(out.split())
        text = (tmp_path / "o" / "report.html").read_text()
        assert f'<span class="figure">{union}&thinsp;%</span>' in text
        assert "upper bounds" in text[: text.index('id="radius"')]
        assert "<li>l2 attack failed on 10 images</li>" in text
        assert "at most 100.0 %" in text
        with (tmp_path / "o" / "table.csv").open() as file:
            states = {(r["threat"], r["attack"]): r["state"] for r in csv.DictReader(file)}
        assert states["l2", "attack"] == "failed"
        assert states["l2", "all"] == states["all", "all"] == "at most"
        assert states["linf", "all"] == ""
        assert "no l2 today" in (tmp_path / "o" / "table.md").read_text()
        assert record.command.endswith("--on-failure note --no-doctor")
        # Drawing it again keeps the words; a comparison does not crown it.
        assert inside("report", "o") == 0
        assert union in capsys.readouterr().out
        words = ("A", "--threat", "linf:0.5", "--threat", "l2:2.5", "--limit", 10, "--no-doctor")
        assert inside("evaluate", *words, "--out", "sound", "--quiet", "--on-failure", "note") == 1
        assert inside("report", "o", "sound", "--out", "both.html") == 0
        assert f"{union}\xa0%" in (tmp_path / "both.html").read_text()
        # Among equals it is last, and its number says what it is.
        assert inside("evaluate", "C", *QUICK, "--out", "p", "--quiet", "--on-failure", "note") == 1
        assert inside("report", "o", "p", "--out", "both.html") == 0
        page = (tmp_path / "both.html").read_text()
        assert "o (at most)" in page
        assert "comes first" not in page

    @pytest.mark.usefixtures("no_l2")
    def test_several_models_say_so_too(self, tmp_path, capsys):
        words = ("--models", "A,C", *THREATS, "--limit", 4, "--no-doctor", "--out", "o")
        assert inside("evaluate", *words) == 1
        assert "A l2 attack-ce failed on 4 images" in capsys.readouterr().err
        assert inside("evaluate", *words, "--resume", "--on-failure", "note") == 1
        out, _ = capsys.readouterr()
        metrics = runs.Run.read(tmp_path / "o").metrics
        assert {each["domain"] for each in metrics["failures"]} == {"A", "C"}
        assert metrics["at_most"] == ["robust.l2", "union"]  # all at once were attacked to the end
        line = next(line for line in out.splitlines() if "every one right" in line).strip()
        assert line.endswith(f"at most {metrics['union']:.1f}")

    @pytest.mark.usefixtures("no_l2")
    def test_other_threats_keep_their_numbers(self, tmp_path):
        words = ("A", *QUICK, "--out", "o", "--quiet", "--on-failure", "note")
        assert inside("evaluate", *words) == 1
        metrics = runs.Run.read(tmp_path / "o").metrics
        status = {
            (each["threat"], each["attack"]): each["status"]
            for each in metrics["domains"]["A"]["attacks"]
        }
        assert status["linf", "attack-ce"] == "complete"
        assert status["l2", "attack-ce"] == status["l2", "attack"] == "failed"
        assert metrics["robust"]["l2"] == metrics["clean"]
        assert "no l2 today" in (tmp_path / "o" / "report.html").read_text()


class TestMetrics:
    def test_by_hand(self):
        correct = torch.tensor([True, True, True, True, False])
        first = torch.tensor([True, True, False, False, False])
        second = torch.tensor([False, True, True, False, False])
        far = torch.full((5,), math.inf, dtype=torch.float64)
        near = torch.where(first, 0.1, far)
        outcomes = (
            evaluation.Outcome("linf", "pgd", correct, first, near, seconds=1.0, queries=50),
            evaluation.Outcome("linf", "square", correct, second, far),
            evaluation.Outcome("l2", "pgd", correct, ~correct & False, far),
        )
        balls = {"linf": sp.LpBall(math.inf, 0.3), "l2": sp.LpBall(2, 1.0)}
        metrics = evaluation_metrics(RobustAccuracy(balls, correct, outcomes), ["A"])
        assert (metrics.clean, metrics.union) == (80, 20)
        assert metrics.robust == {"linf": 20, "l2": 80}
        pgd, square, other = metrics.domains["A"].attacks
        assert (pgd.first, pgd.broken, pgd.accuracy, pgd.after) == (2, 2, 40, 40)
        assert (square.first, square.broken, square.accuracy, square.after) == (1, 2, 40, 20)
        assert (other.first, other.accuracy, other.after) == (0, 80, 80)
        low, high = evaluation.wilson(1, 5)
        assert metrics.intervals.union == (round(100 * low, 4), round(100 * high, 4))

    def test_domains(self, several):
        run, folder = several
        tensors = runs.read_results(folder)[1]
        metrics = run.metrics
        for name, part in metrics["domains"].items():
            assert part["union"] >= metrics["union"]
            assert tensors[f"domains/{name}/linf/distance"].shape == (run.rows,)
        radii = tensors["joint/linf/eps_min"]
        assert bool((radii[tensors["joint/linf/fooled"]] <= metrics["radii"]["linf"]).all())
        assert json.loads(run.to_json())  # infinity is not JSON
        assert "Infinity" not in run.to_json()

    def test_gallery_is_sorted_and_every_image_is_wrong(self, single):
        run, folder = single
        tensors = runs.read_results(folder)[1]
        for number in range(len(run.metrics["radii"])):
            own = tensors["gallery.threat"] == number
            distances = tensors["gallery.distance"][own]
            assert bool((distances[1:] >= distances[:-1]).all())
            rows = tensors["gallery.rows"][own]
            assert bool((tensors["gallery.says"][own][:, 0] != tensors["labels"][rows]).all())
        assert len(tensors["gallery.rows"]) > 0

    def test_nothing_broken_leaves_an_empty_gallery(self, tmp_path):
        run = make_evaluation(tmp_path, eps=1e-6)
        assert run.metrics["union"] == run.metrics["clean"]
        tensors = runs.read_results(tmp_path)[1]
        assert tensors["gallery.says"].shape == (0, 1)
        assert "broke an image" in (tmp_path / "report.html").read_text()

    def test_tensors_name_every_attack(self, single):
        run, folder = single
        names = set(runs.read_results(folder)[1])
        domain = f"domains/{run.domains[0]}"
        assert {"correct", "labels", f"{domain}/correct"} <= names
        assert {f"{domain}/linf/attack/broken", f"{domain}/l2/attack/attacked"} <= names


class TestPage:
    @pytest.mark.parametrize("name", ["single", "several"])
    def test_has_everything_and_needs_no_network(self, name, request):
        run, folder = request.getfixturevalue(name)
        text = (folder / "report.html").read_text()
        assert f"{run.metrics['union']:.1f}" in text
        for part in ("upper bound", "Attack by attack", "closest to the boundary", run.command):
            assert part in text
        assert ("The radius at which all fall at once" in text) == (name == "several")
        for tag, attributes in Elements(text).tags:
            for key in ("src", "href", "action", "srcset"):
                value = attributes.get(key)
                assert value is None or value.startswith(("data:image/png;base64,", "#")), tag
        assert "nan" not in re.sub(r"base64,[^\"]*", "", text).lower().replace("dominan", "")

    @pytest.mark.parametrize("domains", [1, 3])
    def test_hostile_names_stay_text(self, tmp_path, domains):
        names = HOSTILE[:domains]
        make_evaluation(tmp_path, domains=domains, names=names, classes=HOSTILE, data=HOSTILE[0])
        text = (tmp_path / "report.html").read_text()
        found = Elements(text).tags
        assert len([tag for tag, _ in found if tag == "script"]) == 1
        assert not [a for _, a in found if any(key.startswith("on") for key in a)]
        assert "window.pwned = 1</script>" not in text
        assert "49<b>" not in text

    def test_size_is_bounded(self, tmp_path):
        make_evaluation(tmp_path, channels=3, size=64, rows=30)
        path = report.write_report(tmp_path, max_bytes=200_000)
        assert path.stat().st_size <= 200_000
        assert path.read_text().count('class="sheet"') > 1

    def test_says_when_the_curve_is_a_loose_bound(self, single):
        _, folder = single
        assert "A loose bound below the radius" in (folder / "report.html").read_text()

    def test_unfinished_evaluation_is_refused(self, single, tmp_path):
        run, _ = single
        run.but(status="running").write(tmp_path)
        with pytest.raises(ValueError, match="--resume"):
            report.write_report(tmp_path)


class TestCharts:
    def test_the_curve_steps_where_the_distances_are(self):
        distances = torch.tensor([0.0, 0.1, 0.2, math.inf])
        chart = str(charts.survival_chart([distances], ["A"], 0.3, 0.4, False))
        path = re.search(r'<path class="line d0" d="([^"]+)"', chart).group(1)
        steps = re.findall(r"H([\d.]+)V([\d.]+)", path)
        width = 440 - 40 - 12
        assert [float(x) for x, _ in steps] == pytest.approx(
            [40 + width * 0.25, 40 + width * 0.5], abs=1.5
        )
        top, bottom = 12, 260 - 40
        heights = [(bottom - float(y)) / (bottom - top) for _, y in steps]
        assert heights == pytest.approx([0.5, 0.25], abs=0.01)

    def test_names_are_escaped(self):
        rows = [(HOSTILE[0], [("bar d0", HOSTILE[1], 2), ("right", "still right", 3)])]
        for chart in (
            charts.share_bars(rows, ["60 %"]),
            charts.survival_chart([torch.rand(4)], [HOSTILE[0]], 0.3, 0.4, True),
        ):
            assert "<script" not in chart
            assert "<img" not in chart
