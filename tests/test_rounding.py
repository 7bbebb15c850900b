"""Settings of the user's that round float32: off wherever a verdict is made, kept in training, put back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import saddlepoint as sp
from commands import inside
from saddlepoint.calls import call
from saddlepoint.doctor import examine
from saddlepoint.evaluation import OurAttack, judge
from saddlepoint.evaluation.saved_images import save_nearest
from saddlepoint.evaluation.verdicts import judge_domains
from saddlepoint.models.cards import measure
from saddlepoint.rounding import full_precision
from saddlepoint.training.validation import validate
from shortened import short_suites

BALL = sp.linf(0.1)


def fewer_bits(how: str) -> None:
    """What users write to let float32 be rounded."""
    if how == "medium":
        torch.set_float32_matmul_precision("medium")
    elif how == "everywhere":
        torch.backends.fp32_precision = "bf16"
    else:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        torch.backends.mkldnn.conv.fp32_precision = "bf16"


def products() -> list[str]:
    """What float32 is rounded to: on a CPU, and on a GPU."""
    cpu, gpu = torch.backends.mkldnn, torch.backends.cudnn
    parts = [cpu.matmul, cpu.conv, cpu.rnn, torch.backends.cuda.matmul, gpu.conv, gpu.rnn]
    return [part.fp32_precision for part in parts]


@pytest.fixture
def as_before() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")
    cpu = torch.backends.mkldnn
    for part in (cpu.matmul, cpu.conv, torch.backends.cuda.matmul, torch.backends):
        part.fp32_precision = "none"
    torch.backends.cudnn.allow_tf32 = True


class Watched(nn.Module):
    """A network that keeps what it was asked in: autocast, and what float32 is rounded to."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.seen = network, set()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        self.seen.add((torch.is_autocast_enabled("cpu"), *products()[:3]))
        return self.network(images)


class Given:
    """What verdicts are made of."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, folder: Path) -> None:
        self.model, self.x, self.y, self.folder = model, x, y, folder
        self.problem = sp.Ensemble([model], x, y)
        self.delta = torch.full_like(x, 0.05) * (x < 0.5)
        self.result = sp.attack(self.problem, BALL, steps=3, quantize=256)
        views = [sp.View(at=(0, 0))]
        self.patched = sp.Patched([model], sp.Patch(4), x[None], y[None], views)


VERDICTS: dict[str, Callable[[Given], object]] = {
    "call": lambda g: torch.no_grad()(call)(g.model, g.x),
    "attack": lambda g: sp.attack(g.problem, BALL, steps=2),
    "predicted labels": lambda g: sp.Ensemble([g.model], g.x, g.y, labels="predicted"),
    "judge": lambda g: judge(g.model, g.x, g.y, g.x + g.delta, BALL),
    "judge of domains": lambda g: judge_domains(g.problem, g.delta, BALL),
    "rates": lambda g: sp.success_rates(g.problem, g.delta),
    "robust accuracy": lambda g: sp.robust_accuracy(g.model, g.x, g.y, {"linf": BALL}),
    "saved images": lambda g: sp.save_images(g.result, g.folder / "images"),
    "nearest images": lambda g: save_nearest(
        g.problem, {"linf": BALL}, {"linf": g.result.delta}, g.folder / "nearest"
    ),
    "patches": lambda g: sp.patch_rates(g.patched, g.patched.zeros()),
    "validation": lambda g: validate(g.model, g.x, g.y, {"linf": BALL}, steps=2),
    "doctor": lambda g: examine(g.model, g.x, g.y, steps=3, queries=5),
    "card": lambda g: measure(g.model, g.x, g.y),
}

NETS = """
from pathlib import Path
import torch
import saddlepoint as sp

torch.set_float32_matmul_precision("medium")  # as users' code does

class Watched(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.network = sp.models.load("mnist-a")
        self.eval()

    def forward(self, images):
        with Path("seen").open("a") as file:
            file.write(torch.backends.mkldnn.matmul.fp32_precision + " ")
        return self.network(images)

class Other(Watched):
    def forward(self, images):
        return super().forward(images * 0.9)
"""

OWN = "--data mnist-sample --limit 6"
COMMANDS = {
    "ensemble": f"attack ensemble --models rounded.py:Watched,C {OWN} --steps 2 --eps 0.1 --batch-size 3 "
    "--victims rounded.py:Other --targeted least-likely --save-images saved",
    "patch": f"attack patch --models rounded.py:Watched {OWN} --steps 2 --patch 8 --views here "
    "--images-per-patch 2 --held-out 2",
    "evaluate": f"evaluate rounded.py:Watched {OWN} --threat linf:0.1 --save-images saved",
}


@pytest.mark.usefixtures("as_before")
class TestFewerBitsOfTheUsersOwn:
    @pytest.mark.parametrize("gpu", [False, True])
    @pytest.mark.parametrize("how", ["medium", "everywhere", "each"])
    def test_float32_is_float32_while_an_attack_is_at_work(
        self, how, gpu, network, digits, monkeypatch
    ):
        # There is no GPU: what is set for one is looked at all the same.
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        seen = []

        def model(images: Tensor) -> Tensor:
            seen.append(products())
            return network(images)

        problem = sp.Ensemble([model], *digits)
        plain = sp.attack(problem, BALL, steps=5)
        rates = sp.success_rates(problem, plain.delta)
        seen.clear()
        fewer_bits(how)
        before = products()
        assert "bf16" in before[:2]
        again = sp.attack(problem, BALL, steps=5)
        assert torch.equal(again.delta, plain.delta)
        assert torch.equal(again.fooled, plain.fooled)
        assert torch.equal(sp.success_rates(problem, plain.delta).fooled, rates.fooled)
        sp.robust_accuracy(model, *digits, {"linf": BALL})
        looked = slice(None) if gpu else slice(3)
        assert {word for words in seen for word in words[looked]} <= {"ieee", "none"}
        assert products() == before

    @pytest.mark.parametrize("verdict", sorted(VERDICTS))
    def test_float32_is_float32_wherever_a_verdict_is_made(
        self, verdict, network, digits, tmp_path
    ):
        watched = Watched(network)
        given = Given(watched, *digits, tmp_path)
        watched.seen.clear()
        torch.set_float32_matmul_precision("medium")
        before = products()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            VERDICTS[verdict](given)
        assert watched.seen == {(False, "ieee", "none", "none")}
        assert products() == before

    @pytest.mark.parametrize("command", sorted(COMMANDS))
    def test_commands_judge_in_float32_what_the_users_code_has_set(
        self, command, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "rounded.py").write_text(NETS)
        with short_suites():
            assert inside(*COMMANDS[command].split(), "--out", "run") == 0
        seen = set((tmp_path / "seen").read_text().split())
        assert "ieee" in seen
        assert "bf16" not in seen

    @pytest.mark.parametrize("step", [sp.max_step, sp.msd_step, sp.avg_step, sp.ampgd_step])
    def test_training_keeps_them_with_and_without_gradients(self, step, digits):
        seen = set()
        network = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        network.register_forward_pre_hook(
            lambda *_: seen.add((torch.is_grad_enabled(), products()[0]))
        )
        torch.set_float32_matmul_precision("medium")
        optimizer = torch.optim.SGD(network.parameters(), 0.1)
        options = {"steps": 2, "iteration": 0}
        step(network, optimizer, *digits, {"linf": BALL, "l2": sp.l2(1.0)}, **options)
        assert {word for _, word in seen} == {"bf16"}
        assert len(seen) == (2 if step is sp.msd_step else 1)  # which compares proposals without

    def test_threads_leave_them_as_they_were_whoever_is_the_last(self):
        torch.set_float32_matmul_precision("medium")
        first, second = full_precision(), full_precision()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert products()[0] == "ieee"  # the second is still at work
        second.__exit__(None, None, None)
        assert products()[0] == "bf16"

    @pytest.mark.parametrize("gpu", [False, True])
    @pytest.mark.parametrize("later", ["highest", "high", "medium"])
    @pytest.mark.parametrize("before", ["highest", "high", "medium"])
    def test_what_a_callback_sets_stays_and_reaches_no_verdict(
        self, before, later, gpu, network, digits, monkeypatch
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        torch.set_float32_matmul_precision(later)
        wanted = products()
        torch.set_float32_matmul_precision(before)
        judged = []

        def model(images: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                judged.extend(products() if gpu else products()[:3])
            return network(images)

        def callback(_: object) -> None:
            torch.set_float32_matmul_precision(later)

        sp.robust_accuracy(
            model, *digits, {"linf": BALL}, {math.inf: [OurAttack(steps=2)]}, callback=callback
        )
        assert set(judged) <= {"ieee", "none"}
        assert judged
        assert torch.get_float32_matmul_precision() == later
        assert products() == wanted

    @pytest.mark.parametrize("later", ["high", "medium"])
    @pytest.mark.parametrize("before", ["highest", "medium"])
    def test_what_a_callback_sets_does_not_reach_the_search(self, before, later, network, digits):
        """Or rows leave by answers that the verdict at the end, in full precision, does not confirm."""
        torch.set_float32_matmul_precision(before)
        seen = []

        def model(images: Tensor) -> Tensor:
            seen.append(products()[0])
            return network(images)

        def callback(_: object) -> None:
            torch.set_float32_matmul_precision(later)

        sp.attack(sp.Ensemble([model], *digits), BALL, steps=3, restarts=2, callback=callback)
        assert set(seen) <= {"ieee", "none"}
        assert torch.get_float32_matmul_precision() == later

    @pytest.mark.parametrize("gpu", [False, True])
    def test_newer_words_that_are_set_meanwhile_stay_too(self, gpu, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        with full_precision():
            torch.backends.mkldnn.matmul.fp32_precision = "tf32"
            torch.backends.mkldnn.conv.fp32_precision = "bf16"
            torch.backends.cudnn.rnn.fp32_precision = "ieee"
            with full_precision():
                assert products()[:2] == ["ieee", "ieee"]
        assert products()[:2] == ["tf32", "bf16"]

    def test_a_wider_setting_is_followed_afterwards(self):
        torch.backends.fp32_precision = "bf16"
        with full_precision():
            assert products()[0] == "ieee"
        torch.backends.fp32_precision = "none"
        assert products()[0] == "none"

    @pytest.mark.parametrize("word", ["highest", "high", "medium"])
    def test_older_words_can_be_read_inside_and_after(self, word, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        torch.set_float32_matmul_precision(word)
        with full_precision():
            assert not torch.backends.cudnn.allow_tf32
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32  # as torch comes
        assert torch.get_float32_matmul_precision() == word

    def test_words_that_were_mixed_are_left_so(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        torch.set_float32_matmul_precision("high")
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        with pytest.raises(RuntimeError):
            _ = torch.backends.cuda.matmul.allow_tf32
        before = products()
        with full_precision():
            assert set(products()) <= {"ieee", "none"}
        assert products() == before
