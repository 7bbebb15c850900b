"""Rankings: real runs of the command line, in one folder; ranked only where they answer the same question."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import saddlepoint as sp
from commands import inside
from run_factory import execute, make_constant, make_evaluation, make_run, network
from saddlepoint import runs
from saddlepoint.report.compare import outcome
from saddlepoint.runs import comparable
from saddlepoint.runs.comparable import QUESTIONS, Entry, facts, read_entry
from saddlepoint.runs.ranking import Place, mcnemar

ATTACK = "attack ensemble --limit 24 --steps 5 --quiet --data mnist-sample"
EVALUATE = "evaluate --limit 12 --threat linf:0.1 --no-doctor --quiet --data mnist-sample"
TRAIN = "train --data mnist-sample --model C --init mnist-c --limit 40 --epochs 2 --steps 1 --test-steps 1"
LINES = {
    "mnist-1": f"{ATTACK} --models A,C --eps 0.1 --rule minmax",
    "mnist-1-average": f"{ATTACK} --models A,C --eps 0.1 --rule average",
    "mnist-1-one": f"{ATTACK} --models A --eps 0.1 --rule minmax",
    "mnist-2": f"{ATTACK} --models A,C --eps 0.2 --rule minmax",
    "deep/er/cifar": "attack ensemble --limit 8 --steps 3 --quiet --data cifar10-sample --models A --eps 1/255",
    "evaluated-a": f"{EVALUATE} A",
    "evaluated-c": f"{EVALUATE} C",
    "evaluated-more": f"{EVALUATE} A --threat l2:1.0",
    "trained": f"{TRAIN} --threat linf:0.1 --test-restarts 1",
    "trained-max": f"{TRAIN} --threat linf:0.1 --test-restarts 1 --method max",
    "trained-clean": TRAIN,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Runs of every kind, a folder that is no run, a damaged run, and one that was stopped."""
    folder = tmp_path_factory.mktemp("runs")
    for name, line in LINES.items():
        assert inside(*line.split(), "--out", folder / name) == 0
    (folder / "foreign").mkdir()
    (folder / "foreign" / "notes.txt").write_text("not ours")
    (folder / "damaged").mkdir()
    text = (folder / "mnist-1" / "run.json").read_text()
    (folder / "damaged" / "run.json").write_text(text.replace('"rows": 24', '"rows": 25'))
    runs.Run.read(folder / "mnist-1").but(status="interrupted", done=3).write(_made(folder / "cut"))
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def board(folder) -> runs.Board:
    return runs.rank_runs([folder])


def test_only_runs_that_answer_one_question_are_ranked_together(board):
    found = {
        (ranking.question.title, frozenset(entry.name for entry in ranking.entries))
        for ranking in board.rankings
    }
    assert found == {
        (
            "Which attack on these models is stronger?",
            frozenset({"mnist-1", "mnist-1-average"}),
        ),
        ("Which models are safer under this attack?", frozenset({"mnist-1", "mnist-1-one"})),
        ("Which model is more robust?", frozenset({"evaluated-a", "evaluated-c"})),
        (
            "Which training gives a more robust network?",
            frozenset({"trained", "trained-max"}),
        ),
    }


def test_the_others_are_on_their_own_with_the_reason(board):
    reasons = {each.entry.name: each.reason for each in board.alone}
    assert set(reasons) == {"mnist-2", "deep/er/cifar", "evaluated-more", "trained-clean"}
    assert "radius 0.2 instead of 0.1" in reasons["mnist-2"]
    assert "other images" in reasons["deep/er/cifar"]
    assert "threats l2 1, linf 0.1 instead of linf 0.1" in reasons["evaluated-more"]
    assert "threats none instead of linf 0.1" in reasons["trained-clean"]


def test_the_order_of_threats_says_nothing(board):
    (entry,) = (each.entry for each in board.alone if each.entry.name == "evaluated-more")
    radii = dict(reversed(entry.metrics.radii.items()))
    other = replace(entry, metrics=replace(entry.metrics, radii=radii))
    assert list(radii) != list(entry.metrics.radii)
    (question,) = (each for each in QUESTIONS if each.title == "Which model is more robust?")
    assert facts(question, other) == facts(question, entry)


def test_damaged_and_unfinished_runs_are_named_and_foreign_folders_passed_over(board, folder):
    reasons = {each.folder.name: each.reason for each in board.left_out}
    assert set(reasons) == {"damaged", "cut"}
    assert "damaged or was edited" in reasons["damaged"]
    assert "interrupted after 3 of 24 images" in reasons["cut"]
    assert "--resume" in reasons["cut"]
    assert len(board.entries) == len(LINES)


def test_the_best_score_comes_first_whichever_direction_is_better(board):
    for ranking in board.rankings:
        scores = [entry.score[0] for entry in ranking.entries]
        assert scores == sorted(scores, reverse=ranking.question.higher)
    safer = next(each for each in board.rankings if "safer" in each.question.title)
    assert not safer.question.higher
    # One perturbation for both is harder to find than one for A alone.
    assert [entry.name for entry in safer.entries] == ["mnist-1", "mnist-1-one"]


def test_a_score_is_the_share_of_its_rows(board):
    for entry in board.entries:
        if entry.run.kind == "train":
            robust = entry.metrics.robust_accuracy
            assert entry.score[0] == (robust["union"] if robust else entry.metrics.accuracy)
            continue
        share = entry.yes[entry.counted].double().mean().item()
        assert entry.score[0] == pytest.approx(100 * share, abs=1e-3)
        assert entry.score[1] <= entry.score[0] <= entry.score[2]


def test_the_command_says_the_same_on_console_and_page(folder, capsys):
    assert inside("report", folder) == 0
    out, err = capsys.readouterr()
    page = (folder / "leaderboard.html").read_text()
    for text in (out, page):
        assert "Which model is more robust?" in text
        assert "deep/er/cifar" in text
    assert "· models A, C" in out
    assert "· min-max (gamma=0.3, step_size=auto), 5 steps" in " ".join(out.split())
    assert err.count("left out") == 2
    assert "damaged or was edited" in err
    assert "damaged or was edited" in page
    assert "2 left out" in page
    assert "notes.txt" not in page + out + err
    assert str(folder / "leaderboard.html") in "".join(out.split())


def test_the_headline_can_be_read_whatever_runs_are_called(board):
    ranking = next(r for r in board.rankings if r.entries[0].run.kind == "evaluate")
    entries = zip(ranking.entries, ("after", "before"), strict=True)
    first, second = (replace(entry, name=name) for entry, name in entries)
    decided = replace(ranking, places=(Place(first, 1, 1), Place(second, 2, 2)), pairs=())
    assert outcome(decided).startswith("Run “after” comes first: ")
    assert " points more than “before”; without attack it has " in outcome(decided)
    tied = replace(ranking, places=(Place(first, 1, 2), Place(second, 1, 2)), pairs=())
    assert outcome(tied) == "Not separable: “after” and “before” may each be first."


def test_one_model_and_several_are_compared_where_both_take_what_is_usual(tmp_path):
    line = "attack ensemble --limit 3 --quiet --data mnist-sample --eps 0.1"
    before = "--loss cw --steps 50 --restarts 1"  # the defaults of several, which one had too
    for name, more in {"one": "", "old": before, "other": "--loss dlr"}.items():
        assert inside(*line.split(), "--models", "A", *more.split(), "--out", tmp_path / name) == 0
    assert inside(*line.split(), "--models", "A,C", "--out", tmp_path / "two") == 0
    safer = next(question for question in QUESTIONS if question.models is False)
    found = {n: facts(safer, read_entry(n, tmp_path / n)) for n in ("one", "old", "other", "two")}
    assert found["one"] == found["two"]
    assert found["one"] != found["old"]
    assert found["one"] != found["other"]


def test_incomparable_runs_by_name_have_no_winner_either(folder, capsys):
    names = [folder / name for name in ("mnist-1", "mnist-2", "deep/er/cifar")]
    assert inside("report", *names, "--out", folder / "named.html") == 0
    out = capsys.readouterr().out
    assert "comes first" not in out
    assert out.count("Not comparable") == 3
    assert "No two runs are comparable" in (folder / "named.html").read_text()


def test_a_damaged_run_by_name_is_an_error(folder, capsys):
    assert inside("report", folder / "mnist-1", folder / "damaged") == 2
    assert "damaged or was edited" in capsys.readouterr().err
    assert inside("report", folder / "mnist-1", folder / "foreign") == 2
    assert "must be a run or hold some" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["trained", "trained-clean"])
def test_a_training_alone_has_its_report(folder, name, capsys):
    (folder / name / "report.html").unlink()
    assert inside("report", folder / name) == 0
    assert "accuracy" in capsys.readouterr().out
    metrics = runs.TrainingMetrics.read(runs.Run.read(folder / name).metrics)
    page = (folder / name / "report.html").read_text()
    value = metrics.robust_accuracy.get("union", metrics.accuracy)
    assert f'<span class="figure">{value:.1f}&thinsp;%</span>' in page
    lines = ("linf", "clean", "union") if name == "trained" else ("loss",)
    assert [f"<g><title>{each}: " in page for each in lines] == [True] * len(lines)
    assert page.count("<g><title>") == len(lines)


def test_as_json(folder, capsys):
    assert inside("report", folder, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["runs"]) == len(LINES)
    assert set(found["alone"]) == {"mnist-2", "deep/er/cifar", "evaluated-more", "trained-clean"}
    places = {place["run"]: place["rank"] for place in found["rankings"][0]["places"]}
    assert set(places) == {"mnist-1", "mnist-1-average"}


@pytest.mark.parametrize(("one", "other"), [(0, 0), (6, 0), (1, 8), (3, 3), (40, 11), (700, 600)])
def test_mcnemar_is_the_exact_binomial_test(one, other):
    total = one + other
    logs = [
        math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1)
        for k in range(min(one, other) + 1)
    ]
    tail = sum(math.exp(log - total * math.log(2)) for log in logs)
    assert mcnemar(one, other) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)


class TestSeparable:
    """Two attacks on the same rows, which rows they fool made up."""

    @staticmethod
    def ranking(tmp_path, monkeypatch, *tables: list[int]) -> runs.Ranking:
        folders = []
        found: dict[Path, torch.Tensor] = {}
        for index, table in enumerate(tables):
            folders.append(tmp_path / f"run{index}")
            run = make_run(folders[-1], rows=4, domains=1, baseline=False, eps=0.1)
            run.but(seed=index).write(folders[-1])
            found[folders[-1]] = torch.tensor(table, dtype=torch.bool)

        def made(name: str, folder: Path) -> Entry:
            entry = read_entry(name, folder)
            yes = found[folder]
            score = (100 * yes.double().mean().item(), 0.0, 100.0)
            return Entry(name, folder, entry.run, entry.metrics, score, False, yes | True, yes)

        monkeypatch.setattr("saddlepoint.runs.ranking.read_entry", made)
        (ranking,) = runs.rank_runs(folders).rankings
        return ranking

    def test_six_rows_of_one_sort_decide_between_two(self, tmp_path, monkeypatch):
        ranking = self.ranking(tmp_path, monkeypatch, [0] * 6 + [1] * 4, [1] * 10)
        assert [(place.entry.name, place.rank) for place in ranking.places] == [
            ("run1", "1"),
            ("run0", "2"),
        ]
        (pair,) = ranking.pairs
        assert (pair.rows, pair.p, pair.separable) == ((4, 6, 0, 0), 0.03125, True)
        assert [entry.name for entry in ranking.first] == ["run1"]

    def test_five_do_not(self, tmp_path, monkeypatch):
        ranking = self.ranking(tmp_path, monkeypatch, [0] * 5 + [1] * 5, [1] * 10)
        assert [place.rank for place in ranking.places] == ["1-2", "1-2"]
        assert len(ranking.first) == 2

    def test_with_three_runs_more_is_asked_for(self, tmp_path, monkeypatch):
        few, more, all_ = [0] * 6 + [1] * 6, [0] * 3 + [1] * 9, [1] * 12
        ranking = self.ranking(tmp_path, monkeypatch, few, more, all_)
        # 6 against 0 is p = 0.031, above 0.05 / 3 pairs.
        assert [place.rank for place in ranking.places] == ["1-3", "1-3", "1-3"]
        few = [0] * 8 + [1] * 4  # p = 0.0078 to the best, 0.0625 to the middle
        ranking = self.ranking(tmp_path / "again", monkeypatch, few, more, all_)
        assert [place.rank for place in ranking.places] == ["1-2", "1-3", "2-3"]


@pytest.mark.parametrize("domains", [1, 2])
def test_what_was_never_attacked_never_wins(tmp_path, domains):
    make_evaluation(tmp_path / "sound", rows=12, domains=domains, eps=0.2)
    make_evaluation(tmp_path / "slow", rows=12, domains=domains, eps=0.2, budget=1e-9)
    (ranking,) = runs.rank_runs([tmp_path]).rankings
    sound, slow = ranking.entries
    assert [sound.name, slow.name] == ["sound", "slow"]
    assert sound.score[0] < slow.score[0]
    assert (sound.bound, slow.bound, slow.score[1]) == (False, True, 0)
    assert not any(pair.separable for pair in ranking.pairs)
    assert {entry.name for entry in ranking.first} == {"sound", "slow"}


def test_a_model_that_guesses_is_in_no_ranking(tmp_path):
    """A constant answer is right for its class whatever the attack, and would win among models that are not."""
    make_evaluation(tmp_path / "sound", rows=40, eps=0.2)
    make_evaluation(tmp_path / "other", rows=40, eps=0.2)
    make_evaluation(tmp_path / "constant", rows=40, eps=0.2, constant=True)
    board = runs.rank_runs([tmp_path])
    (ranking,) = board.rankings
    assert {entry.name for entry in ranking.entries} == {"sound", "other"}
    (alone,) = board.alone
    assert alone.entry.guesses
    assert alone.entry.score[0] > max(entry.score[0] for entry in ranking.entries)
    assert "no more right than guessing gives" in alone.reason


def attacked(folder, counts, *, constant=False):
    """An attack on a network that has so many of its labels right, or answers the most frequent one."""
    model = network(0, 36, 4)
    x = torch.rand(400, 1, 6, 6, generator=torch.Generator().manual_seed(3))
    answers = model(x).argmax(dim=1)
    labels = answers.bincount().argsort(descending=True).tolist()
    rows = [(answers == label).nonzero()[:n, 0] for label, n in zip(labels, counts, strict=False)]
    x, y = x[torch.cat(rows)], answers[torch.cat(rows)]
    if constant:
        make_constant(model, y, rarest=False)
    execute(folder, "ensemble", sp.Ensemble([model], x, y), classes=tuple("abcd"), eps=0.2)
    return comparable.read_entry(folder.name, folder)


@pytest.mark.parametrize("counts", [(10, 10), (15, 3)])
def test_an_attack_on_a_model_that_guesses_is_in_no_ranking(tmp_path, counts):
    assert not attacked(tmp_path / "sound", counts).guesses
    constant = attacked(tmp_path / "constant", counts, constant=True)
    assert max(constant.metrics.clean_accuracy.values()) == pytest.approx(
        100 * counts[0] / sum(counts), abs=0.01
    )
    assert constant.guesses
    assert not runs.rank_runs([tmp_path]).rankings


def test_classes_that_a_model_answered_are_classes_to_guess_among(tmp_path):
    attacked(tmp_path / "a", (10, 10))
    run, tensors = runs.read_results(tmp_path / "a")
    tensors["clean_predictions"] = torch.arange(20)[:, None] % 10
    tensors["labels"] = torch.arange(20)[:, None] % 2
    assert comparable._guesses(run.but(classes=("0", "1")), 55.0, 20, tensors) is False
    tensors = {"labels": tensors["labels"]}
    assert comparable._guesses(run.but(classes=("0", "1")), 55.0, 20, tensors) is True


def test_a_training_that_learnt_nothing_is_in_no_ranking(tmp_path):
    line = "train --data mnist-sample --model C --limit 10 --epochs 1 --learning-rate 1e-9 --quiet"
    for seed in (0, 1):
        assert inside(*line.split(), "--seed", seed, "--out", tmp_path / str(seed)) == 0
    assert runs.Run.read(tmp_path / "0").classes == tuple("0123456789")
    board = runs.rank_runs([tmp_path])
    assert not board.rankings
    assert len(board.alone) == 2
    assert all("no more right than guessing gives" in each.reason for each in board.alone)


def test_what_is_left_out_is_named_with_its_folder_and_in_its_own_words(tmp_path, capsys):
    line = "train --data mnist-sample --model A --limit 20 --epochs 1 --quiet --test-steps 1"
    assert inside(*line.split(), "--out", tmp_path / "t") == 0
    run = runs.Run.read(tmp_path / "t")
    run.but(status="interrupted", rows=3, done=1).write(tmp_path / "t")
    make_run(tmp_path / "whole", rows=4)
    broken = _made(tmp_path / "broken")
    (broken / "run.json").write_text("{}")
    assert inside("report", tmp_path) == 0
    out, err = capsys.readouterr()
    assert (
        f"`{tmp_path / 't'}` must be a finished run, got one that is interrupted after 1 of 3 epochs"
        in err
    )
    assert all(str(tmp_path) in line for line in err.splitlines())
    assert "whole: success rate " in out
    page = (tmp_path / "leaderboard.html").read_text()
    assert "</a>: success rate " in page or "</b>: success rate " in page


def test_a_flipped_byte_in_the_tensors_is_a_damaged_run(tmp_path):
    make_run(tmp_path / "run", rows=4, domains=1)
    path = tmp_path / "run" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    board = runs.rank_runs([tmp_path])
    assert board.entries == ()
    (left,) = board.left_out
    assert "tensors.safetensors" in left.reason


def test_without_a_row_that_was_right_there_is_no_rate_to_rank(tmp_path):
    model = network(0, 36, 4)
    x = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    right = model(x).argmax(dim=1)
    for name, labels in (("right", right), ("also", right), ("wrong", (right + 1) % 4)):
        execute(tmp_path / name, "ensemble", sp.Ensemble([model], x, labels))
    board = runs.rank_runs([tmp_path])
    assert [{entry.name for entry in each.entries} for each in board.rankings] == [
        {"right", "also"}
    ]
    (alone,) = board.alone
    assert alone.entry.name == "wrong"
    assert alone.reason.startswith("No row was right before the attack")


def test_nothing_is_written_over_that_is_not_ours(folder, tmp_path, capsys):
    page = tmp_path / "mine.html"
    page.write_text("<title>mine</title>")
    for path, said in ((page, "did not write"), (tmp_path, "must be an HTML file")):
        assert inside("report", folder, "--out", path) == 2
        assert said in capsys.readouterr().err
    assert page.read_text() == "<title>mine</title>"
    for _ in range(2):  # our own page is drawn again
        assert inside("report", folder, "--out", tmp_path / "ours.html") == 0


def test_models_that_cannot_be_hashed_are_never_taken_for_the_same(tmp_path):
    for name in ("one", "two"):
        run = make_run(tmp_path / name, rows=4, domains=1, baseline=False)
        assert run.hashes.models == {"net": "0"}
    assert len(runs.rank_runs([tmp_path]).rankings) == 1
    entry = read_entry("one", tmp_path / "one")
    unknown = runs.Hashes(entry.run.hashes.settings, {"net": ""}, entry.run.hashes.data)
    one, two = (
        replace(entry, folder=tmp_path / name, run=entry.run.but(hashes=unknown))
        for name in ("one", "two")
    )
    assert facts(QUESTIONS[0], one) != facts(QUESTIONS[0], two)


def test_the_nearest_run_is_the_one_that_differs_in_nothing_else_either(tmp_path):
    make_run(tmp_path / "average", rule="average", rows=6)
    make_run(tmp_path / "minmax", rows=6)
    make_run(tmp_path / "wide", rows=6, eps=0.2)
    board = runs.rank_runs([tmp_path])
    (alone,) = board.alone
    assert alone.entry.name == "wide"
    assert (
        "The nearest is “minmax”, from which it differs by: radius 0.2 instead of 0.1."
        in alone.reason
    )


def test_of_two_runs_that_are_nearest_to_each_other_one_says_why(tmp_path):
    for name, eps in (("a", 0.1), ("b", 0.2)):
        make_run(tmp_path / name, rows=4, eps=eps)
    first, second = runs.rank_runs([tmp_path]).alone
    assert first.reason.endswith(
        "nearest is “b”, from which it differs by: radius 0.1 instead of 0.2."
    )
    assert second.reason == "Not comparable with “a”, as is said there."


def test_runs_that_agree_on_the_rows_that_count_for_both_are_not_called_the_same(tmp_path):
    model = network(0, 36, 4)
    x = torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    right = model(x).argmax(dim=1)
    rows = torch.arange(8)
    for name, wrong in (("a", rows > 5), ("b", rows < 2), ("c", rows < 2)):
        execute(tmp_path / name, "ensemble", sp.Ensemble([model], x, (right + wrong) % 4))
    folders = [tmp_path / name for name in "abc"]
    (ranking,) = runs.rank_runs(folders[1:]).rankings
    assert outcome(ranking).startswith("Same result: “b” and “c” agree on every row, ")
    (ranking,) = runs.rank_runs(folders[:2]).rankings
    names = " and ".join(f"“{entry.name}”" for entry in ranking.entries)
    assert outcome(ranking) == f"Not separable: {names} agree on the 4 rows that count for both."
    (ranking,) = runs.rank_runs(folders).rankings
    assert outcome(ranking).startswith("Not separable: ")
    assert outcome(ranking).endswith(" may each be first.")
