"""Settings nobody means: truth values for numbers, keys and options given twice, texts without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import inside
from saddlepoint.runs import rule_words
from saddlepoint.runs.settings import (
    EnsembleSettings,
    EvaluateSettings,
    TrainSettings,
    TransformSettings,
    UniversalSettings,
)

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 9)
)


def refusal(tmp_path: Path, text: str, kind: type = EnsembleSettings) -> str:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match="must") as error:
        kind.load({}, file)
    assert len(str(error.value)) < 500 + len(str(file))
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "flag", "kind"),
    [
        ("models: A\nlimit: true", "--limit", EnsembleSettings),
        ("models: A\nseed: false", "--seed", EnsembleSettings),
        ("models: A\neps: true", "--eps", EnsembleSettings),
        ("models: A\nstep_size: yes\nmethod: apgda", "--step-size", EnsembleSettings),
        ("models: A\nclasses: no", "--classes", EnsembleSettings),
        ("models: A\ngroup_size: on", "--group-size", UniversalSettings),
        ("models: A\nthreat: ['linf:0.1']\nbudget: true", "--budget", EvaluateSettings),
    ],
)
def test_truth_values_are_no_numbers(tmp_path: Path, text: str, flag: str, kind: type) -> None:
    message = refusal(tmp_path, text, kind)
    assert message.startswith(f"`{flag}` must not be true or false")
    assert "settings.yaml" in message


@pytest.mark.parametrize("value", ["1", "0", "0.0", "'true'", "[]"])
def test_numbers_and_words_are_no_truth_values(tmp_path: Path, value: str) -> None:
    message = refusal(tmp_path, f"models: A\nby_class: {value}", UniversalSettings)
    assert message.startswith("`--by-class` must be true or false, got ")


def test_a_key_that_comes_twice_is_named_with_its_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, "models: A\neps: 0.1\nsteps: 3\neps: 0.3\n")
    assert "eps" in message
    assert "line 4" in message
    assert "twice" in message


@pytest.mark.parametrize(
    "line", ["eps: *a8", "models: *a8", "data: *a8", "kind: *a8", "nonsense: 1"]
)
def test_lists_of_lists_are_refused_in_a_short_sentence(tmp_path: Path, line: str) -> None:
    message = refusal(tmp_path, f"{BOMB}{line}\n")
    assert "must" in message


@pytest.mark.parametrize(
    "name",
    ["data", "models", "norm", "eps", "rule", "baseline", "loss", "limit", "kind", "x" * 9999],
)
@pytest.mark.parametrize(
    "value", ["9" * 9999 + "x", "[" + "ab, " * 5000 + "]"], ids=["text", "list"]
)
def test_no_message_quotes_more_than_a_hundred_characters(
    tmp_path: Path, name: str, value: str
) -> None:
    given = {"models": "A", "eps": "-1", name: value}
    refusal(tmp_path, "".join(f"? {key}\n: {each}\n" for key, each in given.items()))


@pytest.mark.parametrize("kind", [EvaluateSettings, TrainSettings, TransformSettings])
@pytest.mark.parametrize("name", ["threat", "budget", "transforms", "method", "rule"])
def test_nor_do_those_of_other_settings(kind: type, name: str) -> None:
    given = {"models": "A", "model": "A", "data": "mnist", "threat": ["linf:0.1"], "eps": 0.1}
    known = {key: value for key, value in given.items() if key in kind.model_fields}
    with pytest.raises(ValueError, match="must") as error:
        kind.load({**known, name: ["z" * 9999] if name in ("threat", "transforms") else "z" * 9999})
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("text", ["minmax:gamma=1,gamma=2", "entropic:step_size=1,step_size=1"])
def test_an_option_of_a_rule_that_comes_twice_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"`rule` (minmax|entropic) must have every option once, got"
    ):
        rule_words.rule(text)
    with pytest.raises(ValueError, match="every option once"):
        EnsembleSettings(models=["A"], rule=text)


@pytest.mark.parametrize("flag", ["--rule", "--baseline"])
@pytest.mark.parametrize(
    "words",
    [
        ("ensemble", "--models", "A,C"),
        ("universal", "--models", "A", "--group-size", "4"),
        ("transform", "--models", "A,C", "--transforms", "identity,hflip"),
    ],
)
def test_fixed_weights_of_another_number_are_refused_before_the_run(
    words: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["attack", *words, "--eps", "0.1", flag, "fixed:0.2,0.3,0.5", "--print-config"]
    assert inside(*line) == 2
    said = capsys.readouterr()
    assert said.out == ""
    count = 2 if words[0] == "ensemble" else 4
    assert f"`{flag}` must have one entry per domain, K = {count}, got 3" in said.err


def test_fixed_weights_of_the_right_number_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["attack", "transform", "--models", "A", "--eps", "0.1", "--rule", "fixed:0.5,0.5"]
    assert inside(*line, "--transforms", "identity,hflip", "--print-config") == 0
    assert "rule: fixed:0.5,0.5" in capsys.readouterr().out


@pytest.mark.parametrize("rule", ["nonsense", "minmax:gamma=1,gamma=2", "fixed:0.2,0.3,0.5"])
def test_the_rule_of_a_training_is_checked_with_its_settings(rule: str) -> None:
    with pytest.raises(ValueError, match="rule"):
        TrainSettings.load(
            {"data": "mnist", "model": "A", "threat": ["linf:0.3", "l2:2"], "rule": rule}
        )
