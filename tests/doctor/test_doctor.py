"""Models that only look robust are caught; sound ones pass."""

from __future__ import annotations

import ast
import inspect
import operator
import re

import pytest
import torch
from torch import Tensor, nn

import saddlepoint
from saddlepoint import data, models
from saddlepoint.doctor import Finding, Findings, behaviour, examine, scalings, strength, worst
from saddlepoint.doctor.behaviour import randomness
from saddlepoint.doctor.scalings import normalisation
from saddlepoint.doctor.subject import Subject
from saddlepoint.runs.settings import ATTACKS


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    return data.sample("mnist", 48)


def test_findings_show_themselves_in_a_line_and_in_a_notebook(
    network: nn.Module, images: tuple[Tensor, Tensor]
) -> None:
    probabilities = nn.Sequential(network, nn.Softmax(-1)).eval()
    findings = examine(probabilities, *images, eps=0.2, steps=1, queries=1)
    told = repr(findings)
    assert isinstance(findings, list)
    assert told.startswith("Findings(fail: ")
    assert " ok; fail: outputs" in told
    assert len(told) < 200
    assert len(repr(findings[0])) < 100
    assert repr(findings[0]) == "Finding(mode ok: the model is in evaluation mode.)"
    html = findings._repr_html_()
    assert html.startswith(
        "<table><tr><th>check</th><th>status</th><th>saw</th><th>what to do</th>"
    )
    assert html.count("<tr>") == 1 + len(findings)
    assert repr(Findings([Finding("a", "ok", "", "")])) == "Findings(ok: 1 ok)"
    assert repr(Findings()) == "Findings(ok: nothing examined)"


class Wrapped(nn.Module):
    """A network behind something that spoils it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class Quantised(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.network((x * 8).round() / 8)


class Saturated(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return 100 * self.network(x)


class SaturatedHard(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(100 * self.network(x))


class Noisy(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.network(x + 0.3 * torch.randn_like(x))


class Detached(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.detach())


class Rooted(Wrapped):
    """The same answers, and a gradient that is not a number at black pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return self.network((x * x).sqrt())


class Shattered(Wrapped):
    """Gradients that point the wrong way: the forward pass sees x, the backward pass -x."""

    def forward(self, x: Tensor) -> Tensor:
        return self.network(2 * x.detach() - x)


class Probabilities(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).softmax(dim=-1)


class WantsNormalised(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 3, 1, 1)
        return self.network(x * std + mean)  # what a network trained on ImageNet statistics does


class WantsBytes(Wrapped):
    def forward(self, x: Tensor) -> Tensor:
        return self.network(x / 255)


def status(findings: list[Finding], name: str) -> str:
    return next(finding.status for finding in findings if finding.name == name)


def look(model: nn.Module, images: tuple[Tensor, Tensor], **options) -> list[Finding]:
    return examine(model, *images, **{"eps": 0.2, "steps": 10, "queries": 40} | options)


@pytest.mark.parametrize("name", ["mnist-a", "mnist-c", "mnist-d"])
def test_shipped_networks_pass(name, images):
    reference = models.load("mnist-a" if name != "mnist-a" else "mnist-c")
    findings = look(models.load(name), images, references={"other": reference})
    assert {finding.name: finding.status for finding in findings if finding.status != "ok"} == {}
    assert len(findings) == 12


@pytest.mark.parametrize(
    ("spoil", "checks"),
    [
        (Quantised, {"gradients", "unbounded", "gradient-free"}),
        (SaturatedHard, {"gradients", "unbounded"}),
        (Saturated, {"saturation"}),
        (Noisy, {"randomness", "attack"}),
        (Rooted, {"attack"}),
        (Detached, {"gradients", "unbounded", "gradient-free"}),
        (Shattered, {"unbounded", "gradient-free"}),
        (Probabilities, {"outputs"}),
        (WantsBytes, {"normalisation"}),
    ],
)
def test_masked_and_misused_models_are_caught(spoil, checks, network, images):
    findings = look(spoil(network), images)
    failed = {finding.name for finding in findings if finding.status == "fail"}
    assert checks <= failed
    for finding in findings:
        assert finding.saw
        assert finding.means
        assert finding.do or finding.status == "ok"


def test_a_gradient_hidden_by_rounding_is_not_called_saturation(network, images):
    findings = look(Quantised(network), images)
    assert (status(findings, "gradients"), status(findings, "saturation")) == ("fail", "ok")


def test_missing_normalisation_is_named():
    model = WantsNormalised(models.load("cifar10-c"))
    findings = examine(model, *data.sample("cifar10", 64), eps=8 / 255, steps=5, queries=5)
    (finding,) = [f for f in findings if f.name == "normalisation"]
    assert finding.status == "fail"
    assert " with imagenet." in finding.saw
    assert finding.do.startswith("add --mean imagenet (")


def test_transfer_stronger_than_white_box_is_caught(network, images):
    findings = look(Shattered(network), images, references={"plain": network})
    assert status(findings, "transfer") == "fail"


def test_training_mode_is_reported_and_left_as_it_was(images):
    model = nn.Sequential(models.load("mnist-a"), nn.Dropout(0.5))
    model[1].train()
    findings = look(model, images)
    assert status(findings, "mode") == "fail"
    assert status(findings, "randomness") == "ok"  # looked at in evaluation mode
    assert [model.training, model[0].training, model[1].training] == [True, False, True]


def test_dead_units_are_caught(images):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.ReLU(), nn.Linear(20, 10)).eval()
    with torch.no_grad():
        model[1].bias.fill_(-1e4)
    assert status(look(model, images), "dead units") == "fail"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(3, 3), "ended in RuntimeError"),
        (nn.Flatten(0), "must return logits"),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 2)), "2 classes"),
    ],
)
def test_unusable_models_give_one_finding_and_no_error(model, words, images):
    findings = look(model.eval(), images)
    assert worst(findings) == "fail"
    assert words in findings[-1].saw
    assert findings[-1].name == "inputs"


def test_models_are_asked_as_by_every_attack(network, images):
    """They get a tensor of their own, and their logits are taken out of what they return."""

    class InPlace(Wrapped):
        def forward(self, x):
            return {"logits": self.network(x.sub_(0.5).add_(0.5))}

    findings = look(InPlace(network), images)
    assert {finding.name: finding.status for finding in findings if finding.status != "ok"} == {}


def test_an_attack_that_raises_is_a_finding(network, images):
    class Brittle(Wrapped):
        def forward(self, x):
            logits = self.network(x)
            if logits.requires_grad and len(x) != len(images[0]):
                raise ArithmeticError("not with so few images")
            return logits

    *_, last = look(Brittle(network), images)
    assert (last.name, last.status) == ("attack", "fail")
    assert "ArithmeticError: not with so few images" in last.saw


def test_logits_that_are_not_numbers_are_wrong_answers(network, images):
    class Hole(Wrapped):
        """NaN as soon as the first pixel, 0 in every image, is above half the radius."""

        def forward(self, x):
            return self.network(x).masked_fill(x[:, 0, 0, 0, None] > 0.1, float("nan"))

    subject = Subject(Hole(network), *images, eps=0.2, steps=3, queries=3, seed=0)
    assert bool(subject.correct.all())
    moved = images[0].clone()
    moved[:, 0, 0, 0] = 0.2
    assert bool(subject.broken(moved, subject.ball).all())


def test_images_out_of_range_are_reported(network, images):
    x, y = images
    assert look(network, (255 * x, y))[-1].status == "fail"


def test_leaves_random_state_gradients_and_hooks_alone(network, images):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    look(network, images)
    assert torch.equal(torch.rand(4), expected)
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks for module in network.modules())


def test_finding_a_masked_model_does_not_depend_on_the_seed(network, images):
    for seed in (0, 1):
        assert worst(look(Quantised(network), images, seed=seed)) == "fail"


@pytest.mark.parametrize("options", [{"eps": 0.0}, {"eps": 2.0}, {"steps": 0}, {"queries": 0}])
def test_wrong_arguments_are_refused(options, network, images):
    with pytest.raises(ValueError, match="must be"):
        look(network, images, **options)


@pytest.mark.parametrize("company", [False, True])
def test_a_hidden_class_does_not_hide_chance_or_company(company, network, images):
    def model(x: Tensor) -> Tensor:
        logits = network(x - x.mean(0) + 0.1) if company else network(x) + 3 * torch.randn(10)
        return torch.cat([logits, torch.full((len(x), 1), -1e9)], dim=1)

    finding = randomness(Subject(model, *images, eps=0.2, steps=1, queries=1, seed=0))
    assert finding.status == "fail"
    assert ("alone" in finding.saw) == company


@pytest.mark.parametrize("name", ["cifar10", "imagenet", "svhn", "half"])
def test_a_missing_mean_is_found_by_its_name(name):
    network, constants = models.load("cifar10-a"), models.NORMALISATIONS[name]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in constants)
    x, y = data.sample("cifar10", 64)
    subject = Subject(lambda images: network(images * std + mean), x, y, 0.1, 1, 1, 0)
    finding = normalisation(subject)
    assert finding.status == "fail"
    assert f" with {name}." in finding.saw
    assert finding.do.startswith(f"add --mean {name} (in Python sp.models.wrap(network, mean=")


def test_a_wrong_mean_is_replaced_and_not_stacked_upon():
    network, constants = models.load("cifar10-a"), models.NORMALISATIONS["imagenet"]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in constants)
    x, y = data.sample("cifar10", 64)

    def wrapped(mean_given: object, std_given: object = None) -> nn.Module:
        return models.wrap(lambda images: network(images * std + mean), mean_given, std_given)

    finding = normalisation(Subject(wrapped(0, 1 / 255), x, y, 0.1, 1, 1, 0))
    assert finding.status == "fail"
    assert " with imagenet in place of its mean and std." in finding.saw
    assert finding.do.startswith("take --mean imagenet (")
    assert finding.do.endswith("or the numbers it was trained with: --mean a,b,c --std d,e,f.")
    assert normalisation(Subject(wrapped("imagenet"), x, y, 0.1, 1, 1, 0)).status == "ok"
    plain = normalisation(Subject(models.wrap(network, 0, 1 / 255), x, y, 0.1, 1, 1, 0))
    assert plain.do.startswith("take --mean 0 --std 1 (")


def test_values_up_to_255_are_told_by_their_flags_also_where_another_is_as_good():
    network, (x, y) = models.load("mnist-a"), data.sample("mnist", 64)

    def either(images: Tensor) -> Tensor:
        """Wants values 0 to 255, or those that are normalised with the numbers of MNIST."""
        high = images.amax()
        plain = torch.where(high > 100, images / 255, images * 0.3081 + 0.1307)
        return network(plain if high > 1 else torch.zeros_like(images))

    finding = normalisation(Subject(either, x, y, 0.1, 1, 1, 0))
    assert finding.do.startswith(
        "add --mean mnist (in Python sp.models.wrap(network, mean='mnist'))"
    )
    assert "--mean 0 --std 1/255 (values 0 to 255)" in finding.do


def test_every_remedy_on_the_command_line_has_its_like_in_python():
    known = {name.replace("_", "-") for kind in ATTACKS.values() for name in kind.model_fields}
    seen = 0
    for module in (behaviour, scalings, strength):
        tree = ast.parse(inspect.getsource(module))
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        calls = [call for call in found if getattr(call.func, "id", "") == "Finding"]
        for told in (ast.unparse(call.args[-1]) for call in calls if len(call.args) == 5):
            text = told
            for name in ("NORMALISE", "WITHOUT_GRADIENTS", "_DO"):
                text = text.replace(name, getattr(module, name, ""))
            flags = re.findall(r"--([a-z-]+)", text)
            assert set(flags) <= known, text
            assert not flags or "in Python" in text, text
            for name in re.findall(r"sp\.([a-zA-Z_.]+[a-zA-Z_])", text):
                assert operator.attrgetter(name)(saddlepoint)
            seen += bool(flags)
    assert seen > 10


def test_the_place_in_the_users_own_code_is_named(images):
    def model(x: Tensor) -> Tensor:
        return x @ torch.zeros(3)

    finding = look(model, images)[-1]
    assert finding.status == "fail"
    assert "test_doctor.py, line " in finding.saw


def test_parts_of_a_radius_are_told_in_its_unit():
    model, (x, y) = models.load("mnist-a"), data.sample("mnist", 4)
    for eps, told in ((2 / 255, "at 0.5/255, "), (0.2, "at 0.05, ")):
        found = examine(model, x, y, eps=eps, steps=2, queries=2)
        assert told in next(each.saw for each in found if each.name == "radius")


def test_a_network_without_training_is_not_said_to_want_another_normalisation():
    # The best of several accuracies of a network that knows nothing is above chance, too.
    x = torch.rand(32, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([*range(10), *range(10), *[3] * 4, *[7] * 4, *[8] * 4])
    for seed in (0, 7, 11):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(392, 10)
        )
        model = models.wrap(network, mean=(0.45, 0.40, 0.35), std=(0.20, 0.22, 0.24))
        (finding,) = (f for f in examine(model, x, y, steps=1) if f.name == "normalisation")
        assert finding.status == "warn"
        assert "untrained" in finding.means
