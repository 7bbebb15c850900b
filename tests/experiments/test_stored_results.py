"""Labels, weights found from other rows, stored summaries, and the tables of docs/RESULTS.md."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import saddlepoint as sp
from commands import inside
from folders import ROOT
from run_factory import make_run
from saddlepoint import experiments
from saddlepoint.experiments import block_parts
from saddlepoint.experiments.document import overview
from saddlepoint.experiments.plan import Experiment, Ordered, Row, Strategy
from saddlepoint.experiments.summary import found_weights, tables_of
from saddlepoint.problems import AbstractProblem
from saddlepoint.runs import build, hash_model, locked, rows, rule_words, texts
from saddlepoint.runs import store as run_store
from saddlepoint.runs.rows import Solve
from saddlepoint.runs.settings import AttackSettings, UniversalSettings
from saddlepoint.solver.inspection import Look

EXPERIMENTS = experiments.EXPERIMENTS
DOCUMENT = ROOT / "docs" / "RESULTS.md"
STORE = DOCUMENT.parent / "results"
QUIET = experiments.Setup(reports=False)


def pair(data: str = "cifar10", limit: int = 12, steps: int = 4) -> Experiment:
    """Average and min-max on networks A and C; the paper's accuracies are of four."""
    block = EXPERIMENTS[f"ensemble-{data}"].blocks[-1]
    rows = tuple(replace(row, paper=replace(row.paper, accuracy=())) for row in block.rows)
    block = replace(block.but(models=[f"{data}-a", f"{data}-c"], steps=steps), rows=rows)
    return replace(EXPERIMENTS[f"ensemble-{data}"], blocks=(block,), limit=limit)


# ------------------------------------------------------------------------------- labels


def test_predicted_labels_are_attacked_and_the_truth_is_counted(tmp_path: Path) -> None:
    experiment = pair()
    block = experiment.blocks[0]
    experiments.reproduce(experiment, tmp_path, replace(QUIET, labels="predicted"))
    (_, item) = experiments.collect(experiment, tmp_path).attacks
    x, y = sp.data.sample("cifar10", 12)
    networks = [sp.models.load("cifar10-a"), sp.models.load("cifar10-c")]
    problem = sp.Ensemble(networks, x, y, labels="predicted")
    assert bool((problem.labels != problem.truth).any())  # the test needs an image that is wrong
    text = block.rows[1].strategy.rule
    assert isinstance(text, str)
    step_size = block.settings.step_size
    assert step_size is not None
    ball, rule = build.ball_of(block.settings), rule_words.rule(text)
    result = sp.apgda(problem, ball, rule=rule, steps=4, step_size=step_size)
    rates = sp.success_rates(problem, result.delta)
    assert item.asr_all == pytest.approx(100 * rates.all, abs=1e-3)
    assert item.asr_mean == pytest.approx(100 * rates.mean, abs=1e-3)
    assert torch.equal(item.tensors()["labels"], problem.truth)
    assert item.source.labels == "predicted"


@pytest.mark.parametrize("method", experiments.METHODS)
def test_rows_that_were_right_are_taken_from_the_run_with_true_labels(
    method: experiments.Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair()
    predicted = experiments.Setup(method, "predicted", reports=False)
    experiments.reproduce(experiment, tmp_path / "alone", predicted)
    experiments.reproduce(experiment, tmp_path / "both", replace(predicted, labels="true"))
    attacked: list[int] = []
    solver = build.solver_of

    def counting(settings: AttackSettings, seen: Look, whole: AbstractProblem) -> Solve:
        solve = solver(settings, seen, whole)

        def count(problem, rule, callback):  # type: ignore[no-untyped-def]
            attacked.append(len(problem))
            return solve(problem, rule, callback)

        return count

    monkeypatch.setattr(build, "solver_of", counting)
    experiments.reproduce(experiment, tmp_path / "both", predicted)
    assert all(0 < count < 12 for count in attacked)
    assert len(attacked) == 2
    source = experiments.Source(method, "predicted")
    for key in ("avg", "minmax"):
        one, other = (
            experiments.collect(experiment, tmp_path / f).one(experiment.blocks[0], key, source)
            for f in ("alone", "both")
        )
        assert one is not None
        assert other is not None
        assert one.asr_all == other.asr_all
        assert one.accuracy == other.accuracy
        assert one.evaluations == other.evaluations
        a, b = one.tensors(), other.tensors()
        assert torch.equal(a["fooled"], b["fooled"])
        assert torch.allclose(a["weights"], b["weights"], atol=1e-4)
        assert torch.allclose(a["history.losses"], b["history.losses"], atol=1e-2)


def test_what_domains_answer_without_a_perturbation_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, judged = pair(limit=5, steps=2), []
    verdict = rows._verdict

    def counting(problem: AbstractProblem, delta: torch.Tensor) -> object:
        judged.append(bool(delta.any()))
        return verdict(problem, delta)

    monkeypatch.setattr(rows, "_verdict", counting)
    for setup in (QUIET, replace(QUIET, method="attack"), replace(QUIET, labels="predicted")):
        experiments.reproduce(experiment, tmp_path, setup)
    assert judged.count(False) == 1
    assert judged.count(True) == 6  # two strategies, three times
    found = experiments.collect(experiment, tmp_path)
    x, y = sp.data.sample("cifar10", 5)
    for item in found.attacks:
        for k, name in enumerate(("cifar10-a", "cifar10-c")):
            wrong = sp.models.load(name)(x).argmax(dim=1) != y
            assert torch.equal(item.tensors()["clean_fooled"][:, k], wrong)
    other = replace(
        experiment, blocks=(experiment.blocks[0].but(models=["cifar10-a", "cifar10-d"]),)
    )
    judged.clear()
    experiments.reproduce(other, tmp_path, replace(QUIET, method="attack-5"))
    assert judged.count(False) == 1  # another network has not been asked


def test_nothing_is_taken_from_a_run_of_other_settings(tmp_path: Path) -> None:
    experiment = pair(steps=2)
    experiments.reproduce(pair(steps=3), tmp_path, QUIET)
    setup = replace(QUIET, labels="predicted")
    experiments.reproduce(experiment, tmp_path, setup)  # histories of three steps would not fit
    item = experiments.collect(experiment, tmp_path).one(
        experiment.blocks[0], "minmax", experiments.Source("apgda", "predicted")
    )
    assert item is not None
    assert item.tensors()["history.losses"].shape[0] == 3


def test_the_problem_of_a_block_is_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    look = build.look

    def counted(problem: AbstractProblem, *args: Any, **options: Any) -> Look:
        looks.append(problem)
        return look(problem, *args, **options)

    monkeypatch.setattr(build, "look", counted)
    experiments.reproduce(pair(limit=2), tmp_path, QUIET)
    assert len(experiments.collect(pair(limit=2), tmp_path).attacks) == 2
    assert len(looks) == 1


def test_a_summary_keeps_the_rows_of_other_methods_and_not_of_other_networks(
    tmp_path: Path,
) -> None:
    experiment, store = pair(), tmp_path / "store"
    for method in ("apgda", "attack"):
        experiments.reproduce(experiment, tmp_path / method, replace(QUIET, method=method))
        experiments.write_summary(experiment, tmp_path / method, store)
    experiments.reproduce(experiment, tmp_path / "apgda", replace(QUIET, method="attack"))
    at_once = experiments.write_summary(experiment, tmp_path / "apgda", tmp_path / "at-once")
    path = store / at_once.name
    assert path.read_text() == at_once.read_text()
    text = path.read_text()
    path.write_text(text.replace(sp.models.card("cifar10-a").sha256, "0" * 64))
    with pytest.raises(
        ValueError, match="must hold a summary of the same networks, got another cifar10-a"
    ):
        experiments.write_summary(experiment, tmp_path / "attack", store)


def test_a_summary_names_the_networks_that_were_attacked_and_not_shipped_ones_of_the_same_name(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    torch.manual_seed(0)
    network = sp.models.build("A", channels=3, size=32).eval()
    save_file(network.state_dict(), own / "cifar10-a.safetensors")
    experiment = pair(limit=2)
    experiments.reproduce(experiment, tmp_path / "runs", replace(QUIET, parameters=own))
    path = experiments.write_summary(experiment, tmp_path / "runs", tmp_path)
    found = json.loads(path.read_text())["networks"]
    assert found["cifar10-a"] == hash_model(network)
    assert found["cifar10-a"] != sp.models.card("cifar10-a").sha256
    assert found["cifar10-c"] == sp.models.card("cifar10-c").sha256


def test_versions_are_those_of_rows_that_are_still_there(tmp_path: Path) -> None:
    experiment = pair(limit=2, steps=1)
    for method in ("apgda", "attack"):
        experiments.reproduce(experiment, tmp_path / "runs", replace(QUIET, method=method))
    path = experiments.write_summary(experiment, tmp_path / "runs", tmp_path)
    content = json.loads(path.read_text())
    now, old = content["versions"], {"saddlepoint": "0.0.9"}
    path.write_text(json.dumps(content | {"versions": [old]}))
    experiments.write_summary(experiment, tmp_path / "runs", tmp_path)
    assert json.loads(path.read_text())["versions"] == now  # no row of the old one is left
    path.write_text(json.dumps(content | {"versions": [old]}))
    experiments.reproduce(experiment, tmp_path / "one", QUIET)
    experiments.write_summary(experiment, tmp_path / "one", tmp_path)
    assert json.loads(path.read_text())["versions"] == [old, *now]


def test_rows_that_are_replaced_by_fewer_images_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(limit=4, steps=1)
    monkeypatch.setattr("saddlepoint.experiments.find", lambda name: replace(experiment, name=name))
    words = ("reproduce", "ensemble-cifar10", "--store", tmp_path / "store")
    path = tmp_path / "store" / "ensemble-cifar10.json"
    for limit, fewer in ((3, False), (4, False), (2, True)):
        assert inside(*words, "--limit", limit, "--out", tmp_path / str(limit)) == 0
        told = capsys.readouterr().err
        assert ("replaced" in told) == fewer
    assert (
        f"{path}: rows of more images were replaced: linf-0.05, avg, apgda, true (4 by 2); "
        "linf-0.05, minmax, apgda, true (4 by 2)\n"
    ) in told


def test_measurements_that_are_replaced_by_fewer_images_are_told(tmp_path: Path) -> None:
    full = EXPERIMENTS["networks"]
    part = replace(full, measurements=full.measurements[:1])
    told: list[str] = []
    for limit in (3, 2):
        experiments.reproduce(replace(part, limit=limit), tmp_path / str(limit), QUIET)
        experiments.write_summary(full, tmp_path / str(limit), tmp_path, replaced=told.append)
    path = tmp_path / "networks.json"
    assert told == [f"{path}: rows of more images were replaced: mnist-a, apgda (3 by 2)"]


def own_parameters(folder: Path, *names: str) -> Path:
    """Random parameters of networks of CIFAR-10, in place of the shipped ones."""
    folder.mkdir()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name in names:
            network = sp.models.build(name[-1].upper(), channels=3, size=32)
            save_file(network.state_dict(), folder / f"{name}.safetensors")
    return folder


def test_rows_of_other_networks_of_the_same_name_are_refused(tmp_path: Path) -> None:
    experiment, runs = pair(limit=2, steps=1), tmp_path / "runs"
    own = own_parameters(tmp_path / "own", "cifar10-a")
    experiments.reproduce(experiment, runs, QUIET)
    others = replace(QUIET, method="attack", parameters=own)
    with pytest.raises(ValueError, match="got another cifar10-a than its results are of"):
        experiments.reproduce(experiment, runs, others)
    assert not (runs / "true" / "attack").exists()  # said before anything is attacked
    experiments.reproduce(experiment, tmp_path / "elsewhere", others)
    shutil.move(tmp_path / "elsewhere" / "true" / "attack", runs / "true" / "attack")
    said = (
        r"`.*runs` must hold results of the same networks, got another cifar10-a in "
        r"'true/attack/linf-0.05/avg' than in 'true/apgda/linf-0.05/avg'; move one of them away"
    )
    for read in (
        experiments.collect,
        experiments.publish,
        lambda one, other: experiments.write_summary(one, other, tmp_path / "store"),
    ):
        with pytest.raises(ValueError, match=said):
            read(experiment, runs)
    assert not (tmp_path / "store" / "ensemble-cifar10.json").exists()


def test_files_of_others_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"would write over, got 'table.csv'"):
        experiments.reproduce(pair(), tmp_path, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_a_run_of_somebody_else_below_does_not_make_files_ours(tmp_path: Path) -> None:
    for place in (tmp_path / "mine" / "today" / "run", tmp_path / "true" / "apgda" / "mine"):
        make_run(place, rows=2)
    (tmp_path / "table.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"would write over, got 'table.csv'"):
        experiments.reproduce(pair(), tmp_path, QUIET, resume=True)
    assert (tmp_path / "table.csv").read_text() == "mine"


def test_tables_of_others_beside_results_that_were_not_drawn_yet_are_not_written_over(
    tmp_path: Path,
) -> None:
    experiment = pair(limit=2)
    experiments.reproduce(experiment, tmp_path, QUIET)  # stopped before its tables were drawn
    (tmp_path / "table-notes.txt").write_text("nothing of ours has this name")
    (tmp_path / "table.csv").write_text("mine")
    with pytest.raises(ValueError, match=r"would write over, got 'table.csv'"):
        experiments.reproduce(experiment, tmp_path, QUIET, resume=True)
    with pytest.raises(ValueError, match=r"would write over, got 'table.csv'"):
        experiments.publish(experiment, tmp_path)
    assert (tmp_path / "table.csv").read_text() == "mine"
    assert not (tmp_path / "table.md").exists()
    (tmp_path / "table.csv").unlink()
    for _ in range(2):  # what is ours is drawn again
        _, files = experiments.publish(experiment, tmp_path)
        assert all(file.is_file() for file in files)
        experiments.reproduce(experiment, tmp_path, QUIET, resume=True)


@pytest.mark.parametrize("text", ['{"my": "drawings"}', "[" * 100_000], ids=["mine", "deep"])
def test_the_list_of_what_was_drawn_may_be_the_users(text: str, tmp_path: Path) -> None:
    (tmp_path / "drawn.json").write_text(text)
    with pytest.raises(ValueError, match=r"drawn.json` must be the list of tables and figures"):
        experiments.reproduce(pair(limit=2), tmp_path, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["drawn.json"]


@pytest.mark.parametrize(
    "where", ["drawing.collect", "places.write_atomically", "stored.write_atomically"]
)
def test_two_methods_that_are_published_at_one_moment_are_both_kept(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, store = replace(pair(limit=2), figure="steps"), tmp_path / "store"
    experiments.reproduce(experiment, tmp_path, QUIET)
    module, _, name = where.partition(".")
    place = importlib.import_module(f"saddlepoint.experiments.{module}")
    there, both, done = threading.Event(), threading.Event(), threading.Event()
    original = getattr(place, name)

    def stops_once(*values: Any) -> Any:
        """The first to come here goes on when the second one is through, or is kept waiting."""
        found = original(*values) if name == "collect" else None
        if not there.is_set():
            there.set()
            assert both.wait(60)
            done.wait(1.0)
        return original(*values) if found is None else found

    monkeypatch.setattr(place, name, stops_once)

    def publish() -> None:
        if module == "stored":
            experiments.write_summary(experiment, tmp_path, store)
        else:
            experiments.publish(experiment, tmp_path)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(publish)
        assert there.wait(60)
        experiments.reproduce(experiment, tmp_path, replace(QUIET, method="attack"))
        both.set()
        publish()
        done.set()
        first.result()
    if module == "stored":
        rows = experiments.read_summary(experiment, store).attacks
        assert {row.source.method for row in rows} == {"apgda", "attack"}
        assert [path.name for path in store.iterdir()] == [f"{experiment.name}.json"]
        return
    drawn = json.loads((tmp_path / "drawn.json").read_text())
    assert {f"{experiment.name}-{method}.png" for method in ("apgda", "attack")} <= set(drawn)
    assert all((tmp_path / each).is_file() for each in drawn)
    table = (tmp_path / "table.csv").read_text()
    experiments.publish(experiment, tmp_path)
    assert (tmp_path / "table.csv").read_text() == table
    assert not (tmp_path / "run.lock").exists()


def test_two_experiments_do_not_share_a_folder(tmp_path: Path) -> None:
    experiments.reproduce(pair(limit=2), tmp_path, QUIET)
    other = replace(pair(limit=2), name="ensemble-mnist")
    with pytest.raises(
        ValueError, match=r"results of ensemble-mnist only, .* got those of ensemble-cifar10"
    ):
        experiments.reproduce(other, tmp_path, QUIET, resume=True)
    with pytest.raises(ValueError, match="got those of ensemble-cifar10"):
        experiments.reproduce(other, tmp_path, replace(QUIET, method="attack"))


def test_experiments_about_more_than_success_have_true_labels_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`labels` must be true for cost, .* got 'predicted'"):
        experiments.reproduce(EXPERIMENTS["cost"], tmp_path, replace(QUIET, labels="predicted"))
    with pytest.raises(ValueError, match="`labels` must be one of true, predicted, got 'wrong'"):
        experiments.Setup(labels="wrong")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------- weights of the heuristics


def test_clipping_silences_networks_that_are_fooled() -> None:
    rows = {
        row.strategy.key: row for row in EXPERIMENTS["ensemble-mnist-heuristics"].blocks[0].rows
    }
    logits = torch.tensor([[0.0, 20.0], [0.0, 5.0], [5.0, 0.0]], requires_grad=True)
    labels = torch.zeros(3, dtype=torch.long)
    pulls = {}
    for key in ("clip", "clip-50"):
        texts.loss(rows[key].strategy.loss)(logits, labels).sum().backward()
        assert logits.grad is not None
        pulls[key] = (logits.grad.abs().sum(dim=1) > 0).tolist()
        logits.grad = None
    # 40 in the authors' units: fooled by 10 or more stops pulling; 50: fooled at all.
    assert pulls == {"clip": [False, True, True], "clip-50": [False, False, True]}


def test_own_heuristics_follow_the_accuracies_under_the_average(tmp_path: Path) -> None:
    full = EXPERIMENTS["ensemble-mnist-heuristics"]
    block = full.blocks[0]
    kept = ("avg", "own-2", "own-prior", "static", "minmax")
    rows = tuple(row for row in block.rows if row.strategy.key in kept)
    experiment = replace(full, limit=6, blocks=(replace(block.but(steps=2), rows=rows),))
    experiments.reproduce(experiment, tmp_path, QUIET)
    found = experiments.collect(experiment, tmp_path)
    items = {item.row.strategy.key: item for item in found.attacks}
    accuracy = items["avg"].accuracy
    assert len(set(accuracy.values())) > 1  # there is an order to follow
    hardest = sorted("ABCD", key=lambda name: -accuracy[name])
    prior = dict(zip(hardest, (0.4, 0.3, 0.2, 0.1), strict=True))
    assert items["own-prior"].weights == pytest.approx(prior, abs=1e-6)
    two = {name: 0.5 if name in hardest[:2] else 0.0 for name in "ABCD"}
    assert items["own-2"].weights == pytest.approx(two, abs=1e-6)
    order, static = found_weights(found)
    assert f"{', '.join(hardest)} (apgda)" in order
    weights = items["minmax"].weights
    assert ", ".join(f"{weights[name]:.3f}" for name in "ABCD") in static


def test_the_papers_order_gives_the_papers_prior() -> None:
    assert Ordered((0.4, 0.3, 0.2, 0.1)).of((2.47, 0.37, 7.39, 5.81)) == (0.2, 0.1, 0.4, 0.3)
    assert Ordered((1, 1, 0, 0)).of((2.47, 0.37, 7.39, 5.81)) == (0, 0, 1, 1)  # w_c+d
    assert Ordered((1, 1, 1, 0)).of((2.47, 0.37, 7.39, 5.81)) == (1, 0, 1, 1)  # w_a+c+d


def test_groups_of_one_digit_are_a_setting() -> None:
    images, network = block_parts.load_images("mnist", 120), block_parts.load_network("mnist-a")
    blocks = [EXPERIMENTS[name].blocks[2] for name in ("universal-mnist", "universal-mnist-digits")]
    mixed, digits = (
        block_parts.build_problem(block, block.settings, images, [network]) for block in blocks
    )
    assert all(len(set(group.tolist())) == 1 for group in digits.labels)
    assert any(len(set(group.tolist())) > 1 for group in mixed.labels)
    for problem in (mixed, digits):  # the box of delta keeps every image in [0, 1]
        assert float(problem.images(problem.upper).max()) <= 1.0 + 1e-6
    settings = blocks[1].settings
    assert isinstance(settings, UniversalSettings)
    assert settings.box == "intersection"


# ------------------------------------------------------------------------------- summaries


def test_a_stored_summary_gives_the_tables_of_the_runs(tmp_path: Path) -> None:
    experiment = pair(limit=5, steps=2)
    for setup in (QUIET, replace(QUIET, method="attack"), replace(QUIET, labels="predicted")):
        experiments.reproduce(experiment, tmp_path / "runs", setup)
    path = experiments.write_summary(experiment, tmp_path / "runs", tmp_path / "store")
    assert path == tmp_path / "store" / "ensemble-cifar10.json"
    stored = experiments.read_summary(experiment, tmp_path / "store")
    fresh = experiments.collect(experiment, tmp_path / "runs")
    assert overview(stored) == overview(fresh)
    assert tables_of(stored) == tables_of(fresh)
    content = json.loads(path.read_text())
    assert content["networks"] == {
        name: sp.models.card(name).sha256 for name in ("cifar10-a", "cifar10-c")
    }
    row = content["rows"][0]
    assert (row["images"], row["seed"], row["rule"]) == (5, 0, "average")
    with pytest.raises(ValueError, match="must be read from the folder of a run"):
        stored.attacks[0].tensors()


def test_numbers_of_other_settings_are_refused(tmp_path: Path) -> None:
    experiment = pair(limit=3, steps=2)
    experiments.reproduce(experiment, tmp_path / "runs", QUIET)
    experiments.write_summary(experiment, tmp_path / "runs", tmp_path)
    block = experiment.blocks[0]
    for changed in (
        block.but(steps=3),
        block.but(eps=0.06),
        block.but(step_size=0.1),
        replace(block, rows=block.rows[:1]),
        replace(block, rows=(block.rows[0], Row(Strategy("minmax", "", "average", "clipped:0")))),
    ):
        with pytest.raises(ValueError, match="must hold numbers of the present settings"):
            experiments.read_summary(replace(experiment, blocks=(changed,)), tmp_path)
    with pytest.raises(ValueError, match=r"no ensemble-mnist.json there; write it with"):
        experiments.read_summary(EXPERIMENTS["ensemble-mnist"], tmp_path)


def test_the_overview_puts_sources_side_by_side(tmp_path: Path) -> None:
    experiment = pair(limit=5, steps=2)
    for labels in experiments.LABELS:
        setup = experiments.Setup("attack-5", labels, reports=False)
        experiments.reproduce(experiment, tmp_path, setup)
    table = overview(experiments.collect(experiment, tmp_path))
    assert [column.name for column in table.columns] == [
        "Setting",
        "Strategy",
        "Images",
        "paper",
        "`attack`, 5 restarts",
        "`attack`, 5 restarts, predicted labels",
        "evaluations",
    ]
    line = table.lines[1]
    assert line[:4] == ("linf, eps 0.05", "min-max", "5", "84.36 (+15.1 %)")
    assert isinstance(line[4], str)
    assert line[4].startswith("100.0 [56.6, 100.0]")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("[]", "got a file that holds none"),
        ("null", "got a file that holds none"),
        ("{", "got a file that holds none"),
        ("[" * 100_000, "got a file that holds none"),
        ("\xff", "got a file that holds none"),
        ('{"schema_version": 1}', "got no `experiment`"),
        (
            '{"schema_version": 1, "experiment": "", "versions": [], "networks": {}, "rows": [{}],'
            '"measured": [], "lines": []}',
            "got no `rows.0.block`",
        ),
    ],
    ids=["list", "null", "brace", "deep", "bytes", "keys", "row"],
)
def test_a_damaged_summary_is_named_before_anything_runs(
    text: str, got: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps-mnist.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(f"`{file}` must be a summary")) as caught:
        experiments.read_summary(EXPERIMENTS["steps-mnist"], tmp_path)
    assert got in str(caught.value)
    words = ("--limit", "1", "--out", tmp_path / "runs", "--store", tmp_path)
    assert inside("reproduce", "steps-mnist", *words) in (1, 2)
    assert f"`{file}` must be a summary" in capsys.readouterr().err
    assert not list((tmp_path / "runs").rglob("run.json"))


@pytest.mark.parametrize(
    ("name", "where", "changes", "got"),
    [
        ("ensemble-mnist", "", {"experiment": "cost"}, "got that of cost"),
        ("ensemble-mnist", "rows", {"asr_all": float("nan")}, "nan as `asr_all` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"asr_all": 99.9}, "99.9 as `asr_all` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"asr_avg": 100.5}, "100.5 as `asr_avg` of l0-30, avg"),
        (
            "ensemble-mnist",
            "rows",
            {"asr_all_interval": [-1.0, 99.0]},
            "-1.0 as `asr_all_interval`",
        ),
        ("ensemble-mnist", "rows", {"method": "nope"}, "'nope' as `method` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"labels": "nope"}, "'nope' as `labels` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"accuracy": {}}, "{} as `accuracy` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"accuracy": {}, "weights": {}}, "{} as `accuracy` of l0-30"),
        ("ensemble-mnist", "rows", {"accuracy": {"A": -1.0}}, "-1.0 as `accuracy` of l0-30, avg"),
        (
            "ensemble-mnist",
            "rows",
            {"weights": dict.fromkeys("ABCD", float("inf"))},
            "inf as `weights`",
        ),
        ("ensemble-mnist", "rows", {"evaluations": float("nan")}, "nan as `evaluations` of l0-30"),
        ("ensemble-mnist", "rows", {"images": 0}, "0 as `images` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"evaluations": -51.0}, "-51.0 as `evaluations` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"evaluations": 51.5}, "51.5 as `evaluations` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"evaluations": 1e300}, "1e+300 as `evaluations` of l0-30"),
        ("ensemble-mnist", "rows", {"images": 10_000}, "10000 as `images` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"rows": 999}, "1000 as `images` of l0-30, avg"),
        ("universal-mnist", "rows", {"images": 1001}, "1001 as `images` of a-k2, avg"),
        (
            "ensemble-mnist",
            "rows",
            {"asr_all": 99.0, "asr_all_interval": [98.0, 100.0]},
            "99.0 as `asr_all` of l0-30, avg",
        ),
        (
            "universal-mnist",
            "rows",
            {"asr_all_interval": [98.4, 98.4]},
            "[98.4, 98.4] as `asr_all_interval` of a-k2, avg",
        ),
        ("ensemble-mnist", "rows", {"verdicts": ""}, "'' as `verdicts` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"verdicts": "zz"}, "'zz' as `verdicts` of l0-30, avg"),
        (
            "ensemble-mnist",
            "rows",
            {"weights": {"A": 7.0, "B": 0.0, "C": 0.0, "D": 0.0}},
            "7.0 as `weights` of l0-30, avg",
        ),
        ("ensemble-mnist", "rows", {"settled": -5}, "-5 as `settled` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"settled": 52}, "52 as `settled` of l0-30, avg"),
        ("ensemble-mnist", "rows", {"strategy": "minmax"}, "a second row of l0-30, minmax, apgda"),
        ("steps-mnist", "rows", {"path": {"A": [2.0]}}, "2.0 as `path` of linf-0.2, avg"),
        ("convergence", "measured", {"images": "64"}, "'64' as `images` of 'l2'"),
        ("convergence", "measured", {"key": "linf"}, "a second measurement of 'linf', apgda"),
        ("convergence", "measured", {"key": 5}, "5 as `key` of a measurement"),
        ("ensemble-mnist", "", {"networks": {}}, "no hash of mnist-a in `networks`"),
        ("convergence", "lines", ["l2"], "got ['l2'] among its lines"),
        ("convergence", "lines", [{"l2": 1}, *[None] * 8], "got {'l2': 1} as `lines.0.0"),
        ("convergence", "lines", ["l2", "apgda", *[None] * 6, float("nan")], "got ['l2', 'apgda'"),
        ("convergence", "measured", {"method": "nope"}, "'nope' as `method` of 'l2'"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    name: str, where: str, changes: Any, got: str, tmp_path: Path
) -> None:
    content = json.loads((STORE / f"{name}.json").read_text())
    if where:
        first = content[where][0]
        content[where][0] = first | changes if isinstance(changes, dict) else changes
    else:
        content |= changes
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps(content))
    for read in (experiments.read_summary, experiments.check_store):
        with pytest.raises(ValueError, match=re.escape(f"`{file}` must be a summary")) as caught:
            read(EXPERIMENTS[name], tmp_path)
        assert got in str(caught.value)


def test_who_publishes_where_another_does_is_told_for_whom_it_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(limit=2, steps=1)
    monkeypatch.setattr("saddlepoint.experiments.find", lambda name: replace(experiment, name=name))
    runs, store = tmp_path / "runs", tmp_path / "store"
    words = (
        "reproduce",
        "ensemble-cifar10",
        "--out",
        runs,
        "--store",
        store,
        "--resume",
        "--quiet",
    )
    assert inside(*words) == 0
    capsys.readouterr()
    for place in (runs, store):
        with ExitStack() as stack:
            stack.enter_context(locked(place))

            def leaves(owner: dict[str, Any], held: ExitStack = stack) -> str:
                held.close()
                return f"process {owner['pid']}"

            monkeypatch.setattr(run_store, "_who", leaves)
            assert inside(*words) == 0
        told = f"waiting for process {os.getpid()}, which is writing into {place}\n"
        assert capsys.readouterr().err == told


# ------------------------------------------------------------------------------- the document


def test_the_command_stores_summaries_and_writes_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = pair(limit=3, steps=2)
    monkeypatch.setattr("saddlepoint.experiments.find", lambda name: replace(experiment, name=name))
    monkeypatch.setattr(
        "saddlepoint.experiments.document.find", lambda name: replace(experiment, name=name)
    )
    store = tmp_path / "results"
    words = ("reproduce", "ensemble-cifar10", "--out", tmp_path / "runs", "--store", store)
    assert inside(*words, "--method", "all", "--labels", "both") == 0
    assert str(store / "ensemble-cifar10.json") in capsys.readouterr().out
    places = {path.parent.name for path in (tmp_path / "runs").glob("*/attack*")}
    assert places == {"true", "predicted"}
    document = tmp_path / "RESULTS.md"
    before = "# Mine\n\n<!-- table: ensemble-cifar10 -->\nold\n<!-- end -->\n\nProse, 12 %.\n"
    document.write_text(before + "<!-- table: ensemble-cifar10, details -->\n<!-- end -->\n")
    assert inside("reproduce", "--summary", document) == 0
    text = document.read_text()
    assert text.startswith("# Mine\n\n<!-- table: ensemble-cifar10 -->\n| Setting | Strategy |")
    assert "old" not in text
    assert "\n\nProse, 12 %.\n" in text
    assert "| linf, eps 0.05 | avg. | apgda | true | 3 |" in text
    assert "| linf, eps 0.05 | min-max | attack, 5 restarts | predicted | 3 |" in text
    assert inside("reproduce", "--summary", document) == 0
    assert document.read_text() == text
    assert inside("reproduce", "--summary", tmp_path / "none.md") == 2
    assert "`--summary` must be a file or folder that exists" in capsys.readouterr().err
    document.write_text(before)
    other = tmp_path / "other.md"
    other.write_text("<!-- table: patches -->\nnot ours\n<!-- end -->\n")
    assert inside("reproduce", "--summary", tmp_path) == 0  # all documents of a folder
    assert "| linf, eps 0.05 | avg. |" in document.read_text()
    assert "not ours" in other.read_text()


@pytest.mark.parametrize("content", [None, "not json", "[]", "{}", '{"versions": null}'])
def test_a_damaged_summary_is_named_before_anything_is_read_of_it(
    content: str | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "ensemble-mnist.json").write_text(content)
    with pytest.raises(ValueError, match=r"ensemble-mnist"):
        experiments.write_tables("<!-- table: ensemble-mnist -->\n<!-- end -->", tmp_path)


def test_the_tables_of_the_results_are_those_of_the_stored_summaries() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    named = experiments.named_tables(text)
    assert named
    assert experiments.write_tables(text, STORE) == text, (
        "write the tables again: saddlepoint reproduce --summary docs"
    )
    stored = {path.stem for path in STORE.glob("*.json")}
    # Those of benchmarks and tools have tables of their own, written by the commands that measure them.
    others = {
        "peers",
        "quick",
        "ceiling",
        "ceiling-ideas",
        "one-domain",
        "figures",
        "matrix",
        "patches",
    }
    others |= {"authors-protocol", "defence", "network-b", "scores", "scores-trials", "transfer"}
    assert stored - others == set(named)


def test_the_stored_summaries_are_of_the_shipped_networks() -> None:
    for path in STORE.glob("*.json"):
        for name, value in json.loads(path.read_text(encoding="utf-8")).get("networks", {}).items():
            shipped = sp.models.card(name).sha256
            assert shipped == value, f"{path.name} was made with another {name}: run it again"


def unrecorded(name: str) -> set[str]:
    """The networks of which a stored summary has lines of a measurement, and no hash."""
    content = json.loads((STORE / f"{name}.json").read_text(encoding="utf-8"))
    keys = {each["key"] for each in content["measured"]}
    blocks = [m.block for m in EXPERIMENTS[name].measurements if m.key in keys]
    return {n for block in blocks for n in block.networks} - set(content["networks"])


def test_every_network_of_a_stored_measurement_has_a_hash() -> None:
    stored = [name for name in EXPERIMENTS if (STORE / f"{name}.json").is_file()]
    assert not {name: gone for name in stored if (gone := unrecorded(name))}


def test_networks_of_a_measurement_without_a_hash_are_said_below_the_table(tmp_path: Path) -> None:
    path = Path(shutil.copy(STORE / "convergence.json", tmp_path))
    content = json.loads(path.read_text())
    text = "<!-- table: convergence -->\n<!-- end -->\n"
    for names, told in (
        (("mnist-a",), "mnist-c, mnist-d"),
        (("mnist-a", "mnist-c", "mnist-d"), None),
    ):
        content["networks"] = {name: sp.models.card(name).sha256 for name in names}
        path.write_text(json.dumps(content))
        line = f" the lines were measured with: {told}.\n<!-- end -->"
        written = experiments.write_tables(text, tmp_path)
        assert (line in written) == ("not recorded" in written) == (told is not None)


@pytest.mark.parametrize("name", ["steps-mnist", "networks"])
def test_numbers_of_other_parameters_than_are_shipped_are_said_below_the_table(
    name: str, tmp_path: Path
) -> None:
    path = Path(shutil.copy(STORE / f"{name}.json", tmp_path))
    forms = ("",) if name == "networks" else ("", ", details", ", paired")
    text = "".join(f"<!-- table: {name}{form} -->\n<!-- end -->\n\n" for form in forms)
    content = json.loads(path.read_text())
    for network in ("mnist-paper-a", "cifar10-b"):
        content["networks"][network] = sp.models.card(network).sha256
    content["networks"]["of-mine"] = "0" * 64
    path.write_text(json.dumps(content))
    before = experiments.write_tables(text, tmp_path)
    assert "shipped" not in before
    content["networks"] |= {"mnist-paper-a": "0" * 64, "cifar10-b": "1" * 64}
    path.write_text(json.dumps(content))
    said = (
        "\nThe numbers are of other parameters of cifar10-b and mnist-paper-a than are shipped.\n"
    )
    written = experiments.write_tables(text, tmp_path)
    assert written.count(f"{said}<!-- end -->") == len(forms)
    assert written.replace(said, "") == before
    assert experiments.write_tables(written, tmp_path) == written
    if name == "steps-mnist":
        text = f"<!-- behind: {name} -->\n<!-- end -->\n"
        of = f"The numbers of {name} are of other parameters of cifar10-b and mnist-paper-a"
        assert of in experiments.write_tables(text, tmp_path)
        assert of in experiments.write_tables("<!-- claims -->\n<!-- end -->", tmp_path)


def test_text_about_tables_says_so_when_they_have_changed(tmp_path: Path) -> None:
    path = Path(shutil.copy(STORE / "steps-mnist.json", tmp_path))
    shutil.copy(STORE / "convergence.json", tmp_path)
    text = "Before.\n\n<!-- about: steps-mnist, convergence; 0 -->\nMin-max fools 64.5 %.\n"
    warned = experiments.write_tables(text, tmp_path)
    now = re.findall(r"<!-- now (\w{12}) -->\n\nMin-max fools 64.5 %.\n", warned)[0]
    assert warned.startswith("Before.\n\n<!-- about: steps-mnist, convergence; 0 -->\n> The tables")
    assert experiments.write_tables(warned, tmp_path) == warned  # once is enough
    true = warned.replace("; 0 -->", f"; {now} -->")
    assert experiments.write_tables(true, tmp_path) == text.replace("; 0 -->", f"; {now} -->")
    content = json.loads(path.read_text())
    next(row for row in content["rows"] if row["method"] == "attack")["evaluations"] -= 0.5
    path.write_text(json.dumps(content))
    changed = experiments.write_tables(true, tmp_path)
    assert "> The tables have changed" in changed
    assert now not in changed.partition("-->")[2]


TABLE = "<!-- table: cost -->\n"


@pytest.mark.parametrize(
    ("text", "marker"),
    [
        (f"{TABLE}old\n\nProse.\n\n{TABLE}old\n<!-- end -->\n", "<!-- table: cost -->"),
        (f"{TABLE}old\n<!-- end -->\n{TABLE}", "<!-- table: cost -->"),
        (
            "<!-- table: cost, details -->\nold\n<!-- about: cost; 0 -->\nProse.\n<!-- end -->\n",
            "<!-- table: cost, details -->",
        ),
        ("<!-- behind: cost -->\nold\n<!-- network b -->\n<!-- end -->\n", "<!-- behind: cost -->"),
        (f"<!-- claims -->\nold\n\nProse.\n{TABLE}<!-- end -->\n", "<!-- claims -->"),
        ("<!-- claims -->", "<!-- claims -->"),
        ("<!-- table: patches -->\nof others\n", "<!-- table: patches -->"),
    ],
)
def test_a_marker_without_its_end_is_refused_and_swallows_nothing(
    text: str, marker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="end -->` before") as error:
        experiments.write_tables(text, STORE)
    assert f"`{marker}`" in str(error.value)
    document = tmp_path / "mine.md"
    document.write_text(text)
    assert inside("reproduce", "--summary", tmp_path, "--store", STORE) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mine.md" in line
    assert marker in line
    assert document.read_text() == text


@pytest.mark.parametrize(
    "marker",
    [
        "<!-- table: ensemble-mnits -->",
        "<!-- table: ensemble-mnits, details -->",
        "<!-- behind: cost, ensemble-mnits -->",
        "<!-- about: cost, ensemble-mnits; 0 -->",
    ],
)
@pytest.mark.parametrize("whole_folder", [True, False])
def test_a_misspelt_experiment_in_a_marker_is_named_with_its_file(
    whole_folder: bool, marker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "mine.md"
    text = f"{TABLE}old\n<!-- end -->\n\n{marker}\nold\n<!-- end -->\n"
    document.write_text(text)
    place = tmp_path if whole_folder else document
    assert inside("reproduce", "--summary", place, "--store", STORE) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "mine.md" in line
    assert f"`{marker}`" in line
    assert line.endswith("got 'ensemble-mnits'; did you mean ensemble-mnist?")
    assert document.read_text() == text


def test_tables_of_other_commands_stay_beside_those_of_experiments(tmp_path: Path) -> None:
    other = "<!-- table: patches -->\nof others\n<!-- end -->\n"
    written = experiments.write_tables(f"{TABLE}old\n<!-- end -->\n\n{other}", STORE)
    assert written.endswith(other)
    assert "old" not in written
    assert experiments.write_tables("Prose about `<!-- claims -->`, and no table.", tmp_path)


@pytest.mark.parametrize(("evaluations", "fits"), [(60.0, True), (102.0, True), (102.5, False)])
def test_attack_in_fewer_bits_asks_what_looks_fooled_once_more(
    evaluations: float, fits: bool, tmp_path: Path
) -> None:
    content = json.loads((STORE / "ensemble-mnist.json").read_text())
    row = next(r for r in content["rows"] if r["method"] == "attack")
    assert row["precision"] == "bfloat16"
    row["evaluations"] = evaluations
    (tmp_path / "ensemble-mnist.json").write_text(json.dumps(content))
    said = nullcontext() if fits else pytest.raises(ValueError, match=r"102\.5 as `evaluations`")
    with said:
        experiments.read_summary(EXPERIMENTS["ensemble-mnist"], tmp_path)
