"""Pages, plots and bars of a result in Python, without the command line."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import saddlepoint as sp
from saddlepoint import models, report, runs
from saddlepoint.evaluation.domains import robust_domains
from saddlepoint.runs.unsaved import as_run


@pytest.fixture(scope="module")
def problem() -> sp.Ensemble:
    x, y = sp.data.sample("mnist", 8)
    return sp.Ensemble([models.load("mnist-a"), models.load("mnist-c")], x, y, names=["A", "C"])


@pytest.fixture(scope="module")
def result(problem: sp.Ensemble) -> sp.AttackResult:
    return sp.attack(problem, sp.linf(0.12), steps=8)


def test_the_page_of_a_result_is_that_of_the_same_run(
    problem: sp.Ensemble, result: sp.AttackResult, tmp_path: Path
) -> None:
    path = result.report(tmp_path / "new" / "attack.html", data="mnist", classes="abcdefghij")
    page = path.read_text(encoding="utf-8")
    rates = sp.success_rates(problem, result.delta)
    run, tensors = as_run(result, data="mnist", classes="abcdefghij")
    assert run.metrics["asr_all"] == 100 * rates.all
    assert run.metrics["asr_all_among_correct"] == round(100 * rates.among_correct, 4)
    assert torch.equal(tensors["fooled"], rates.fooled)
    assert run.domains == ("A", "C")
    assert "Ensemble attack on mnist" in page
    assert f"{100 * rates.among_correct:.1f}&thinsp;%" in page
    assert "∞ ≤ 0.12" in page
    assert "min-max" in page
    assert page == report.page.render(run.but(created=run.created), tensors)
    # Through the same store and reader as a run of the command line.
    folder = tmp_path / "run"
    folder.mkdir()
    with runs.opened(run.but(status="running", metrics={}), folder) as execution:
        execution.finish(runs.AttackMetrics.of(run), tensors, seconds=0.0)
    assert f"{100 * rates.among_correct:.1f}&thinsp;%" in report.write_report(folder).read_text()


def test_pages_of_groups_and_views(problem: sp.Ensemble, tmp_path: Path) -> None:
    x, y = problem.x, problem.labels[:, 0]
    group = sp.Universal(problem.models[0], x.reshape(2, 4, 1, 28, 28), y.reshape(2, 4))
    views = sp.Transformed(problem.models[0], [sp.transforms.identity, sp.transforms.hflip], x, y)
    for each, title in ((group, "Universal perturbation"), (views, "Attack through")):
        found = sp.attack(each, sp.l2(torch.linspace(0.5, 1, len(each))), steps=2)
        page = found.report(tmp_path / "one.html").read_text(encoding="utf-8")
        assert title in page
        assert "0.5 to 1" in page  # a radius per row


def test_what_cannot_be_reported_is_refused_in_one_sentence(
    problem: sp.Ensemble, result: sp.AttackResult, tmp_path: Path
) -> None:
    class Own(sp.AbstractWeightRule):
        def init(self, losses: torch.Tensor) -> torch.Tensor:
            return sp.Average().init(losses)

        def update(self, weights: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
            return weights

    own = sp.attack(problem, sp.linf(0.1), rule=Own(), steps=1)
    assert ">Own<" in own.report(tmp_path / "own.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"`path` must be a file such as attack\.html"):
        result.report(tmp_path)
    aimed = sp.attack(problem, sp.linf(0.1), steps=1, targeted=True)
    with pytest.raises(ValueError, match="must know the true classes to be reported"):
        aimed.report(tmp_path / "x.html")
    bare = sp.AttackResult(**{**vars(result), "asked": None})
    with pytest.raises(ValueError, match="`result` must know what was asked"):
        bare.report(tmp_path / "x.html")
    part = sp.AttackResult(**{**vars(result), "completed": torch.arange(8) < 3})
    with pytest.raises(ValueError, match="that came to its end, got 3 of 8 rows"):
        part.report(tmp_path / "x.html")
    assert not (tmp_path / "x.html").exists()


def test_a_plot_shows_mean_weights_and_losses_over_the_steps(
    result: sp.AttackResult, tmp_path: Path
) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    figure = result.plot()
    assert figure.legends
    assert plt.fignum_exists(figure.number)  # so that a script's `plt.show()` shows it
    assert len(pickle.loads(pickle.dumps(figure)).axes) == 2
    figure.savefig(tmp_path / "weights.png")
    weights, losses = figure.axes
    try:
        assert [line.get_label() for line in weights.lines] == ["A", "C"]
        for panel, series in ((weights, result.history.weights), (losses, result.history.losses)):
            for k, line in enumerate(panel.lines):
                torch.testing.assert_close(
                    torch.tensor(line.get_ydata()), series[:, :, k].double().mean(dim=1)
                )
        _, own = plt.subplots(2)
        assert result.plot(own) is own[1].figure
        assert own[1].get_legend() is not None
        with pytest.raises(ValueError, match="`axes` must be 2, for mean weight and mean loss"):
            result.plot(own[:1])
    finally:
        plt.close("all")


def test_a_bar_tells_rows_done_and_fooled(
    problem: sp.Ensemble, result: sp.AttackResult, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[sp.Progress] = []
    shown = sp.attack(problem, sp.linf(0.12), steps=8, progress=True, callback=seen.append)
    assert torch.equal(shown.delta, result.delta)
    out, err = capsys.readouterr()
    assert not out
    # One line for what takes seconds, nothing of a bar where there is no terminal.
    assert err == f"attack: 8/8 rows done, {int(result.success.sum())} fooled\n"
    assert seen[-1].done == 8
    sp.apgda(problem, sp.linf(0.12), steps=1, progress=True)
    assert "attack: 8/8 rows done" in capsys.readouterr().err


def test_evaluation_and_training_show_a_bar_too(
    problem: sp.Ensemble, capsys: pytest.CaptureFixture[str]
) -> None:
    first, x, y = problem.models[0], problem.x, problem.labels[:, 0]
    threats = {"linf": sp.linf(0.12)}
    seen: list[sp.EvaluationProgress] = []
    plain = sp.robust_accuracy(first, x, y, threats)
    assert capsys.readouterr().err == ""
    shown = sp.robust_accuracy(first, x, y, threats, progress=True, callback=seen.append)
    assert shown.union == plain.union
    out, err = capsys.readouterr()
    assert not out
    assert re.fullmatch(r"(evaluation: linf ours, [\w-]+ \(\d/3\): \d/8 not fooled yet\n)+", err)
    assert err.endswith(f": {seen[-1].not_fooled}/8 not fooled yet\n")
    # From a loader the bar is opened once, and tells of the part in memory.
    pairs = torch.utils.data.TensorDataset(x, y)
    sp.robust_accuracy(first, pairs, threats, batch_size=1, progress=True)
    assert capsys.readouterr().err.count("evaluation: linf ours, cross-entropy (1/3): ") == 2
    sp.robust_domains(problem, threats, searches=0, steps=2, progress=True)
    assert "evaluation: A linf ours, cross-entropy (1/" in capsys.readouterr().err
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0].numel(), 10))
    steps: list[sp.TrainingProgress] = []
    how: dict[str, Any] = {"epochs": 2, "steps": 2, "progress": True, "callback": steps.append}
    sp.train(network, [(x, y)], threats, **how)
    assert len(steps) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line[:23] for line in lines] == ["training  epoch 1/2  lo", "training  epoch 2/2  lo"]


WITHOUT_EXTRAS = """
import sys
sys.modules |= dict.fromkeys(("rich", "matplotlib", "jinja2"))
import torch, saddlepoint as sp
problem = sp.Ensemble([torch.nn.Identity().eval()], torch.eye(3), torch.arange(3))
result = sp.attack(problem, sp.linf(0.1), steps=1)
for show in (
    lambda: sp.attack(problem, sp.linf(0.1), steps=1, progress=True),
    lambda: result.plot(),
    lambda: result.report("x.html"),
):
    try:
        show()
    except ImportError as error:
        print(error)
"""


def test_missing_extras_are_named_and_the_core_does_without_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(sp.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    for module, line in zip(
        ("rich", "matplotlib", "jinja2"), done.stdout.splitlines(), strict=True
    ):
        assert f"{module}; install it with pip install 'saddlepoint[show]'" in line


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (sp.MinMax(), "minmax:gamma=0.3,step_size=auto"),
        (sp.MinMax(step_size=0.02, gamma=3), "minmax:gamma=3,step_size=0.02"),
        (sp.Average(), "average"),
        (sp.WorstCase(), "worst"),
        (sp.Entropic(step_size=0.5), "entropic:step_size=0.5"),
        (sp.Fixed([0.25, 0.75]), "fixed:0.25,0.75"),
    ],
)
def test_rules_are_written_as_the_command_line_writes_them(
    problem: sp.Ensemble, rule: sp.AbstractWeightRule, text: str
) -> None:
    few = problem.take(torch.arange(1))
    run, _ = as_run(sp.attack(few, sp.linf(0.1), rule=rule, steps=1))
    assert run.settings["rule"] == text


def test_pages_of_evaluations(problem: sp.Ensemble, tmp_path: Path) -> None:
    few = problem.take(torch.arange(4))
    y, threats = few.labels[:, 0], {"linf": sp.linf(0.1), "l2": sp.l2(0.5)}
    one = sp.robust_accuracy(few.models[0], few.x, y, threats)
    single = sp.Ensemble([few.models[0]], few.x, y, names=["mine"])
    page = one.report(tmp_path / "one.html", single, data="mnist").read_text(encoding="utf-8")
    assert "Evaluation of mine on mnist" in page
    assert f"{100 * one.union:.1f} %" in page
    both = robust_domains(few, threats, steps=3, searches=2)
    page = both.report(tmp_path / "both.html", few).read_text(encoding="utf-8")
    assert "Evaluation of A, C on own images" in page
    assert f"{100 * both.union:.1f} %" in page
    with pytest.raises(
        ValueError, match="must be what was evaluated, 4 images and 1 domains, got 4 and 2"
    ):
        one.report(tmp_path / "x.html", few)


class TestEvaluations:
    """Pages and curves of evaluations, of images in memory and from a loader."""

    threats = {"linf": sp.linf(0.1), "l2": sp.l2(1.0)}  # noqa: RUF012

    def test_a_result_knows_what_was_evaluated(self, problem: sp.Ensemble, tmp_path: Path) -> None:
        model = problem.models[0]
        robust = sp.robust_accuracy(model, problem.x, problem.labels[:, 0], self.threats)
        page = robust.report(tmp_path / "eval.html").read_text(encoding="utf-8")
        assert f"{100 * robust.union:.1f}&thinsp;%" in page
        assert "data:image/png" in page
        assert pickle.loads(pickle.dumps(robust)).problem is None
        both = sp.robust_domains(problem, {"linf": sp.linf(0.1)}, searches=2)
        assert "both models" in both.report(tmp_path / "both.html").read_text(encoding="utf-8")

    def test_a_result_from_a_loader_has_a_page_without_images(
        self, problem: sp.Ensemble, tmp_path: Path
    ) -> None:
        loader = [(problem.x[:4], problem.labels[:4, 0]), (problem.x[4:], problem.labels[4:, 0])]
        robust = sp.robust_accuracy(problem.models[0], loader, self.threats, batch_size=1)
        page = robust.report(tmp_path / "eval.html").read_text(encoding="utf-8")
        assert "are not kept, so that none is shown" in page
        assert "data:image/png" not in page
        assert f"of {len(problem)} images correctly" in page

    def test_the_plot_is_the_share_that_is_farther_than_the_radius(
        self, problem: sp.Ensemble, tmp_path: Path
    ) -> None:
        plt = pytest.importorskip("matplotlib.pyplot")
        robust = sp.robust_accuracy(
            problem.models[0], problem.x, problem.labels[:, 0], self.threats
        )
        figure = robust.plot()
        try:
            figure.savefig(tmp_path / "curve.png")
            for panel, name in zip(figure.axes, self.threats, strict=True):
                x, y = (torch.tensor(values) for values in panel.lines[0].get_data())
                for radius in (0.0, 0.02, float(self.threats[name].eps)):
                    share = (robust.distance(name) > radius).double().mean().item()
                    at = y[(x <= radius).nonzero().flatten()[-1]].item()
                    assert at == pytest.approx(share)
        finally:
            plt.close("all")


def test_success_rates_take_a_result(problem: sp.Ensemble, result: sp.AttackResult) -> None:
    assert sp.success_rates(problem, result).all == sp.success_rates(problem, result.delta).all
    aim = problem.aim_at((problem.truth + 1) % 10)
    aimed = sp.attack(aim, sp.linf(0.3), steps=3, targeted=True)
    assert torch.equal(sp.success_rates(aim, aimed).fooled, aimed.fooled)
