"""Settings: from flags and files, with the paper's numbers, to YAML and to the line that repeats a run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
import yaml

import saddlepoint as sp
from commands import QUICK, inside
from saddlepoint import cli, runs
from saddlepoint.runs import rule_words, texts
from saddlepoint.runs.settings import (
    ATTACKS,
    AttackSettings,
    EvaluateSettings,
    Settings,
    TrainSettings,
)

pytestmark = pytest.mark.usefixtures("elsewhere")


def load(kind: str, flags: dict[str, object], file: Path | None) -> AttackSettings:
    return ATTACKS[kind].load(flags, file)


class TestConfig:
    def test_printed_config_reproduces_the_run(self, tmp_path, capsys):
        flags = (*QUICK, "--rule", "minmax:gamma=5", "--baseline", "average", "--eps", "51/255")
        assert inside("attack", "ensemble", *flags, "--print-config") == 0
        (tmp_path / "c.yaml").write_text(capsys.readouterr().out)
        assert inside("attack", "ensemble", *flags, "--out", "one", "--quiet") == 0
        assert inside("attack", "ensemble", "--config", "c.yaml", "--out", "two", "--quiet") == 0
        one, two = (runs.Run.read(tmp_path / name) for name in ("one", "two"))
        assert one.metrics == two.metrics
        assert one.hashes == two.hashes

    def test_flags_override_the_file(self, tmp_path):
        (tmp_path / "c.yaml").write_text("models: [A]\neps: 8/255\nsteps: 7\n")
        settings = load("ensemble", {"steps": 9, "limit": None}, tmp_path / "c.yaml")
        assert (settings.eps, settings.steps, settings.limit) == (8 / 255, 9, None)

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("", "nothing"),
            ("- A\n- B\n", "a list"),
            ("A", "text"),
            ("3", "3 alone"),
            ("3: A", "the name 3"),
        ],
    )
    def test_a_file_without_settings_is_told_by_what_is_in_it(self, tmp_path, text, found):
        (tmp_path / "c.yaml").write_text(text)
        told = rf"`--config` '.*c.yaml' must hold settings as `name: value`, got {found}\.$"
        with pytest.raises(ValueError, match=told):
            load("ensemble", {}, tmp_path / "c.yaml")

    def printed(self, tmp_path, kind="ensemble", **flags):
        (tmp_path / "c.yaml").write_text(load(kind, flags, None).to_yaml())
        return tmp_path / "c.yaml"

    def test_a_radius_is_not_taken_for_another_norm_or_data(self, tmp_path):
        file = self.printed(tmp_path, models="A,C", method="apgda")
        with pytest.raises(ValueError, match=r"`--eps` .* --norm l2: the 0.2 in .* is for linf"):
            load("ensemble", {"norm": "l2"}, file)
        with pytest.raises(ValueError, match=r"--data cifar10-sample: the 0.2 in .* mnist-sample"):
            load("ensemble", {"data": "cifar10-sample"}, file)
        assert load("ensemble", {"data": "mnist", "limit": 3}, file).eps == 0.2
        file = self.printed(tmp_path, "universal", models="A")
        with pytest.raises(ValueError, match=r"`--eps` must be given with --models C: .* for A"):
            load("universal", {"models": "C"}, file)
        # A radius of one's own is kept for other data, where it means the same.
        file = self.printed(tmp_path, models="A,C", eps=0.15)
        assert load("ensemble", {"data": "cifar10-sample"}, file).eps == 0.15

    def test_numbers_of_the_paper_are_found_anew(self, tmp_path):
        file = self.printed(tmp_path, models="A,C", method="apgda", baseline="average")
        settings = load("ensemble", {"norm": "l2", "eps": 3}, file)
        flags = {"models": "A,C", "method": "apgda", "norm": "l2", "baseline": "average"}
        assert settings == load("ensemble", flags, None)
        assert settings.rule != load("ensemble", {}, file).rule
        mine = self.printed(tmp_path, models="A,C", method="apgda", rule="minmax:gamma=9")
        assert "gamma=9" in load("ensemble", {"norm": "l2", "eps": 3}, mine).rule

    def test_a_printed_config_of_apgda_serves_attack(self, tmp_path, capsys):
        file = self.printed(tmp_path, models="A,C", method="apgda")
        settings = load("ensemble", {"method": "attack"}, file)
        assert settings == load("ensemble", {"models": "A,C"}, None)
        own = self.printed(tmp_path, models="A,C", method="apgda", step_size=0.7)
        assert (
            inside("attack", "ensemble", "--config", own, "--method=attack", "--print-config") == 0
        )
        out, err = capsys.readouterr()
        assert yaml.safe_load(out)["step_size"] is None
        assert "step_size of" in err

    def test_command_repeats_the_settings(self):
        flags = {"models": "A,C", "rule": "fixed:0.2,0.8", "group_size": 2, "by_class": True}
        settings = load("universal", {**flags, "models": "A"}, None)
        words = settings.command().split()
        assert words[:3] == ["saddlepoint", "attack", "universal"]
        assert words[words.index("--group-size") + 1] == "2"
        assert "--by-class" in words
        assert "--steps" not in words
        settings = load("ensemble", {"models": "A", "eps": "8/255"}, None)
        assert "--eps 8/255 " in settings.command()

    @pytest.mark.parametrize(
        ("kind", "flags", "eps"),
        [
            ("ensemble", {"norm": "l2"}, 3.0),
            ("ensemble", {"norm": "L2"}, 3.0),
            ("ensemble", {"norm": "Linf", "data": "cifar10"}, 0.05),
            ("ensemble", {"norm": "l1", "data": "cifar10-sample"}, 30.0),
            ("ensemble", {"models": "A,E,F,H", "data": "cifar10-sample"}, 0.03),
            ("universal", {"models": "mnist-c"}, 0.3),
            ("transform", {"data": "cifar10-sample"}, 0.03),
        ],
    )
    def test_the_radius_is_the_papers_for_kind_data_and_norm(self, kind, flags, eps):
        assert load(kind, {"models": "A", **flags}, None).eps == eps

    @pytest.mark.parametrize(
        ("kind", "flags"),
        [
            ("ensemble", {"data": "fashion-mnist"}),
            ("universal", {"norm": "l2"}),
            ("universal", {"models": "pkg:net"}),
            ("transform", {"data": "mnist-sample"}),
        ],
    )
    def test_without_a_radius_of_the_paper_one_must_be_given(self, kind, flags):
        with pytest.raises(ValueError, match=r"`--eps` must be given.* the paper has none"):
            load(kind, {"models": "A", **flags}, None)

    @pytest.mark.parametrize(
        ("kind", "flags", "step_size", "rule"),
        [
            ("ensemble", {}, 1 / 4, sp.MinMax(1 / 50, 3)),
            ("ensemble", {"norm": "l2"}, 1 / 10, sp.MinMax(1 / 100, 3)),
            ("ensemble", {"data": "cifar10"}, 1 / 5, sp.MinMax(1 / 50, 6)),
            ("ensemble", {"data": "cifar10", "norm": "l2"}, 1 / 8, sp.MinMax(1 / 100, 3)),
            ("ensemble", {"data": "cifar10", "norm": "l0"}, 1.0, sp.MinMax(1 / 150, 1)),
            ("ensemble", {"rule": "minmax:gamma=5"}, 1 / 4, sp.MinMax(1 / 50, 5)),
            ("ensemble", {"rule": "average"}, 1 / 4, sp.Average()),
            ("ensemble", {"step_size": "1/3"}, 1 / 3, sp.MinMax(1 / 50, 3)),
            ("universal", {}, 1 / 6, sp.MinMax(1 / 50, 4)),
            ("transform", {"data": "cifar10"}, 1 / 2, sp.MinMax(1 / 100, 10)),
        ],
    )
    def test_apgda_takes_the_papers_numbers_and_shows_them(
        self, kind, flags, step_size, rule, monkeypatch
    ):
        flags = {"models": "A", "method": "apgda", "baseline": "minmax", **flags}
        settings = load(kind, flags, None)
        assert settings.step_size == step_size
        assert rule_words.rule(settings.rule) == rule
        shown = yaml.safe_load(settings.to_yaml())
        assert (shown["step_size"], rule_words.rule(shown["rule"])) == (step_size, rule)
        (again,) = parsed(settings.command(), monkeypatch)
        assert again == settings

    def test_data_of_which_the_paper_knows_nothing(self):
        own = {"models": "pkg:net", "data": "fashion-mnist", "eps": 0.1, "method": "apgda"}
        with pytest.raises(ValueError, match="`--step-size` must be given"):
            load("ensemble", own, None)
        settings = load("ensemble", {**own, "step_size": 0.5}, None)
        assert (
            rule_words.rule(settings.rule) == sp.MinMax()
        )  # written out, so that nobody has to guess
        assert settings.rule == "minmax:gamma=0.3,step_size=auto"

    def test_attack_shows_the_numbers_of_the_library(self):
        settings = load("ensemble", {"models": "A", "data": "cifar10"}, None)
        assert (settings.rule, settings.step_size) == ("minmax:gamma=0.3,step_size=auto", None)

    def test_yaml_round_trip(self):
        settings = load(
            "transform", {"models": "A", "eps": 0.2, "transforms": "identity,rotate:30"}, None
        )
        again = ATTACKS["transform"](**yaml.safe_load(settings.to_yaml()))
        assert again == settings


def parsed(line: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The settings that a command line ends up with, in this process; nothing runs."""
    seen: list[object] = []

    class StopError(Exception):
        pass

    def load(cls, *args: object, **options: object) -> None:
        seen.append(original(cls, *args, **options))
        raise StopError

    original = Settings.load.__func__
    monkeypatch.setattr(Settings, "load", classmethod(load))
    monkeypatch.setattr("saddlepoint.runs.model_words.check_there", lambda words: None)
    with pytest.raises(StopError):
        cli.app(shlex.split(line)[1:], exit_on_error=False, result_action="return_value")
    return seen


REPEATED = [
    (ATTACKS["ensemble"], {"models": "A,C", "eps": "8/255", "rule": "minmax:gamma=4"}),
    (ATTACKS["ensemble"], {"models": "A", "method": "apgda", "norm": "l0", "data": "cifar10"}),
    (
        ATTACKS["ensemble"],
        {
            **{"models": "my.nets:big,w.safetensors:A", "data": "my photos/", "classes": "a b,c"},
            **{"size": 32, "eps": 1 / 3, "rule": "fixed:1/3,2/3", "baseline": "worst"},
            **{"loss": "clipped:-10", "labels": "predicted", "steps": 7, "restarts": 3},
            **{"quantize": 256, "split": "train", "limit": 9, "batch_size": 5, "seed": 4},
            **{"device": "cuda:1", "mean": "0.5,0.4,0.3", "std": "0.2"},
        },
    ),
    (ATTACKS["universal"], {"models": "A", "group_size": 4, "by_class": True, "box": "clip"}),
    (
        ATTACKS["transform"],
        {"models": "A,C", "eps": 0.1, "transforms": "identity,rotate:30", "samples": 2},
    ),
    (ATTACKS["patch"], {"models": "A,C"}),
    (
        ATTACKS["patch"],
        {
            **{"models": "A", "patch": "mask.png", "views": "here,anywhere+rotate:-30..30"},
            **{"over": "image+view", "images_per_patch": 7, "held_out": 9, "samples": 2},
            **{"eps": "16/255", "targeted": "cat", "batch_size": 2, "seed": 3},
        },
    ),
    (EvaluateSettings, {"models": "A", "threat": ["linf:8/255"]}),
    (
        EvaluateSettings,
        {
            **{"models": "A,C", "threat": ["linf:0.3", "l2:2"], "suite": "paper", "budget": "5m"},
            **{"transforms": "identity,hflip", "every_attack": True, "limit": 7, "seed": 3},
            **{"data": "a folder", "classes": "x,y", "size": 28, "split": "train"},
            **{"batch_size": 16, "device": "mps", "mean": "imagenet"},
        },
    ),
    (TrainSettings, {"data": "mnist", "model": "A"}),
    (
        TrainSettings,
        {
            **{"data": "mnist", "model": "mnist_cnn", "threat": ["linf:0.3", "l2:2.0:0.2"]},
            **{"method": "msd", "recipe": "paper", "epochs": 3, "steps": 4, "mix": 0.5},
            **{"rule": "minmax:gamma=2", "start": "random", "ramp": 1.5, "held_out": 10},
            **{"seed": 9, "limit": 100},
        },
    ),
]


@pytest.mark.parametrize(("kind", "flags"), REPEATED)
def test_the_line_that_repeats_a_run_is_parsed_to_the_same_settings(kind, flags, monkeypatch):
    settings = kind.load(flags)
    line = settings.command()
    assert line.startswith(f"saddlepoint {' '.join(kind.words)} ")
    (again,) = parsed(line, monkeypatch)
    assert again == settings
    assert type(again) is kind


class TestParsing:
    @pytest.mark.parametrize(("text", "value"), [("8/255", 8 / 255), ("1e-2", 0.01), (" 3 ", 3.0)])
    def test_numbers(self, text, value):
        assert texts.number(text) == value

    def test_rules(self):
        assert rule_words.rule("minmax") == sp.MinMax()
        assert rule_words.rule("entropic:step_size=1/10") == sp.Entropic(0.1)
        assert rule_words.rule("fixed:0.2,0.1,0.4,0.3") == sp.Fixed((0.2, 0.1, 0.4, 0.3))
        assert rule_words.rule("worst") == sp.WorstCase()

    def test_losses(self):
        logits, labels = torch.tensor([[90.0, 0.0], [0.0, 90.0], [0.0, 4.0]]), torch.zeros(3).long()
        assert texts.loss("clipped:-10")(logits, labels).tolist() == [90, -10, -4]
        with pytest.raises(ValueError, match="`loss`"):
            texts.loss("clipped")
        assert texts.loss("cw") is sp.cw_margin
        assert texts.loss("cross-entropy") is sp.neg_cross_entropy

    def test_families(self):
        names = [t.name for t in texts.transforms(["paper"])]
        assert names == [t.name for t in sp.transforms.paper_family()]
