"""The defence tables: which trainings there are, what is kept of them, and that the page is made of it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.defence import calibrate, figures, networks, page, plan, ship, unseen, work
from benchmarks.defence.__main__ import PAGE, STORE, main
from benchmarks.stores import StoreError
from safetensors.torch import load_file, save

from folders import ROOT
from saddlepoint import cli, data, models
from saddlepoint.evaluation import robust_accuracy
from saddlepoint.experiments.defences import PUBLISHED
from saddlepoint.experiments.truths import packed, unpacked
from saddlepoint.files import write_atomically
from saddlepoint.projections import l2, linf
from saddlepoint.rules import MinMax
from saddlepoint.runs import rule_words
from saddlepoint.training.ampgd import RULE

TINY = plan.Table(
    "tiny",
    "a tiny table",
    {
        **{"data": "mnist-sample", "model": "mnist_cnn_small", "limit": 220, "held_out": 20},
        **{"threat": ["linf:0.1", "l2:1.0"], "epochs": 3, "steps": 1, "ramp": 3},
        **{"test_images": 10, "test_steps": 1, "test_restarts": 1},
    },
    {"AMPGD": {"method": "ampgd"}, "E-AT": {"method": "eat"}},
    seeds=1,
    more={"AMPGD": 2},
    suites={"quick": 30},
)


def network(training: plan.Training, right: dict[str, torch.Tensor], **others: Any) -> Any:
    """What the store would have of a network that is right where it is said."""
    images = len(next(iter(right.values())))
    judged = {
        "images": images,
        **{name: packed(each.tolist(), filled="after") for name, each in right.items()},
    }
    about = {"command": training.settings.command(), "accuracy": 90.0, "sha256": "1"}
    return {**about, **others, "suites": {"quick": judged}}


class TestPlan:
    def test_the_full_recipe_trains_on_all_images(self) -> None:
        assert {each.settings.held_out for each in plan.TABLES["full"].trainings()} == {0}
        assert {each.settings.limit for each in plan.TABLES["full"].trainings()} == {None}

    def test_no_step_of_the_grid_is_cut(self) -> None:
        for each in plan.TABLES["grid"].trainings():
            if each.settings.method == "ampgd":
                rule = rule_words.rule(each.settings.rule)
                assert isinstance(rule, MinMax)
                assert rule.step_size is not None
                assert rule.step_size * rule.gamma <= 1

    def test_the_grid_is_around_the_default_and_not_judged_on_test_images(self) -> None:
        grid = plan.TABLES["grid"]
        first, *_ = grid.trainings()
        assert rule_words.rule(first.settings.rule) == RULE
        assert len([row for row in grid.rows if row.startswith("beta")]) == 9
        assert list(grid.suites) == [unseen.SUITE]

    @pytest.mark.parametrize("name", plan.TABLES)
    def test_every_training_is_a_line_that_the_command_takes(self, name: str) -> None:
        trainings = list(plan.TABLES[name].trainings())
        assert len({training.key for training in trainings}) == len(trainings)
        assert len({training.settings.command() for training in trainings}) == len(trainings)
        for training in trainings:
            assert training.settings.threat

    def test_the_race_gives_every_perturbation_of_every_method_as_many_steps(self) -> None:
        found = list(plan.TABLES["race"].trainings())
        assert {each.settings.steps for each in found} == {30}
        assert {each.settings.method for each in found} == {
            *("ampgd", "msd", "max", "avg", "eat", "ampgd-paper"),
        }
        # Seed by seed: a stop leaves what can be compared.
        assert [each.seed for each in found] == sorted(each.seed for each in found)
        assert [each.seed for each in found].count(2) == 6

    def test_the_budget_table_has_equal_gradients(self) -> None:
        for each in plan.TABLES["budget"].trainings():
            one = each.settings.method in ("msd", "eat")
            assert each.settings.steps * (1 if one else 3) == 45

    def test_more_seeds_of_some_rows(self) -> None:
        assert [(each.row, each.seed) for each in TINY.trainings()] == [
            *(("AMPGD", 0), ("E-AT", 0), ("AMPGD", 1)),
        ]


def about_of(training: plan.Training) -> dict[str, Any]:
    """What is kept of a network beside what suites found."""
    command = training.settings.command()
    return {"command": command, "sha256": "1", "weights": {}, "accuracy": 90.0, "validation": []}


class TestStore:
    def test_of_more_images_the_first_count(self) -> None:
        first, _, _ = TINY.trainings()
        right = {name: torch.arange(50) < 40 for name in ("clean", "linf", "l2")}
        (row,) = page.lines(TINY, "quick", {first.key: network(first, right)})
        assert row.right["union"].shape == (1, 30)
        assert row.share("union") == 100.0

    def test_what_was_trained_otherwise_or_judged_on_fewer_images_is_missing(
        self, tmp_path: Path
    ) -> None:
        store = work.Store(tmp_path / "store.json")
        first, second, third = TINY.trainings()
        right = {name: torch.ones(30, dtype=torch.bool) for name in ("clean", "linf", "l2")}
        store.networks[first.key] = network(first, right)
        store.networks[second.key] = network(second, right, command="saddlepoint train --steps 9")
        few = {name: each[:20] for name, each in right.items()}
        store.networks[third.key] = network(third, few)
        missing = [training.key for training, _, _ in work.missing([TINY], store)]
        assert missing == [second.key, third.key]
        rows = page.lines(TINY, "quick", store.networks)
        assert [(row.row, row.seeds) for row in rows] == [("AMPGD", (0,))]

    def test_what_another_process_has_kept_meanwhile_stays(self, tmp_path: Path) -> None:
        one, two = (work.Store(tmp_path / "store.json") for _ in range(2))
        judged = {"images": 1, "clean": "80", "linf": "00", "l2": "00"}
        for store, training in zip((one, two), TINY.trainings(), strict=False):
            store.keep(training, about_of(training), "quick", judged)
        assert set(two.networks) == {t.key for t in list(TINY.trainings())[:2]}
        assert work.Store(tmp_path / "store.json").content == two.content
        assert [path.name for path in tmp_path.iterdir()] == ["store.json"]

    def test_a_network_that_was_trained_anew_loses_what_was_found_of_the_older(
        self, tmp_path: Path
    ) -> None:
        store = work.Store(tmp_path / "store.json")
        training = next(TINY.trainings())
        about = about_of(training)
        judged = {"images": 1, "clean": "80", "linf": "00", "l2": "00"}
        store.keep(training, about, "quick", judged)
        store.keep(training, about, "autoattack", judged)
        assert set(store.networks[training.key]["suites"]) == {"quick", "autoattack"}
        store.keep(training, {**about, "sha256": "2"}, "quick", judged)
        assert set(store.networks[training.key]["suites"]) == {"quick"}
        assert work.Store(tmp_path / "store.json").content == store.content

    @pytest.mark.parametrize(
        "damage",
        [
            lambda about, judged: judged.pop("l2"),
            lambda about, judged: judged.update(l1="00"),
            lambda about, judged: about.update(accuracy=970),
            lambda about, judged: about.update(accuracy="90"),
        ],
        ids=["a threat less", "a threat more", "no percent", "a text"],
    )
    def test_verdicts_of_other_threats_and_an_accuracy_that_is_none_are_refused(
        self, damage: Callable[[dict[str, Any], dict[str, Any]], object], tmp_path: Path
    ) -> None:
        training, path = next(TINY.trainings()), tmp_path / "store.json"
        judged = {"images": 1, "clean": "80", "linf": "00", "l2": "00"}
        work.Store(path).keep(training, about_of(training), "quick", judged)
        content = json.loads(path.read_text())
        kept = content["trainings"][training.key]
        damage(kept, kept["suites"]["quick"])
        path.write_text(json.dumps(content))
        with pytest.raises(StoreError, match="must be"):
            work.Store(path)


class TestWork:
    def test_stops_goes_on_and_keeps_what_the_evaluation_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        few = replace(TINY, more={}, suites={"quick": 4})
        monkeypatch.setitem(plan.TABLES, "tiny", few)
        ran: list[str] = []

        def spy(line: str) -> None:
            ran.append(line.split()[1])
            if len(ran) == 3:
                raise work.subprocess.CalledProcessError(130, line)
            with pytest.raises(SystemExit) as caught:  # in this process, to be quick
                cli.main(line.split()[1:])
            assert caught.value.code == 0

        monkeypatch.setattr(work, "_run", spy)
        doc = tmp_path / "page.md"
        doc.write_text("before\n<!-- defence -->\n<!-- end of defence -->\nafter\n")
        words = ["tiny", "--runs", tmp_path / "runs", "--store", tmp_path / "s.json", "--page", doc]
        words = [str(word) for word in words]
        assert main(words) == 1
        assert "the same line goes on" in capsys.readouterr().out
        assert main(words) == 0
        # The training that was stopped is done again, the finished ones are not.
        assert ran == ["train", "evaluate", "train", "train", "evaluate"]
        assert main(words) == 0
        assert len(ran) == 5
        stored = json.loads((tmp_path / "s.json").read_text())["trainings"]["tiny/AMPGD/0"]
        folder = tmp_path / "runs" / "tiny" / "ampgd-0" / "train"
        assert stored["sha256"] == models.Card.from_json((folder / "model.json").read_text()).sha256
        x, y = data.sample("mnist", limit=4)
        threats = {"linf": linf(0.1), "l2": l2(1.0)}
        found = robust_accuracy(models.load(folder / "model.safetensors"), x, y, threats, "quick")
        verdict = stored["suites"]["quick"]
        for name in threats:
            broken = torch.stack([o.broken for o in found.outcomes if o.threat == name]).any(dim=0)
            right = found.correct & ~broken
            assert unpacked(verdict[name], 4, filled="after") == tuple(right.tolist())
        (tmp_path / "into").mkdir()
        store = work.Store(tmp_path / "s.json")
        card = ship.ship("mnist-tiny", "tiny/AMPGD/0", store, tmp_path / "runs", tmp_path / "into")
        assert card.robust == {
            "threats": ["linf:0.1", "l2:1.0"],
            "quick": {
                "images": 4,
                "clean": round(100 * found.clean, 2),
                **{name: round(100 * share, 2) for name, share in found.per_threat.items()},
                "union": round(100 * found.union, 2),
            },
        }
        loaded = models.load(tmp_path / "into" / "mnist-tiny.safetensors")
        assert torch.equal(loaded(x), models.load(folder / "model.safetensors")(x))
        text = doc.read_text()
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert "| AMPGD | 1 |" in text
        assert "| E-AT | 1 |" in text

    def test_a_command_that_fails_is_told_by_its_exit_code(self) -> None:
        with pytest.raises(work.subprocess.CalledProcessError) as caught:
            work._run("saddlepoint no-such-command")
        assert caught.value.returncode == 2

    def test_ctrl_c_waits_until_the_command_has_written_what_it_has(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        Path("working.py").write_text(
            "import pathlib, signal, sys, time\n"
            "def stop(*_):\n"
            "    time.sleep(1)\n"
            "    pathlib.Path('written').touch()\n"
            "    sys.exit(130)\n"
            "signal.signal(signal.SIGTERM, stop)\n"
            "pathlib.Path('begun').touch()\n"
            "time.sleep(600)\n"
        )

        def interrupt() -> None:
            while not Path("begun").exists():
                time.sleep(0.05)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        # A shell ignores Ctrl-C for what it runs in the background, as these tests may be.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=interrupt, daemon=True).start()
        try:
            with pytest.raises(KeyboardInterrupt):
                work._run("working")
        finally:
            signal.signal(signal.SIGINT, before)
        assert Path("written").exists()

    def test_after_ctrl_c_the_line_to_go_on_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def stopped(line: str) -> None:
            signal.raise_signal(signal.SIGTERM)

        monkeypatch.setitem(plan.TABLES, "tiny", TINY)
        monkeypatch.setattr(work, "_run", stopped)
        words = ["tiny", "--runs", str(tmp_path / "runs"), "--store", str(tmp_path / "s.json")]
        assert main(words) == 130
        assert capsys.readouterr().out == "stopped; the same line goes on from here\n"

    def test_the_commands_of_all_that_is_missing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(plan.TABLES, "tiny", TINY)
        assert main(["tiny", "--list", "--store", str(tmp_path / "s.json")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines] == ["train", "evaluate"] * 3
        assert all("--resume" in line for line in lines)

    def test_where_nothing_is_missing_it_is_told_how_it_is_done_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["race-l1-12", "--only", "race-l1-12/AMPGD/0", "--list", "--store"]
        assert main([*words, str(ROOT / STORE)]) == 0
        out, err = capsys.readouterr()
        assert (out, err.startswith("nothing of this is missing; another --store")) == ("", True)
        words += [str(tmp_path / "again.json"), "--networks"]
        for folder, programs in ((networks.KEPT, []), (tmp_path, ["train"])):
            assert main([*words, str(ROOT / folder)]) == 0
            lines = capsys.readouterr().out.splitlines()
            assert [each.split()[1] for each in lines] == [*programs, "evaluate", "evaluate"]

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["--only", "tiny/E-AT"], ["e-at-0"]),
            (["--only", "tiny/AMPGD/1", "--only", "tiny/E-AT/0"], ["ampgd-1", "e-at-0"]),
            (["--only", "tiny/AMPGD"], ["ampgd-0", "ampgd-1"]),
            (["--suite", "quick"], ["ampgd-0", "e-at-0", "ampgd-1"]),
            (["--suite", "autoattack"], []),
        ],
    )
    def test_a_part_of_a_table(
        self,
        words: list[str],
        expected: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.setitem(plan.TABLES, "tiny", TINY)
        assert main(["tiny", "--list", "--store", str(tmp_path / "s.json"), *words]) == 0
        trained = [line for line in capsys.readouterr().out.splitlines() if " train " in line]
        assert [Path(line.split()[-1]).parent.name for line in trained] == expected

    def test_a_network_that_no_table_has_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(plan.TABLES, "tiny", TINY)
        with pytest.raises(SystemExit):
            main(["tiny", "--list", "--store", str(tmp_path / "s.json"), "--only", "tiny/MAX"])
        assert "such as tiny/AMPGD/0, got 'tiny/MAX'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ship", "x"], "`key` must be TABLE/ROW/SEED"),
        (["--ship", "x=race/NOPE/0"], "`key` must be TABLE/ROW/SEED"),
        (["--ship", "x=race/AMPGD/0", "--runs", "none", "--networks", "none"], "got none in"),
        (["--render", "--page", "none.md"], "`none.md` must be a page with the marks"),
    ],
)
def test_what_a_user_has_to_mend_is_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(StoreError, match=said):  # of which `exit_with` makes a line and exit code 2
        main(["--store", str(ROOT / STORE), *words])


def test_what_pages_say_of_the_radius_of_l1_is_what_is_stored() -> None:
    stored = work.Store(ROOT / STORE).networks
    plain, larger = (
        {each.row: each for each in page.lines(plan.TABLES[name], "quick", stored)}
        for name in ("race", "race-l1-12")
    )
    assert {r for r in plan.METHODS if larger[r].share("union") > plain[r].share("union")} == (
        plan.METHODS.keys() - {"MSD"}
    )
    every = {(n, r): t[r] for n, t in enumerate((plain, larger)) for r in plan.METHODS}
    assert max(every, key=lambda key: every[key].share("union")) == (1, "AMPGD")
    for name, ahead in (("union", "MSD"), ("l1", "MSD")):
        assert max(plan.METHODS, key=lambda row: plain[row].share(name)) == ahead
    _, low, high = larger["AMPGD"].minus(larger["MAX"]) or pytest.fail("no seed in common")
    assert low < 0 < high
    for row in ("AMPGD", "MAX"):
        assert larger[row].share("union") > plain["MSD"].share("union")
        assert larger[row].share("union") > larger["MSD"].share("union")


class TestWhatPagesSay:
    """Of methods and radii, by hand beside the tables."""

    @pytest.fixture
    def rows(self) -> dict[str, dict[str, page.Line]]:
        stored = work.Store(ROOT / STORE).networks
        names = ("small", "small-l1-12", "race", "race-l1-12")
        return {
            name: {each.row: each for each in page.lines(plan.TABLES[name], "quick", stored)}
            for name in names
        }

    def test_which_methods_gain_on_few_images(self, rows: dict[str, dict[str, page.Line]]) -> None:
        plain, larger = rows["small"], rows["small-l1-12"]
        found = {row: larger[row].minus(plain[row]) or pytest.fail(row) for row in plan.METHODS}
        gained = {row: f"{middle:+.1f}" for row, (middle, low, _) in found.items() if low > 0}
        assert gained == {"AMPGD": "+4.8", "MSD": "+4.0"}
        assert all(high > 0 for _, _, high in found.values())
        for table, row in itertools.product((plain, larger), ("AMPGD", "MAX")):
            _, low, _ = table[row].minus(table["MSD"]) or pytest.fail(row)
            assert low > 0
        assert {each.seeds for each in larger.values()} == {(0,)}
        said = "AMPGD and MSD gain (+4.8 and +4.0 points), E-AT, AVG and MAX stay within chance"
        assert said in (ROOT / PAGE).read_text(encoding="utf-8")

    def test_the_numbers_of_the_advice(self, rows: dict[str, dict[str, page.Line]]) -> None:
        text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
        said = " ".join(text.partition("## Which method?")[2].partition("\n## ")[0].split())

        def unions(table: str, *names: str) -> list[str]:
            return [f"{rows[table][name].share('union'):.1f}" for name in names]

        assert (
            "AMPGD has the highest, {} %, and MAX is level with it ({})".format(
                *unions("race-l1-12", "AMPGD", "MAX")
            )
            in said
        )
        assert f"({', '.join(unions('race-l1-12', 'AVG', 'E-AT', 'MSD'))})" in said
        assert "({}; MAX {}, AMPGD {})".format(*unions("race", "MSD", "MAX", "AMPGD")) in said
        race = [rows[name][row] for name in ("race", "race-l1-12") for row in plan.METHODS]
        assert {len(each.seeds) for each in race} == {3}
        spread = max(max(each.by_seed()) - min(each.by_seed()) for each in race)
        assert f"differ by up to {spread:.1f} points" in said
        stored = work.Store(ROOT / STORE).networks
        judged = [
            len(line.seeds)
            for name in ("race", "race-l1-12")
            for line in page.lines(plan.TABLES[name], "autoattack", stored)
        ]
        assert sum(judged) == 8
        assert "AutoAttack has judged eight of these 30 networks" in said

    def test_tables_of_which_nothing_has_been_run(self) -> None:
        begun = {key.partition("/")[0] for key in work.Store(ROOT / STORE).networks}
        assert plan.TABLES.keys() - begun == {"cifar10", "budget", "full"}, (
            "docs/training.md says that nothing of these three has been run, in *The results tables*"
        )


class TestNetworks:
    """Networks that come with a checkout: of the shipped one, as if it were a row of the tiny table."""

    TABLE = replace(TINY, more={}, rows={"AMPGD": {"method": "ampgd"}}, kept=True)

    @pytest.fixture
    def training(self, tmp_path: Path) -> plan.Training:
        """A training whose network is in the folder of the runs."""
        training = next(self.TABLE.trainings())
        place = networks.in_runs(training, tmp_path / "runs")
        place.parent.mkdir(parents=True)
        for suffix in (".safetensors", ".json"):
            shutil.copyfile(
                ROOT / ship.PARAMETERS / f"mnist-ampgd{suffix}", place.with_suffix(suffix)
            )
        return training

    @staticmethod
    def store(tmp_path: Path, training: plan.Training, sha256: str) -> work.Store:
        store = work.Store(tmp_path / "store.json")
        right = {name: torch.ones(4, dtype=torch.bool) for name in ("clean", "linf", "l2")}
        about = {**about_of(training), "sha256": sha256}
        store.keep(training, about, "quick", network(training, right)["suites"]["quick"])
        return store

    def test_what_is_kept_is_judged_and_not_trained_again(
        self, training: plan.Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        networks.keep(training, tmp_path / "runs", tmp_path / "kept")
        shutil.rmtree(tmp_path / "runs")
        store = self.store(tmp_path, training, models.card("mnist-ampgd").sha256)
        monkeypatch.setattr(work, "train_once", lambda *_: pytest.fail("trained again"))
        ran: list[str] = []

        def judged(line: str) -> None:
            ran.append(line)
            with pytest.raises(SystemExit) as caught:
                cli.main(line.split()[1:])
            assert caught.value.code == 0

        monkeypatch.setattr(work, "_run", judged)
        more = replace(self.TABLE, suites={"quick": 6})
        work.carry_out([more], store, tmp_path / "runs", checkout=tmp_path / "kept")
        (line,) = ran
        assert f"{tmp_path / 'kept' / 'tiny' / 'ampgd-0.safetensors'}:mnist_cnn_small" in line
        assert store.networks[training.key]["suites"]["quick"]["images"] == 6
        told = list(
            work.lines(
                [replace(self.TABLE, suites={"quick": 9})],
                store,
                tmp_path,
                checkout=tmp_path / "kept",
            )
        )
        assert [each.split()[1] for each in told] == ["evaluate"]

    def test_a_network_has_verdicts_of_its_own_where_another_one_was_judged(
        self, training: plan.Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = networks.in_runs(training, tmp_path / "runs")
        card = replace(networks.card_of(file), command=training.settings.command())
        ran: list[str] = []

        def judged(line: str) -> None:
            ran.append(line)
            with pytest.raises(SystemExit) as caught:
                cli.main(line.split()[1:])
            assert caught.value.code == 0

        monkeypatch.setattr(work, "_run", judged)
        parameters = load_file(file)
        for number, factor in enumerate((1.0, 0.97, 1.0)):
            content = save({name: factor * each for name, each in parameters.items()})
            changed = replace(card, sha256=hashlib.sha256(content).hexdigest())
            place = tmp_path / "kept" / "tiny" / "ampgd-0.safetensors"
            write_atomically(place, content)
            write_atomically(place.with_suffix(".json"), changed.to_json().encode())
            store = work.Store(tmp_path / f"{number}.json")
            table = replace(self.TABLE, suites={"quick": 4})
            work.carry_out([table], store, tmp_path / "runs", checkout=tmp_path / "kept")
            assert store.networks[training.key]["sha256"] == changed.sha256
        first, second = ran  # the verdicts of the third are those of the first
        assert first.endswith("/quick")
        assert re.search("/quick-[0-9a-f]{8}$", second)

    def test_parameters_that_are_not_those_of_their_card_are_refused(
        self, training: plan.Training, tmp_path: Path
    ) -> None:
        networks.keep(training, tmp_path / "runs", tmp_path / "kept")
        store = self.store(tmp_path, training, models.card("mnist-ampgd").sha256)
        (file,) = (tmp_path / "kept").rglob("*.safetensors")
        card, damaged = file.with_suffix(".json"), file.read_bytes()[:-1] + b"?"
        for change, said in (
            (lambda: file.write_bytes(damaged), "must be the card of .* got that of others"),
            (lambda: card.write_text("{"), "ampgd-0.json. must be a model card"),
            (lambda: card.write_bytes(b"\xff"), "ampgd-0.json. must be the card of"),
            (card.unlink, "ampgd-0.json. must be the card of"),
        ):
            change()
            with pytest.raises(StoreError, match=said):
                networks.in_checkout(training, store.networks, tmp_path / "kept")
            with pytest.raises(StoreError, match=said):
                networks.of_store(training, store.networks, tmp_path / "none", tmp_path / "kept")

    def test_what_no_suite_has_judged_yet_is_taken_by_its_card(
        self, training: plan.Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        networks.keep(training, tmp_path / "runs", tmp_path / "kept")
        shutil.rmtree(tmp_path / "runs")
        store = work.Store(tmp_path / "store.json")
        assert networks.in_checkout(training, store.networks, tmp_path / "kept") is None
        (file,) = (tmp_path / "kept").rglob("*.safetensors")
        card = replace(networks.card_of(file), command=training.settings.command())
        networks.copy(ROOT / ship.PARAMETERS / "mnist-ampgd.safetensors", file, card)
        assert networks.in_checkout(training, store.networks, tmp_path / "kept") == file
        monkeypatch.setattr(work, "train_once", lambda *_: pytest.fail("trained again"))
        monkeypatch.setattr(work, "_run", lambda line: None)
        every = {name: torch.ones(4, dtype=torch.bool) for name in ("clean", "linf", "l2")}
        right = network(training, every)["suites"]["quick"]
        monkeypatch.setattr(work, "verdicts", lambda folder: right)
        table = replace(self.TABLE, suites={"quick": 4})
        work.carry_out([table], store, tmp_path / "runs", checkout=tmp_path / "kept")
        found = store.networks[training.key]
        assert (found["sha256"], found["accuracy"]) == (card.sha256, card.accuracy)
        assert found["suites"] == {"quick": right}
        work.Store(tmp_path / "store.json")  # what is stored can be read

    def test_what_was_judged_of_a_network_that_is_trained_anew_is_judged_again(
        self, training: plan.Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, anew = self.store(tmp_path, training, "a" * 64), about_of(training)
        every = {name: torch.ones(4, dtype=torch.bool) for name in ("clean", "linf", "l2")}
        right = network(training, every)["suites"]["quick"]
        monkeypatch.setattr(work, "train_once", lambda *_: None)
        monkeypatch.setattr(work, "described", lambda *_: {**anew, "sha256": "b" * 64})
        monkeypatch.setattr(work, "_run", lambda line: None)
        monkeypatch.setattr(work, "verdicts", lambda folder: right)
        table = replace(self.TABLE, suites={"quick": 4, "autoattack": 4}, kept=False)
        work.carry_out([table], store, tmp_path / "runs", checkout=tmp_path / "kept")
        found = store.networks[training.key]
        assert (found["sha256"], sorted(found["suites"])) == ("b" * 64, ["autoattack", "quick"])

    def test_another_network_than_that_of_the_store_is_not_taken(
        self, training: plan.Training, tmp_path: Path
    ) -> None:
        networks.keep(training, tmp_path / "runs", tmp_path / "kept")
        store = self.store(tmp_path, training, "1")
        assert networks.in_checkout(training, store.networks, tmp_path / "kept") is None
        for runs, said in (("runs", "got another one"), ("empty", "got none")):
            with pytest.raises(ValueError, match=said):
                networks.of_store(training, store.networks, tmp_path / runs, tmp_path / "kept")
        store = self.store(tmp_path, training, models.card("mnist-ampgd").sha256)
        file, card = networks.of_store(
            training, store.networks, tmp_path / "empty", tmp_path / "kept"
        )
        assert file.parent.parent == tmp_path / "kept"
        assert card == models.card("mnist-ampgd")

    def test_tables_that_do_not_ask_for_it_keep_none(
        self, training: plan.Training, tmp_path: Path
    ) -> None:
        networks.keep(replace(training, kept=False), tmp_path / "runs", tmp_path / "kept")
        assert not (tmp_path / "kept").exists()

    def test_networks_of_the_checkout_are_those_of_the_store(self) -> None:
        stored = work.Store(ROOT / STORE).networks
        every = [t for table in plan.TABLES.values() if table.kept for t in table.trainings()]
        found = [networks.in_checkout(each, stored, ROOT / networks.KEPT) for each in every]
        files = sorted((ROOT / networks.KEPT).rglob("*.safetensors"))
        assert sorted(file for file in found if file is not None) == files


class TestCalibration:
    def test_a_threat_below_the_mean_gets_a_larger_radius_within_its_bounds(self) -> None:
        tested = {"linf": 0.3, "l2": 2.0, "l1": 10.0}
        found = calibrate.moved(tested, tested, {"linf": 0.6, "l2": 0.6, "l1": 0.3}, rate=0.5)
        assert found == pytest.approx({"linf": 0.3, "l2": 2.0, "l1": 10 * math.exp(0.5 * 0.2)})
        again = calibrate.moved(tested, found, {"linf": 0.5, "l2": 0.4, "l1": 0.6}, rate=0.5)
        assert again["l1"] == pytest.approx(found["l1"] * math.exp(-0.05))
        assert again["l2"] == pytest.approx(2 * math.exp(0.05))
        wide = calibrate.moved(tested, tested, {"linf": 1.0, "l2": 1.0, "l1": 0.0}, rate=9.0)
        assert wide == {"linf": 0.3, "l2": 2.0, "l1": 15.0}

    def test_equal_accuracies_are_a_fixed_point(self) -> None:
        radii = {"linf": 0.33, "l1": 12.0}
        same = calibrate.moved({"linf": 0.3, "l1": 10.0}, radii, {"linf": 0.5, "l1": 0.5})
        assert same == pytest.approx(radii)

    def test_rounds_are_kept_and_gone_on_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trained: list[list[str]] = []
        monkeypatch.setattr(
            calibrate, "train_once", lambda settings, _: trained.append(settings.train_radius)
        )
        training = next(TINY.trainings())

        def judge(file: Path) -> dict[str, float]:
            assert file.parent.name == f"round-{len(trained) - 1}"
            return {"linf": 0.5, "l2": 0.3}

        calibrate.calibrate(training, 1, tmp_path, judge)
        done = calibrate.calibrate(training, 3, tmp_path, judge)
        assert trained[0] == ["linf:0.1", "l2:1"]
        assert [len(trained), len(done)] == [3, 3]
        for n in range(3):
            assert trained[n][1] == f"l2:{math.exp(0.1 * n):.6g}"
        assert json.loads((tmp_path / "calibrate" / "tiny" / "ampgd-0.json").read_text()) == done

    @pytest.mark.parametrize(
        "text",
        [
            '[{"radii": {"linf',
            "{}",
            "[1]",
            '[{"radii": {"linf": 0.1, "l2": NaN}, "accuracy": {"linf": 0.5, "l2": 0.5}}]',
            '[{"radii": {"linf": 0.1, "l2": 1.0}, "accuracy": {"linf": 0.5, "l2": "x"}}]',
            '[{"radii": {"linf": 0.1, "l2": 1.0}, "accuracy": {"linf": 0.5}}]',
        ],
    )
    def test_rounds_that_are_not_as_they_were_written_are_refused(
        self, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(calibrate, "train_once", lambda *_: pytest.fail("trained"))
        training = next(TINY.trainings())
        file = tmp_path / "calibrate" / "tiny" / "ampgd-0.json"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        with pytest.raises(StoreError, match="move it away to begin anew"):
            calibrate.calibrate(training, 2, tmp_path, lambda _: {})

    def test_what_cannot_be_judged_is_not_trained(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(calibrate, "train_once", lambda *_: pytest.fail("trained"))
        with pytest.raises(SystemExit):
            calibrate.main(["full", "AMPGD"])
        assert "must leave training images aside" in capsys.readouterr().err


class TestUnseen:
    @pytest.fixture(autouse=True)
    def images(self, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the embedded images for those of training, which are downloaded."""
        x, y = data.sample("mnist", limit=230)

        def load(name: str, split: str, limit: int) -> tuple[torch.Tensor, torch.Tensor]:
            assert split == "train"
            return x[:limit], y[:limit]

        monkeypatch.setattr(unseen.data, "load", load)
        return x, y

    def test_images_are_those_that_training_has_not_seen(
        self, images: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        settings = next(TINY.trainings()).settings
        x, y = unseen.images_behind(settings, 5)
        assert torch.equal(x, images[0][220:225])
        assert torch.equal(y, images[1][220:225])
        with pytest.raises(ValueError, match="`images` must be at most 10"):
            unseen.images_behind(settings, 11)

    def test_a_training_on_all_images_leaves_none(self) -> None:
        with pytest.raises(ValueError, match="must leave training images aside"):
            unseen.images_behind(next(plan.TABLES["full"].trainings()).settings, 5)

    def test_what_is_kept_is_what_the_evaluation_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        few = replace(TINY, rows={"AMPGD": {"method": "ampgd"}}, more={}, suites={"unseen": 5})
        training = next(few.trainings())
        monkeypatch.setattr(work, "train_once", lambda *_: None)
        monkeypatch.setattr(
            work,
            "described",
            lambda *_: network(training, {"clean": torch.ones(1, dtype=torch.bool)}),
        )
        asked = {}

        def judged(settings: Any, images: int, file: Path) -> Any:
            asked["file"] = file
            x, y = unseen.images_behind(settings, images)
            found = robust_accuracy(
                models.load("mnist-c"), x, y, {"linf": linf(0.1), "l2": l2(1.0)}
            )
            asked["found"] = found
            return found

        monkeypatch.setattr(unseen, "judged", judged)
        store = work.Store(tmp_path / "store.json")
        work.carry_out([few], store, tmp_path)
        assert asked["file"] == training.folder(tmp_path) / "train" / "model.safetensors"
        (row,) = page.lines(few, "unseen", store.networks)
        found = asked["found"]
        assert row.share("union") == pytest.approx(100 * found.union)
        for name, share in found.per_threat.items():
            assert row.share(name) == pytest.approx(100 * share)
        assert 0 < found.per_threat["linf"] < 1
        assert "training images that no row has seen, 5 images" in page.rendered(
            few, "unseen", store.networks
        )
        assert list(work.missing([few], store)) == []
        assert [
            line.split()[0] for line in work.lines([few], work.Store(tmp_path / "s"), tmp_path)
        ] == [
            *("saddlepoint", "python"),
        ]


class TestPage:
    def test_means_spread_and_paired_differences_by_hand(self) -> None:
        first, second, third = TINY.trainings()
        every = torch.ones(30, dtype=torch.bool)

        def left(count: int) -> torch.Tensor:
            return torch.arange(30) < count

        networks = {
            first.key: network(first, {"clean": every, "linf": left(20), "l2": left(12)}),
            third.key: network(third, {"clean": every, "linf": left(9), "l2": left(21)}),
            second.key: network(second, {"clean": every, "linf": left(6), "l2": left(30)}),
        }
        ampgd, eat = page.lines(TINY, "quick", networks)
        assert ampgd.share("linf") == pytest.approx(100 * (20 + 9) / 60)
        assert ampgd.share("union") == pytest.approx(100 * (12 + 9) / 60)
        found = ampgd.minus(eat)
        assert found is not None
        # Only seed 0 is common: images 6 to 11 are the difference, and one more is counted on either side.
        middle, square = 6 / 32, 8 / 32
        error = 1.959964 * math.sqrt((square - middle**2) / 32)
        wanted = [100 * 6 / 30, 100 * (middle - error), 100 * (middle + error)]
        assert found == pytest.approx(tuple(wanted))
        text = page.rendered(TINY, "quick", networks)
        assert "**35.0** [30.0, 40.0]" in text
        assert "seed 0)" in text  # of the difference
        assert "Highest union over seed 0, which all of these rows have: AMPGD, 40.0." in text
        assert "Judged so far" not in text  # all of them have
        assert "| AMPGD | 2 | 90.0 | 48.3 [30.0, 66.7] | 55.0 [40.0, 70.0] |" in text
        assert "| E-AT | 1 | 90.0 | 20.0 | 100.0 |" in text
        _, by_threat = text.split("AMPGD minus each row, threat by threat:")
        assert "| E-AT | +46.7 (+24.5 to +63.0, seed 0) | -60.0 (" in by_threat

    def test_rows_are_compared_over_the_seeds_that_they_share(self) -> None:
        table = replace(TINY, seeds=2, more={})
        left = {("AMPGD", 0): 20, ("AMPGD", 1): 10, ("E-AT", 0): 18, ("E-AT", 1): 2}
        networks = {}
        for each in table.trainings():
            union = torch.arange(30) < left[each.row, each.seed]
            networks[each.key] = network(each, {"clean": union, "linf": union, "l2": union})
        text = page.rendered(table, "quick", networks)
        assert "Highest mean union: AMPGD, 50.0." in text
        assert "seed 0" not in text
        del networks["tiny/E-AT/1"]  # whose mean would then be above AMPGD's
        text = page.rendered(table, "quick", networks)
        assert "Highest union over seed 0, which all of these rows have: AMPGD, 66.7." in text
        assert "Judged so far: 3 of the 4 networks of this table; missing: E-AT, seed 1." in text
        del networks["tiny/AMPGD/0"]
        assert "Highest" not in page.rendered(table, "quick", networks)  # no seed is shared

    def test_the_papers_rows_stand_beside_those_of_the_same_suite_and_method(self) -> None:
        table = replace(plan.TABLES["cifar10"], suites={"quick": 30, "autoattack": 30})
        right = {name: torch.ones(30, dtype=torch.bool) for name in ("clean", "linf", "l2", "l1")}
        networks = {}
        for each in table.trainings():
            found = network(each, right)
            found["suites"]["autoattack"] = found["suites"]["quick"]
            networks[each.key] = found
        head, _, *rows = page.rendered(table, "autoattack", networks).splitlines()[2:]
        assert "the paper's network: linf / l2 / l1 / union" in head
        cells = {
            row.split("|")[1].strip(): row.split("|")[-2].strip()
            for row in itertools.takewhile(lambda row: row, rows)
        }
        assert cells["AMPGD"] == "46.9 / 64.4 / 52.3 / 46.2"
        assert cells["E-AT"] == ""
        assert "paper" not in page.rendered(table, "quick", networks)

    def test_no_published_union_is_above_a_threat(self) -> None:
        for rows in PUBLISHED.values():
            assert rows["AMPGD"][3] == max(row[3] for row in rows.values())
            for *threats, union in rows.values():
                assert union <= min(threats)

    def test_weights_over_seeds(self) -> None:
        table = replace(TINY, rows={"l2 1": {"method": "ampgd"}}, seeds=2, more={}, weights=True)
        right = {name: torch.ones(30, dtype=torch.bool) for name in ("clean", "linf", "l2")}
        networks = {
            each.key: network(each, right, weights={"linf": 0.6 - each.seed / 10, "l2": 0.4})
            for each in table.trainings()
        }
        text = page.rendered(table, "quick", networks)
        assert "| l2 1 | 2 | 0.55 [0.50, 0.60] | 0.40 [0.40, 0.40] |" in text
        assert "2 of 2 networks" in text

    def test_nothing_is_said_of_tables_without_networks(self) -> None:
        assert page.rendered(TINY, "quick", {}) == ""
        (section,) = page.sections({})
        assert section.startswith("### Tables of which nothing has been run yet\n")
        assert re.findall(r"^\* `([^`]+)`: ", section, re.MULTILINE) == list(plan.TABLES)

    def test_suites_of_a_table_that_has_rows_are_named_where_they_have_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = replace(TINY, suites={"quick": 30, "autoattack": 30}, note="A note.")
        monkeypatch.setattr(page, "TABLES", {"tiny": table})
        first = next(table.trainings())
        every = {name: torch.ones(30, dtype=torch.bool) for name in ("clean", "linf", "l2")}
        (section,) = page.sections({first.key: network(first, every)})
        assert "`python -m benchmarks.defence tiny`. A note.\n" in section
        assert section.endswith("AutoAttack: not run yet.\n")

    def test_each_method_in_its_better_table_minus_the_best_of_the_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = replace(TINY, name="other", seeds=2, more={})
        table = replace(other, name="tiny", beside="other")
        monkeypatch.setattr(page, "TABLES", {"other": other, "tiny": table})
        left = {
            **{("other", "AMPGD"): (10, 12), ("other", "E-AT"): (16, 18)},
            **{("tiny", "AMPGD"): (15, 25), ("tiny", "E-AT"): (9, 9)},
        }
        networks = {}
        for each in (*other.trainings(), *table.trainings()):
            union = torch.arange(30) < left[each.table, each.row][each.seed]
            networks[each.key] = network(each, {"clean": union, "linf": union, "l2": union})
        text = page.rendered(table, "quick", networks)
        _, better = text.split("Each method as it is better, here or in `other`")
        ampgd, eat = better.strip().splitlines()[-2:]
        assert ampgd.startswith("| AMPGD | `tiny` | **66.7** [50.0, 83.3] | +10.0 (")
        assert ampgd.endswith(" | -3.3, +23.3 |")
        assert eat == "| E-AT | `other` | **56.7** [53.3, 60.0] |  |  |"
        del networks["tiny/E-AT/1"]  # another seed might be the better one
        assert "as it is better" not in page.rendered(table, "quick", networks)

    def test_cards_of_shipped_networks_say_what_the_summaries_say(self) -> None:
        stored = work.Store(ROOT / STORE).networks
        by_hash = {network["sha256"]: (key, network) for key, network in stored.items()}
        cards = [models.card(name) for name in models.shipped()]
        for card in (card for card in cards if card.robust is not None):
            key, network = by_hash[card.sha256]
            table, row, _ = key.split("/")
            assert card.command == network["command"]
            for suite, verdict in network["suites"].items():
                line = page.line_of(row, [(0, network)], suite, verdict["images"])
                said = {name: round(line.share(name), 2) for name in line.right}
                assert card.robust[suite] == {"images": verdict["images"], **said}, table

    def test_the_guide_says_what_cards_of_shipped_networks_lack(self) -> None:
        guide = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
        _, said = guide.split("## Networks to load")
        cards = {name: models.card(name).robust for name in models.shipped()}
        robust = {name: card for name, card in cards.items() if card is not None}
        assert all(card.keys() == {"threats", "quick"} for card in robust.values())
        assert all(name.startswith("mnist") for name in robust)
        assert "AutoAttack has not\njudged them, and there is none for CIFAR-10 yet" in said
        images = {name: card["quick"]["images"] for name, card in robust.items()}
        assert images.pop("mnist-ampgd") == 1000
        assert set(images.values()) == {500}

    def test_docs_are_what_the_summaries_give(self) -> None:
        content = work.Store(ROOT / STORE).content
        text = (ROOT / PAGE).read_text(encoding="utf-8")
        assert f"<!-- defence -->\n{page.document(content)}<!-- end of defence -->" in text, (
            "write it again: python -m benchmarks.defence --render"
        )


class TestFigures:
    @staticmethod
    def content() -> dict[str, Any]:
        """Two seeds of a row of the race, one of the other, and two radii, one of them with two seeds."""
        epochs = [[(0.5, 0.25), (0.75, 0.5)], [(0.25, 0.25), (1.0, 0.75)], [(0.5, 0.5), (0.5, 0.5)]]
        keys = ("race/AMPGD/0", "race/AMPGD/1", "race/MSD/0")
        kept: dict[str, Any] = {
            key: {"validation": [{"clean": 1.0, "l2": a, "union": b} for a, b in each]}
            for key, each in zip(keys, epochs, strict=True)
        }
        for key, weight in (("l2 4/0", 0.75), ("l2 1/0", 0.25), ("l2 1/1", 0.5)):
            kept[f"weights/{key}"] = {"weights": {"linf": 1 - weight, "l2": weight}}
        return {"trainings": kept}

    def test_lines_are_means_in_bands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sheets = []
        monkeypatch.setattr(
            figures.drawing, "draw", lambda sheet, folder: sheets.append(sheet) or []
        )
        figures.draw(self.content(), tmp_path)
        (msd, ampgd), (weights,) = (sheet.panels for sheet in sheets)
        assert [panel.title for panel in (msd, ampgd)] == ["MSD, 1 seed", "AMPGD, 2 seeds"]
        threat, union = ampgd.curves
        assert (threat.label, threat.x, threat.y) == ("l2", (1.0, 2.0), (37.5, 87.5))
        assert (threat.low, threat.high) == ((25.0, 75.0), (50.0, 100.0))
        assert (union.label, union.y) == ("union", (25.0, 62.5))
        assert msd.curves[0].low == ()
        linf, l2 = weights.curves
        assert (l2.x, l2.y, l2.low) == ((1.0, 4.0), (0.375, 0.75), (0.25, 0.75))
        assert linf.y == (0.625, 0.25)

    def test_files_are_drawn_and_only_those_that_there_is_something_for(
        self, tmp_path: Path
    ) -> None:
        files = figures.draw(self.content(), tmp_path)
        assert [file.name for file in files] == [
            *("defence-accuracy.png", "defence-accuracy.svg"),
            *("defence-weights.png", "defence-weights.svg"),
        ]
        assert all(file.stat().st_size > 5000 for file in files)
        assert figures.draw({"trainings": {}}, tmp_path) == []
