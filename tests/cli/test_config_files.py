"""`--config` and `--print-config` of evaluations and trainings: a file repeats a run, and flags override it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from commands import inside

LINES = {
    "evaluate": "evaluate C --threat linf:0.1/2 --threat l2:1 --limit 2 --seed 3 --no-doctor --quiet",
    "train": "train --data mnist-sample --model C --threat linf:0.1 --limit 10 --epochs 1 --steps 1 --mix 0.5 "
    "--test-steps 1 --test-images 4 --test-restarts 1 --quiet",
}


def printed(*words: object, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert inside(*words, "--print-config") == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", LINES)
def test_the_printed_settings_repeat_the_run(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = LINES[command].split()
    file = tmp_path / "mine.yaml"
    file.write_text(printed(*words, capsys=capsys))
    assert printed(command, "--config", file, capsys=capsys) == file.read_text()
    other = yaml.safe_load(printed(command, "--config", file, "--seed", 7, capsys=capsys))
    assert other == {**yaml.safe_load(file.read_text()), "seed": 7}
    assert inside(*words, "--out", tmp_path / "run") == 0
    more = ("--no-doctor",) if command == "evaluate" else ()
    again = (command, "--config", file, *more, "--out", tmp_path / "run", "--resume")
    assert inside(*again) == 0  # the same settings, or it would be refused
    assert "is complete already" in capsys.readouterr().err


@pytest.mark.parametrize("command", LINES)
def test_a_file_of_an_attack_is_refused_with_its_command(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text("kind: ensemble\nmodels: [A]\n")
    assert inside(command, "--config", tmp_path / "a.yaml") == 2
    assert f"must be for {command}, got one for ensemble" in (said := capsys.readouterr().err)
    assert "use `saddlepoint attack ensemble`" in said


@pytest.mark.parametrize("command", LINES)
def test_broken_yaml_is_told_with_its_line(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("yml").write_text("models: [A\nlimit: 3\n")
    assert inside(command, "--config", "yml") == 2
    assert "YAML, got line 2: expected ',' or ']'" in (said := capsys.readouterr().err)
    assert "did you mean" not in said


@pytest.mark.parametrize(
    ("command", "name"), [("evaluate", "models"), ("train", "model"), ("train", "test_data")]
)
def test_code_in_a_file_needs_trust(
    command: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = LINES[command].replace(" C ", " ").replace("--model ", "").split()
    values = {"model": "C"} if command == "train" else {}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({**values, name: "nets.py:factory"}))
    more = ("--config", tmp_path / "a.yaml", "--print-config")
    assert inside(*words, *more) == 2
    said = capsys.readouterr().err
    assert "`--trust` must be given" in said
    assert f"name it with --{name.replace('_', '-')}, or" in said
    assert inside(*words, *more, "--trust") == 0
