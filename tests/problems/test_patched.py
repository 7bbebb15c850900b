"""Patched: photographs of a patch, their exactness, and the problems it reduces to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_problems import CLASSES, images, linear
from torch import Tensor, nn

import saddlepoint as sp
from saddlepoint.data.pixels import read_picture, unit
from saddlepoint.report.pictures import encode_png
from saddlepoint.solver.domain_losses import evaluate
from saddlepoint.streams import JUDGE

B, N = 3, 4
SHAPE = (1, 9, 8)
GROUPS = images(B, N, *SHAPE)
LABELS = torch.arange(B * N).reshape(B, N) % CLASSES
MODELS = [linear(seed, 72) for seed in range(2)]
VIEWS = (
    sp.View(),
    sp.View(at="anywhere"),
    sp.View(at="anywhere", scale=(0.7, 1.3), rotate=(-40, 40), brightness=(-0.2, 0.2)),
)
PATCH = sp.Patch(size=(4, 3))


def problem(views: tuple[sp.View, ...] = VIEWS, **options: object) -> sp.Patched:
    return sp.Patched(MODELS, PATCH, GROUPS, LABELS, views, **options)


def somewhere(like: sp.Patched, seed: int = 7) -> Tensor:
    drawn = images(*like.lower.shape, seed=seed)
    return like.lower + drawn * (like.upper - like.lower)


def test_domains_are_models_by_views_by_images_and_all_models_see_the_same_photographs() -> None:
    p = problem()
    delta = somewhere(p)
    logits = p.logits(delta, stream=5)
    assert p.num_domains == len(set(p.names)) == 2 * 3 * N
    for k, (m, v, n) in enumerate(p.domains):
        photograph = p.photographs(delta, v, 5)[:, n]
        torch.testing.assert_close(logits[:, k], MODELS[m](photograph))
        torch.testing.assert_close(logits[:, k], p.domain_logits(delta, k, 5))
        assert torch.equal(p.labels[:, k], LABELS[:, n])
        assert p.model_of(k) == m


def test_pixels_that_are_not_covered_are_the_images_bit_for_bit() -> None:
    p = problem()
    seen, plain = p.images(somewhere(p)), p.groups.repeat(1, 2 * len(VIEWS), 1, 1, 1)
    other = p.images(somewhere(p, seed=8))
    same = (seen == other) & (seen == plain)  # two patches agree nowhere, but by chance
    covered = (~same).flatten(2).sum(dim=2)[:, : 3 * N].reshape(B, 3, N)
    assert torch.equal(covered[:, :2], torch.full((B, 2, N), 12))
    assert bool((covered[:, 2] > 3).all() & (covered[:, 2] < 30).all())
    assert bool(((seen >= 0) & (seen <= 1)).all())


def test_the_same_holds_after_saving_as_png_and_reading_back(tmp_path: Path) -> None:
    levels = (images(B, N, 3, 9, 8) * 255).round()
    groups = (levels / 255).float()
    models = [nn.Sequential(nn.Flatten(), nn.Linear(216, CLASSES)).eval()]
    p = sp.Patched(models, PATCH, groups, LABELS, VIEWS)
    result = sp.attack(p, PATCH, steps=3, quantize=256)
    patch = result.asked.problem.canvas(result.delta)
    assert torch.equal(patch, (patch * 255).round() / 255), "the patch itself is 8-bit"
    differs = 0
    for row in range(B):
        for k, (_, v, n) in enumerate(p.domains):
            photograph = result.adversarial[row, k]
            path = tmp_path / f"{row}-{k}.png"
            path.write_bytes(encode_png((photograph * 255).round().to(torch.uint8)))
            read = unit(read_picture(path))
            torch.testing.assert_close(read, photograph, rtol=0, atol=1e-7)
            there = _covered(p, row, v, n)
            assert torch.equal(read[:, ~there], groups[row, n][:, ~there])
            differs += int((read[:, there] != groups[row, n][:, there]).sum())
    assert differs > 0
    saved = sp.save_images(result, tmp_path / "saved")  # asks the models about what is read back
    assert torch.equal(saved.fooled, result.fooled)
    assert not saved.outside.any()
    assert len(saved.files[0]) == p.num_domains


def _covered(p: sp.Patched, row: int, view: int, image: int) -> Tensor:
    """Where a photograph shows the patch, found out with two patches of one colour each."""
    part = p.take(torch.tensor([row]))
    ends = [part.photographs(end, view, JUDGE)[0, image] for end in (part.lower, part.upper)]
    return (ends[0] != ends[1]).all(dim=0)


@pytest.mark.parametrize("solver", [sp.attack, sp.apgda])
def test_the_view_as_it_is_on_one_image_is_the_ensemble_with_the_patch_as_set(solver) -> None:
    """The reduction: base = the image, one image per row, `View()`; iterates are equal bit for bit."""
    x = images(12, *SHAPE, seed=6)
    y = MODELS[0](x).argmax(dim=1)
    options = {"steps": 12} | ({"restarts": 2} if solver is sp.attack else {"step_size": 0.1})
    patched = solver(sp.Patched(MODELS, PATCH, x, y, base=x), PATCH, **options)
    ensemble = solver(sp.Ensemble(MODELS, x, y), PATCH, **options)
    assert torch.equal(patched.delta, ensemble.delta)
    assert torch.equal(patched.weights, ensemble.weights)
    assert torch.equal(patched.fooled, ensemble.fooled)
    assert torch.equal(patched.num_forwards, ensemble.num_forwards)
    assert torch.equal(patched.adversarial[:, 0], ensemble.adversarial)
    assert bool(patched.success.any() & ~patched.success.all())
    assert patched.delta.any()


def test_groups_of_one_are_the_universal_problem_with_the_patch_as_set() -> None:
    groups, labels = GROUPS[:, :1], LABELS[:, :1]
    patched = sp.Patched(MODELS[:1], PATCH, groups, labels, base=groups[:, 0])
    universal = sp.Universal(MODELS[0], groups, labels)
    one, other = (sp.attack(each, PATCH, steps=9) for each in (patched, universal))
    assert torch.equal(one.delta, other.delta)
    assert torch.equal(one.adversarial, other.adversarial)


def test_rows_do_not_depend_on_other_rows_or_on_batches() -> None:
    p = problem(samples=2, seed=3)
    whole = sp.attack(p, PATCH, steps=4)
    single = sp.attack(p, PATCH, steps=4, batch_size=1, accumulate=True)
    torch.testing.assert_close(single.delta, whole.delta, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(single.losses, whole.losses, rtol=1e-9, atol=1e-9)
    part = sp.attack(p.take(torch.tensor([2, 0])), PATCH, steps=4)
    torch.testing.assert_close(part.delta, whole.delta[[2, 0]], rtol=1e-9, atol=1e-9)


def test_the_gradient_is_that_of_finite_differences() -> None:
    p = problem().take(torch.tensor([1]))
    delta = 0.5 * somewhere(p)
    point = evaluate(p, delta, sp.neg_cross_entropy, stream=2)
    weights = torch.rand(1, p.num_domains, dtype=torch.float64)
    gradient = point.gradient(weights)
    assert not gradient[..., ~p.mask].any()
    direction = torch.where(p.mask, images(*delta.shape, seed=9) - 0.5, 0.0)
    values = [
        (weights * evaluate(p, delta + t * direction, sp.neg_cross_entropy, stream=2).losses).sum()
        for t in (1e-6, -1e-6)
    ]
    torch.testing.assert_close(
        (gradient * direction).sum(), (values[0] - values[1]) / 2e-6, rtol=1e-5, atol=1e-7
    )


def test_looks_differ_between_steps_rows_and_images_and_are_repeated_for_the_same() -> None:
    p = problem((VIEWS[1],))
    delta = somewhere(p)
    first, again = p.photographs(delta, 0, 1), p.photographs(delta, 0, 1)
    assert torch.equal(first, again)
    assert not torch.equal(first, p.photographs(delta, 0, 2))
    places = torch.stack([_covered(p, row, 0, n) for row in range(B) for n in range(N)])
    assert len(torch.unique(places.flatten(1), dim=0)) > 4


def test_a_bounded_patch_stays_near_its_base() -> None:
    base = images(*SHAPE, seed=4)
    near = sp.Patch(size=(4, 3), eps=0.1)
    p = sp.Patched(MODELS, near, GROUPS, LABELS, VIEWS, base=base)
    result = sp.attack(p, near, steps=5)
    assert bool((p.canvas(result.delta) - base <= 0.1 + 1e-9).all())
    assert result.delta.any()


def test_elsewhere_is_the_same_patch_on_other_images_through_other_views() -> None:
    p = problem((sp.View(),))
    x, y = images(5, *SHAPE, seed=5), torch.tensor([0, 1, 2, 3, 0])
    other = p.elsewhere(x, y, [sp.View(at=(0, 0))])
    assert other.labels.shape == (B, 10)
    delta = somewhere(p)
    corner = other.images(delta)[:, :5]
    mine = p.canvas(delta)[..., 2:6, 2:5]
    torch.testing.assert_close(corner[..., :4, :3], mine[:, None].expand(-1, 5, -1, -1, -1))
    assert torch.equal(corner[..., 4:, :], x[None, ..., 4:, :].expand(B, -1, -1, -1, -1))
    part = other.take(torch.tensor([2]))
    assert torch.equal(part.rows, torch.tensor([2]))
    stranger = p.elsewhere(x, y, [sp.View(at=(0, 0))], models=MODELS[1:])
    assert torch.equal(stranger.logits(delta), other.logits(delta)[:, 5:])
    assert stranger.names == tuple(f"at:0/0, image {n}" for n in range(1, 6))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"groups": GROUPS[0, 0]}, ValueError, "`groups` must have at least 4 axes"),
        ({"y": LABELS[:, :2]}, ValueError, "`y` must have shape"),
        ({"views": []}, TypeError, "`views` must name at least one View"),
        ({"views": ["anywhere"]}, TypeError, "`views` must name"),
        ({"patch": 3}, TypeError, "`patch` must be a Patch"),
        ({"base": torch.rand(7, 9)}, ValueError, "`base` must be a number or have shape"),
        ({"base": 2.0}, ValueError, "`base` must be finite and in"),
        ({"samples": 0}, ValueError, "`samples` must be >= 1"),
    ],
)
def test_what_is_no_patched_problem_is_refused(change: dict, error: type, message: str) -> None:
    given = {"models": MODELS, "patch": PATCH, "groups": GROUPS, "y": LABELS, "views": VIEWS}
    with pytest.raises(error, match=message):
        sp.Patched(**{**given, **change})
