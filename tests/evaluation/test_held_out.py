"""Success of patches on held-out images, counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import saddlepoint as sp


def rates() -> sp.PatchRates:
    """One patch, two models, two views, four images, of which the models have 0, 1 and 2 right together."""
    fooled = torch.tensor(
        [
            [[1, 1, 0, 1], [1, 0, 0, 1]],  # model 1: view by view
            [[1, 0, 0, 1], [1, 0, 1, 1]],  # model 2
        ],
        dtype=torch.bool,
    )[None]
    right = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
    return sp.PatchRates(fooled, torch.zeros_like(fooled), right, ("near", "far"))


def test_only_images_count_that_every_model_has_right_and_only_if_all_are_fooled() -> None:
    found = rates()
    assert found.trials == 3
    assert found.per_view == pytest.approx((1 / 3, 1 / 3))
    assert found.per_model(0) == pytest.approx((2 / 3, 1 / 3))
    assert found.per_model(1) == pytest.approx((1 / 3, 2 / 3))
    assert found.worst == "near"  # the first of equals
    assert found.plain_per_view == (0.0, 0.0)
    # Wilson, 1 of 3, as in tests/runs/test_metrics.py
    assert found.intervals()[0] == pytest.approx((0.061492, 0.792340), abs=1e-5)
    assert repr(found) == (
        "PatchRates(3 trials per view, 2 views: mean 33.3 %, worst 33.3 % (near))"
    )


def test_rates_of_patches_are_a_table_in_a_notebook() -> None:
    found = rates()
    html = found._repr_html_()
    assert "<td>near</td><td>0.0 %</td><td>33.3 %</td><td>6.1 to 79.2 %</td>" in html
    assert "<td>mean of the views</td><td>0.0 %</td><td>33.3 %</td>" in html
    assert "<p>3 trials per view, on images that every model has right</p>" in html  # a tie
    better = found.fooled.clone()
    better[:, :, 1] = True
    one = sp.PatchRates(better, found.plain, found.right, ("<near>", "far"))
    assert one._repr_html_().endswith("; hardest: &lt;near&gt;</p>")
    none = sp.PatchRates(found.fooled, found.plain, found.right & False, found.views)
    assert "<td>near</td><td>-</td><td>-</td>" in none._repr_html_()
    assert "hardest" not in none._repr_html_()


def test_a_patch_that_covers_what_is_looked_at_fools_where_it_does() -> None:
    """The model sees the top left pixel alone: a white patch there fools it, a grey or another one does not."""

    class Corner(nn.Module):
        def forward(self, x):
            value = x[:, 0, 0, 0]
            return torch.stack([0.75 - value, value - 0.75], dim=1)

    x = torch.full((3, 1, 6, 6), 0.25)
    x[2] = 1.0  # wrong from the start
    problem = sp.Patched(
        [Corner().eval()], sp.Patch(size=2), x[None, :1], torch.zeros(1, 1, dtype=torch.long)
    )
    y = torch.zeros(3, dtype=torch.long)
    other = problem.elsewhere(x, y, [sp.View(at=(0, 0)), sp.View(at=(1, 1)), sp.View(at=(0, 1))])
    found = sp.patch_rates(other, problem.upper)
    assert found.right.tolist() == [[True, True, False]]
    assert found.per_view == (1.0, 0.0, 0.0)
    assert found.plain_per_view == (0.0, 0.0, 0.0)
    assert found.trials == 2


def test_patches_must_share_their_images() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)).eval()
    groups, y = torch.rand(2, 3, 1, 4, 4), torch.zeros(2, 3, dtype=torch.long)
    problem = sp.Patched([model], sp.Patch(size=2), groups, y)
    with pytest.raises(ValueError, match="`problem` must show every patch on the same images"):
        sp.patch_rates(problem, problem.zeros())


def test_tables_of_other_shapes_are_refused() -> None:
    found = rates()
    with pytest.raises(ValueError, match="`plain` and `right` must have shapes"):
        sp.PatchRates(found.fooled, found.plain[:, :1], found.right, found.views)
    with pytest.raises(ValueError, match="`views` must have one name per view, 2, got 1"):
        sp.PatchRates(found.fooled, found.plain, found.right, ("near",))


def test_images_of_a_loader_are_judged_part_by_part() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).eval()
    x = torch.rand(11, 1, 6, 6)
    y = model(x).argmax(dim=1)
    data = TensorDataset(x, y)
    views = [sp.View(at=(0, 0)), sp.View(at=(1, 0.5))]
    problem = sp.Patched(
        [model],
        sp.Patch(size=3),
        x[None, :4].expand(2, -1, -1, -1, -1),
        y[None, :4].expand(2, -1),
        views,
    )
    delta = torch.rand(2, 1, 6, 6).where(problem.mask, 0.0).clamp(problem.lower, problem.upper)
    whole = sp.patch_rates(problem.elsewhere(x, y), delta)
    assert 0 < whole.mean < 1
    for given in (
        problem.elsewhere(DataLoader(data, batch_size=4)),
        sp.Parts(problem.elsewhere, data, size=3),
    ):
        found = sp.patch_rates(given, delta)
        for name in ("fooled", "plain", "right"):
            assert torch.equal(getattr(found, name), getattr(whole, name)), name
    with pytest.raises(ValueError, match="`problem` must give at least one problem, got none"):
        sp.patch_rates([], delta)


def patches(views: list[sp.View]) -> tuple[sp.Patched, torch.Tensor, torch.Tensor]:
    """Two patches, and eleven images that they are held to."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).eval()
    x = torch.rand(11, 1, 6, 6)
    y = model(x).argmax(dim=1)
    groups, truth = x[None, :4].expand(2, -1, -1, -1, -1), y[None, :4].expand(2, -1)
    return sp.Patched([model], sp.Patch(size=3), groups, truth, views), x, y


def test_looks_through_random_views_are_those_of_one_problem() -> None:
    problem, x, y = patches([sp.View(at="anywhere"), sp.View(at=(0, 0))])
    delta = problem.upper
    whole = sp.patch_rates(problem.elsewhere(x, y), delta)
    assert 0 < whole.mean < 1
    parts = sp.Parts(problem.elsewhere, TensorDataset(x, y), size=3)
    singly = [problem.elsewhere(x[:5], y[:5]), problem.elsewhere(x[5:], y[5:])]
    for given in (parts, singly):
        found = sp.patch_rates(given, delta)
        for name in ("fooled", "plain", "right"):
            assert torch.equal(getattr(found, name), getattr(whole, name)), name
    # Every image has a look of its own, and the problems that were given are as before.
    assert singly[1].rows.tolist() == problem.rows.tolist()
    one = problem.elsewhere(x[:1].expand(11, -1, -1, -1), y[:1].expand(11))
    seen = one.photographs(delta, 0)
    assert len(seen[0].flatten(1).unique(dim=0)) > 3


def test_problems_with_other_views_or_models_are_not_joined() -> None:
    problem, x, y = patches([sp.View(at=(0, 0))])
    few, others = problem.elsewhere(x[:5], y[:5]), (x[5:], y[5:])
    message = r"same views and as many models, got 1 model and .*, then "
    with pytest.raises(ValueError, match=message + "1 model and "):
        sp.patch_rates([few, problem.elsewhere(*others, [sp.View(at=(1, 1))])], problem.zeros())
    more = problem.elsewhere(*others, models=[problem.models[0]] * 2)
    with pytest.raises(ValueError, match=message + "2 models and "):
        sp.patch_rates([few, more], problem.zeros())
    ensembles = sp.Parts(lambda x, y: sp.Ensemble(problem.models, x, y), TensorDataset(x, y))
    for wrong, name in ((ensembles, "Ensemble"), (3, "int")):
        with pytest.raises(TypeError, match=f"must be or give problems of patches .*, got {name}"):
            sp.patch_rates(wrong, problem.zeros())
    assert "1 view: mean" in repr(sp.patch_rates(few, problem.zeros()))
