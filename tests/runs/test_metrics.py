"""The numbers of a run: counted by hand, written, read back, and refused where a key is wrong."""

from __future__ import annotations

import json

import pytest
import torch

from run_factory import make_evaluation, make_run
from saddlepoint import runs
from saddlepoint.runs.metrics import Evaluations


class TestAttack:
    def test_by_hand(self):
        fooled = torch.tensor([[1, 1], [1, 0], [1, 1], [0, 0]], dtype=torch.bool)
        wrong = torch.tensor([[0, 0], [0, 0], [1, 1], [0, 0]], dtype=torch.bool)
        weak = torch.tensor([[1, 0], [1, 0], [1, 1], [0, 0]], dtype=torch.bool)
        weights = torch.tensor([[0.25, 0.75]]).expand(4, 2)
        tensors = {"fooled": fooled, "clean_fooled": wrong, "weights": weights}
        tensors |= {"baseline.fooled": weak, "baseline.weights": weights}
        spent = torch.tensor([1, 2, 3, 51])
        tensors |= {"num_forwards": spent, "baseline.num_forwards": 2 * spent}
        metrics = runs.summarise(["A", "B"], tensors, baseline=True)
        assert metrics.asr_all == 50
        assert metrics.asr_mean == 62.5
        assert metrics.accuracy == {"A": 25.0, "B": 50.0}
        assert metrics.clean_accuracy == {"A": 75.0, "B": 75.0}
        assert metrics.weights == {"A": 0.25, "B": 0.75}
        assert metrics.evaluations == Evaluations(total=57, per_row=14.25)
        assert metrics.baseline.evaluations == Evaluations(total=114, per_row=28.5)
        assert metrics.baseline.asr_all == 25
        assert metrics.lift == 100
        # Row 2 was wrong from the start: of the other three the attack fools the first, the baseline none.
        assert (metrics.rows, metrics.rows_correct) == (4, 3)
        assert metrics.asr_all_among_correct == pytest.approx(33.3333)
        assert metrics.baseline.asr_all_among_correct == 0
        assert metrics.lift_among_correct is None
        assert "lift_among_correct" not in metrics.plain()
        # Wilson, 1 of 3: centre (1/3 + z²/6) / (1 + z²/3), half z sqrt(2/27 + z²/36) / (1 + z²/3)
        low, high = metrics.intervals.asr_all_among_correct
        assert (low, high) == pytest.approx((6.1492, 79.2340), abs=1e-3)
        low, high = metrics.baseline.intervals.asr_all_among_correct
        assert (low, high) == pytest.approx((0.0, 56.1497), abs=1e-3)
        # Wilson, 2 of 4, z = 1.96: centre (0.5 + z²/8) / (1 + z²/4) = 0.5
        low, high = metrics.intervals.asr_all
        assert (low, high) == pytest.approx((15.0036, 84.9964), abs=1e-3)

    def test_nothing_can_be_said_where_nothing_was_right(self):
        yes = torch.ones(3, 2, dtype=torch.bool)
        tensors = {"fooled": yes, "clean_fooled": yes, "weights": torch.full((3, 2), 0.5)}
        tensors["num_forwards"] = torch.ones(3, dtype=torch.long)
        metrics = runs.summarise(["A", "B"], tensors, baseline=False)
        assert (metrics.asr_all, metrics.rows_correct) == (100, 0)
        assert "asr_all_among_correct" not in metrics.plain()
        assert metrics.rate is metrics.intervals.asr_all_among_correct is None

    def test_both_lifts(self):
        fooled = torch.tensor([[1], [1], [1], [0]], dtype=torch.bool)
        wrong = torch.tensor([[1], [0], [0], [0]], dtype=torch.bool)
        weak = torch.tensor([[1], [1], [0], [0]], dtype=torch.bool)
        ones = torch.ones(4, 1)
        tensors = {"fooled": fooled, "clean_fooled": wrong, "weights": ones}
        tensors |= {"baseline.fooled": weak, "baseline.weights": ones}
        tensors |= {"num_forwards": ones[:, 0], "baseline.num_forwards": ones[:, 0]}
        metrics = runs.summarise(["A"], tensors, baseline=True)
        assert metrics.lift == 50  # 3 of 4 against 2 of 4, as in the paper
        assert metrics.lift_among_correct == pytest.approx(100, abs=1e-3)  # 2 of 3 against 1 of 3

    def test_no_lift_over_a_baseline_of_zero(self):
        assert runs.lift(50, 0) is None
        assert runs.lift(90.16, 48.17) == pytest.approx(87.17, abs=0.005)  # the paper's Table 1


@pytest.mark.parametrize("domains", [1, 2])
class TestReadBack:
    """`run.json` holds exactly what the dataclass says, for one domain as for several."""

    def test_an_attack(self, tmp_path, domains):
        run = make_run(tmp_path, rows=6, domains=domains)
        metrics = runs.AttackMetrics.read(runs.Run.read(tmp_path).metrics)
        tensors = runs.read_results(tmp_path)[1]
        assert metrics == runs.summarise(run.domains, tensors, baseline=True)
        assert metrics.plain() == json.loads((tmp_path / "run.json").read_text())["metrics"]
        design = {"asr_all", "asr_all_among_correct", "asr_mean", "accuracy", "lift", "weights"}
        assert design <= set(metrics.plain())
        assert set(metrics.accuracy) == set(metrics.weights) == set(run.domains)

    def test_an_evaluation(self, tmp_path, domains):
        run = make_evaluation(tmp_path, rows=6, domains=domains)
        metrics = runs.EvaluationMetrics.read(runs.Run.read(tmp_path).metrics)
        assert metrics.plain() == json.loads((tmp_path / "run.json").read_text())["metrics"]
        assert tuple(metrics.domains) == run.domains
        assert metrics.union <= min(each.union for each in metrics.domains.values())
        assert bool(metrics.joint) == (domains > 1)
        for each in metrics.domains.values():
            assert {outcome.threat for outcome in each.attacks} == {"linf", "l2"}
            for threat, left in each.robust.items():
                first = sum(a.first for a in each.attacks if a.threat == threat)
                assert left == pytest.approx(each.clean - 100 * first / 6, abs=1e-3)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"), rows=4, domains=1).metrics


class TestRefused:
    def test_a_missing_key(self, plain):
        less = {key: value for key, value in plain.items() if key != "asr_all"}
        with pytest.raises(ValueError, match="must be those of an attack, got no `asr_all`"):
            runs.AttackMetrics.read(less)

    def test_an_unknown_key(self, plain):
        with pytest.raises(ValueError, match="got an unknown `asr_most`"):
            runs.AttackMetrics.read({**plain, "asr_most": 1.0})

    @pytest.mark.parametrize("value", ["12", None, [1.0]])
    def test_a_wrong_value(self, plain, value):
        intervals = {**plain["intervals"], "asr_all": [0.0, value]}
        with pytest.raises(ValueError, match=r"as `intervals\.asr_all"):
            runs.AttackMetrics.read({**plain, "intervals": intervals})

    def test_metrics_of_another_kind(self, plain):
        with pytest.raises(ValueError, match="must be those of an evaluation, got"):
            runs.EvaluationMetrics.read(plain)
