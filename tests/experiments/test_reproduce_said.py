"""What `saddlepoint reproduce` says before it works: networks of a folder, minutes, markers, settings."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from test_stored_results import pair

from commands import inside
from saddlepoint import experiments
from saddlepoint.experiments import costs
from saddlepoint.models import loading
from saddlepoint.report.tables import Column, Table

EXPERIMENTS = experiments.EXPERIMENTS
MEASURING = "ensemble-mnist: measuring networks for a moment\n"


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two short experiments, one on MNIST and one on CIFAR-10."""
    found = {f"ensemble-{data}": pair(data, limit=2, steps=1) for data in ("mnist", "cifar10")}
    monkeypatch.setattr(experiments, "EXPERIMENTS", found)
    monkeypatch.setattr(experiments, "find", found.__getitem__)


def network_c(folder: Path) -> Path:
    """A folder with parameters of network C on MNIST."""
    folder.mkdir()
    for name in ("mnist-c.json", "mnist-c.safetensors"):
        (folder / name).write_bytes((loading._folder() / name).read_bytes())
    return folder


# ------------------------------------------------------------------------------- --parameters


@pytest.mark.parametrize(
    ("files", "got"),
    [
        ((), "which is empty"),
        (("model.safetensors", "model.json"), "which has model.json, model.safetensors;"),
        (("mnist-b.safetensors",), "which has mnist-b.safetensors;"),  # not attacked here
        (("mnist-c.json",), "which has mnist-c.json;"),
        (tuple("abcdefg"), "which has a, b, c, d, e and 2 more;"),
    ],
)
@pytest.mark.parametrize("words", [(), ("--list",)])
@pytest.mark.usefixtures("two")
def test_a_folder_without_a_network_of_the_experiment_is_refused(
    words: tuple[str, ...],
    files: tuple[str, ...],
    got: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in files:
        (own / name).write_bytes(b"")
    asked = ("--parameters", own, "--out", tmp_path / "runs", *words)
    assert inside("reproduce", "ensemble-mnist", *asked) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`--parameters` must be a folder with NAME.safetensors and NAME.json" in line
    assert "one of mnist-a, mnist-c, such as mnist-a.safetensors and mnist-a.json, got" in line
    assert got in line
    assert "copy model.safetensors and model.json of a training" in line
    assert "did you mean" not in line
    assert not (tmp_path / "runs").exists()
    everything = (() if words else ("all",)) + asked
    assert inside("reproduce", *everything) == 2
    assert "one of mnist-a, mnist-c, cifar10-a, cifar10-c" in capsys.readouterr().err


@pytest.mark.usefixtures("two")
def test_networks_that_go_before_the_shipped_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = network_c(tmp_path / "own")
    told = f"networks from {own}: mnist-c\n"
    words = ("reproduce", "ensemble-mnist", "--parameters", own, "--out")
    assert inside(*words, tmp_path / "a") == 0
    assert capsys.readouterr().err.startswith(told)
    assert inside(*words, tmp_path / "b", "--quiet") == 0
    assert capsys.readouterr().err == ""
    # One that fits one of all experiments is taken.
    assert inside("reproduce", "all", "--parameters", own, "--out", tmp_path / "c") == 0
    assert capsys.readouterr().err.startswith(told)
    places = {path.name for path in (tmp_path / "c").iterdir()}
    assert places == {"ensemble-mnist", "ensemble-cifar10"}


def test_the_settings_that_are_asked_for_decide_whether_a_folder_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cifar10-a.safetensors").write_bytes(b"")
    words = ("reproduce", "transform", "--only", "D", "--parameters", tmp_path)
    assert inside(*words, "--out", tmp_path / "unused") == 2
    assert "one of cifar10-d, such as cifar10-d.safetensors" in capsys.readouterr().err


def test_the_help_says_which_names_files_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert inside("reproduce", "--help") == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "NAME is that of the network, such as mnist-c" in said
    assert "go before shipped ones" in said
    assert "<!-- table: ensemble-mnist -->" in said
    assert "<!-- end -->" in said


# ------------------------------------------------------------------------------- --list


def listed(
    capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[str, dict[str, tuple[float, float]], str]:
    """The first line of a list, minutes and those of all images by name, and everything."""
    assert inside("reproduce", "--list", "--quiet", *words) == 0
    said = capsys.readouterr().out
    first, _, *lines = said.splitlines()
    found = {}
    for line in lines:
        name, *rest = line.split()
        figures = [word for word in rest[:3] if word.replace(".", "").isdigit()][-2:]
        if len(figures) == 2:
            found[name] = (float(figures[0]), float(figures[1]))
    return first, found, said


@pytest.fixture
def millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network takes a millisecond for an image."""
    monkeypatch.setattr(costs, "seconds_per_gradient", lambda *_: 1e-3)


@pytest.mark.usefixtures("millisecond")
def test_the_list_has_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    _, found, _ = listed(capsys)
    told = found.pop("total")
    assert len(found) == len(EXPERIMENTS)
    for k in range(2):
        assert told[k] == pytest.approx(sum(value[k] for value in found.values()), rel=0.01)
    _, found, _ = listed(capsys, "ensemble-mnist")
    assert list(found) == ["ensemble-mnist"]
    _, found, _ = listed(capsys, "all")
    assert len(found) == len(EXPERIMENTS) + 1


@pytest.mark.usefixtures("millisecond")
def test_the_list_counts_what_is_asked_for_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    # 4 balls x 2 strategies x 10,000 images x 51 steps x 4 networks x 1 ms, and 3 s for each of 8 rows
    attack, rows = 272.0, 0.4

    def full(*words: object) -> tuple[str, float]:
        first, found, _ = listed(capsys, "ensemble-mnist", *words)
        return first, found["ensemble-mnist"][1]

    first, minutes = full()
    assert minutes == pytest.approx(attack + rows, rel=0.01)
    assert first.startswith("minutes on this machine for apgda with true labels: default number")
    first, minutes = full("--method", "attack-5")
    assert minutes == pytest.approx(5 * attack + rows, rel=0.01)
    assert "minutes on this machine, at most, for attack-5 with true labels" in first
    first, minutes = full("--method", "all", "--labels", "both")
    assert minutes == pytest.approx(2 * (7 * attack + 3 * rows), rel=0.01)
    assert "at most, for apgda, attack and attack-5 with true and predicted labels" in first
    first, minutes = full("--labels", "predicted")
    assert minutes == pytest.approx(attack + rows, rel=0.01)
    assert "minutes on this machine for apgda with predicted labels" in first
    first, minutes = full("--method", "both", "--jobs", 4)
    assert minutes == pytest.approx((attack + rows) / 2, rel=0.01)
    assert "shared by 4 processes" in first
    first, minutes = full("--precision", "bfloat16")
    assert minutes == pytest.approx(attack + rows, rel=0.01)
    assert "in float32 (--precision bfloat16 is not counted)" in first
    first, minutes = full("--only", "l2, eps 3", "--full")
    assert minutes == pytest.approx((attack + rows) / 4, rel=0.01)


@pytest.mark.usefixtures("millisecond")
def test_the_list_leaves_out_what_all_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    _, found, said = listed(capsys, "--method", "attack", "--labels", "predicted")
    assert "convergence" not in found
    assert "  not run: it is about apgda with true labels\n" in said
    # Times are measured by one process, whatever others there are.
    (_, one, _), (_, four, _) = (listed(capsys, "cost", *more) for more in ((), ("--jobs", 4)))
    assert one == four
    assert inside("reproduce", "--list", "--only", "A") == 2
    assert "`--only` must be left out with all" in capsys.readouterr().err


def test_networks_are_timed_by_the_processor_where_one_thread_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What else the machine does makes the time on the wall longer, and no attack."""
    hours = iter(range(0, 10**9, 3600))
    measure = costs.seconds_per_gradient.__wrapped__
    for clock, threads in (("perf_counter", 1), ("process_time", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(time, clock, lambda: next(hours))
            assert 0 < measure("mnist", "A", threads) < 1
    assert torch.get_num_threads() == 1  # as before


def test_each_of_several_processes_is_timed_with_its_threads(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = list[tuple[object, ...]]()

    def seconds(*words: object) -> float:
        asked.append(words)
        return 1e-3

    monkeypatch.setattr(costs, "seconds_per_gradient", seconds)
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for jobs, threads in ((1, torch.get_num_threads()), (4, 3), (50, 1)):
        first, _, _ = listed(capsys, "ensemble-mnist", "--jobs", jobs)
        assert {each[2] for each in asked} == {threads}
        by = "by the processor's clock, with one thread: longer where others use it"
        if threads == 3:
            by = "by the clock, with 3 threads, beside what else is running"
        assert first.endswith(f"; networks timed {by}")
        asked.clear()


# ------------------------------------------------------------------------------- before a run


@pytest.mark.usefixtures("two")
def test_a_run_says_that_it_measures_networks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("reproduce", "ensemble-mnist", "--out", tmp_path / "a")
    assert inside(*words) == 0
    assert capsys.readouterr().err.startswith(MEASURING)
    assert inside(*words, "--resume") == 0  # nothing is left to run
    assert "measuring" not in capsys.readouterr().err
    assert inside("reproduce", "ensemble-mnist", "--out", tmp_path / "b", "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("millisecond")
def test_what_is_only_measured_is_counted_and_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table("nothing", (Column("Network"),), ())
    monkeypatch.setattr(experiments, "reproduce", lambda *_, **__: None)
    monkeypatch.setattr(experiments, "publish", lambda *_, **__: ([table], []))
    assert inside("reproduce", "convergence", "--limit", 100, "--out", tmp_path) == 0
    # 4 settings x 401 steps x (100 images x 3 networks x 1 ms + 5 ms)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "convergence: measuring networks for a moment"
    assert lines[0] == "convergence: about 8.2 minutes"
    assert lines[1].startswith("convergence: forecast 8.2 min, took 0 s")
    assert inside("reproduce", "convergence", "--out", tmp_path, "--quiet") == 0
    assert capsys.readouterr().err == ""


# ------------------------------------------------------------------------------- --summary


@pytest.mark.parametrize(
    "text", ["# Mine\n", "", "<!-- table of contents -->\n", "About `<!-- claims -->`.\n"]
)
def test_a_document_without_a_marker_is_refused_with_an_example(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "mine.md"
    for place in (document, tmp_path):
        document.write_text(text)
        assert inside("reproduce", "--summary", place) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "`--summary` must be" in line
        assert "`<!-- table: ensemble-mnist -->` and, below it, `<!-- end -->`" in line
        assert f"got `{place}` without any" in line
        assert document.read_text() == text
    (tmp_path / "other.md").write_text("<!-- table: patches -->\nof others\n<!-- end -->\n")
    assert inside("reproduce", "--summary", tmp_path) == 0  # it is passed over beside others
    assert document.read_text() == text


def test_a_folder_without_documents_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside("reproduce", "--summary", tmp_path) == 2
    assert f"got `{tmp_path}` without any" in capsys.readouterr().err


# ------------------------------------------------------------------------------- --only


def test_networks_that_no_chosen_setting_has_are_not_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("reproduce", "networks", "--limit", 2, "--only")
    assert inside(*words, "mnist-a", "--out", tmp_path / "a") == 0
    assert "no parameters" not in capsys.readouterr().out
    assert "no parameters" not in (tmp_path / "a" / "table.md").read_text()
    assert inside(*words, "cifar10-g", "--out", tmp_path / "g") == 2
    assert "no parameters for cifar10-g" in capsys.readouterr().err


@pytest.mark.parametrize("words", [(), ("--list",)])
@pytest.mark.parametrize(
    ("name", "asked", "meant"),
    [
        ("universal-mnist", "D, K = 2", '"D, eps 0.25, K = 2"'),
        ("ensemble-mnist", "L2 eps 3", '"l2, eps 3"'),
        ("transform", "c", '"C"'),
        ("image-robustness", "entirely different", ""),
    ],
)
def test_a_setting_that_is_not_there_is_told_the_nearest_ones_first(
    name: str,
    asked: str,
    meant: str,
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert inside("reproduce", name, "--only", asked, "--out", tmp_path / "r", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"saddlepoint: `--only` must be a setting of {name}")
    assert f"got {asked!r}" in line
    assert all(block.label in line for block in EXPERIMENTS[name].blocks)
    assert line.count("did you mean") == bool(meant)
    if meant:
        assert line.partition("did you mean ")[2].startswith(meant)
        assert line.index("did you mean") < line.index(EXPERIMENTS[name].blocks[0].label)
