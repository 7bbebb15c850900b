"""Views of a patch: where it lands, what bleeds in, and what it costs in gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import saddlepoint as sp
from saddlepoint import transforms as T
from saddlepoint.projections import Patch

H, W = 13, 16


def canvas(rows: int = 1, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(rows, 3, H, W, generator=g, dtype=torch.float64)


def mask(size: tuple[int, int] = (4, 6)) -> Tensor:
    return Patch(size=size).inside((H, W))


def none(rows: int = 1) -> Tensor:
    return torch.empty(rows, 0, dtype=torch.float64)


def test_the_view_as_it_is_changes_no_bit() -> None:
    pixels, there = sp.View().carry(canvas(2), mask(), none(2))
    assert torch.equal(pixels, canvas(2))
    assert torch.equal(there, mask().expand(2, 1, H, W))


@pytest.mark.parametrize("place", [(0, 0), (1, 1), (0, 1), (0.5, 0.25)])
def test_a_place_moves_every_pixel_of_the_patch_by_whole_pixels(place: tuple[float, float]) -> None:
    tall, wide = 4, 6
    pixels, there = sp.View(at=place).carry(canvas(), mask(), none())
    top, left = there[0, 0].nonzero().amin(dim=0).tolist()
    assert there.sum() == tall * wide
    if place[0] in (0, 1):
        assert top == place[0] * (H - tall)
    if place[1] in (0, 1):
        assert left == place[1] * (W - wide)
    first = mask().nonzero().amin(dim=0).tolist()
    original = canvas()[..., first[0] : first[0] + tall, first[1] : first[1] + wide]
    torch.testing.assert_close(pixels[..., top : top + tall, left : left + wide], original)


def test_every_place_at_which_the_patch_is_inside_is_as_likely_as_any_other() -> None:
    places = (H - 4 + 1) * (W - 6 + 1)
    count = 40 * places
    uniforms = torch.rand(count, 2, generator=torch.Generator().manual_seed(1)).double()
    _, there = sp.View(at="anywhere").carry(canvas().expand(count, -1, -1, -1), mask(), uniforms)
    assert torch.equal(there.flatten(1).sum(dim=1), torch.full((count,), 24))
    corners = there[:, 0].flatten(1).int().argmax(dim=1)
    hits = corners.bincount(minlength=H * W)
    assert int((hits > 0).sum()) == places
    seen = hits[hits > 0].double()
    chi2 = ((seen - 40) ** 2 / 40).sum()  # mean places - 1, deviation sqrt(2 (places - 1))
    assert abs(chi2 - (places - 1)) < 5 * (2 * (places - 1)) ** 0.5


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("rotate", [0, 30, 90, -45])
def test_a_carried_patch_is_wholly_inside_and_has_its_area(scale: float, rotate: float) -> None:
    uniforms = torch.rand(64, 2, generator=torch.Generator().manual_seed(2)).double()
    look = sp.View(at="anywhere", scale=scale, rotate=rotate)
    big = torch.rand(64, 1, 40, 40, dtype=torch.float64)
    inside = Patch(size=(12, 12)).inside((40, 40))
    _, there = look.carry(big, inside, uniforms)
    area = there.flatten(1).sum(dim=1).double()
    expected = 144 * scale**2
    assert bool(((area - expected).abs() <= 0.15 * expected).all()), area


def test_a_quarter_turn_is_the_turn_of_the_pixels_clockwise() -> None:
    square = Patch(size=(5, 5)).inside((13, 13))
    picture = torch.rand(1, 1, 13, 13, dtype=torch.float64)
    pixels, there = sp.View(rotate=90).carry(picture, square, none())
    assert torch.equal(there[0, 0], square)
    expected = picture[0, 0, 4:9, 4:9].rot90(-1)  # rot90 counts the other way
    torch.testing.assert_close(pixels[0, 0, 4:9, 4:9], expected)
    turned = T.rotate(90)(picture)  # the convention of the other transforms
    torch.testing.assert_close(turned[0, 0, 4:9, 4:9], expected)


@pytest.mark.parametrize(
    "look", [sp.View(rotate=30), sp.View(scale=1.6), sp.View(at=(0, 0), scale=0.7)]
)
def test_nothing_around_the_patch_bleeds_into_it(look: sp.View) -> None:
    """A patch of one colour stays of that colour to its edge, whatever is beside it on the canvas."""
    flat = torch.where(mask(), 0.75, canvas())
    pixels, there = look.carry(flat, mask(), none())
    covered = pixels[there.expand_as(pixels)]
    torch.testing.assert_close(covered, torch.full_like(covered, 0.75))
    leaf = flat.clone().requires_grad_()
    pixels, there = look.carry(leaf, mask(), none())
    pixels[there.expand_as(pixels)].sum().backward()
    assert leaf.grad is not None
    assert not leaf.grad[..., ~mask()].any()
    assert bool((leaf.grad[..., mask()] > 0).any())


def test_brightness_is_added_and_clipped_and_black_and_white_keep_their_gradient() -> None:
    values = torch.tensor([0.0, 0.4, 0.9, 1.0], dtype=torch.float64).reshape(1, 1, 2, 2)
    everywhere = torch.ones(2, 2, dtype=torch.bool)
    pixels, _ = sp.View(brightness=0.2).carry(values, everywhere, none())
    torch.testing.assert_close(pixels.flatten(), torch.tensor([0.2, 0.6, 1.0, 1.0]).double())
    ends = torch.where(mask(), torch.ones(1, 3, H, W), torch.zeros(1, 3, H, W)).requires_grad_()
    pixels, there = sp.View(at=(0, 0), rotate=17).carry(ends, mask(), none())
    assert bool((pixels <= 1).all())
    pixels[there.expand_as(pixels)].sum().backward()
    assert ends.grad is not None
    total = there.sum() * 3  # every covered pixel is a mean: its weights sum to one
    torch.testing.assert_close(ends.grad.sum(), total.float(), rtol=1e-4, atol=1e-4)


def test_the_gradient_is_that_of_finite_differences() -> None:
    look = sp.View(at=(0.3, 0.6), scale=1.2, rotate=25, brightness=-0.05)
    inside = Patch(size=3).inside((6, 7))
    start = 0.2 + 0.6 * torch.rand(1, 2, 6, 7, dtype=torch.float64)

    def seen(pixels: Tensor) -> Tensor:
        carried, there = look.carry(pixels, inside, none())
        return torch.where(there, carried, torch.zeros_like(carried))

    assert torch.autograd.gradcheck(seen, (start.requires_grad_(),))


def test_rows_have_looks_of_their_own() -> None:
    look = sp.View(at="anywhere", scale=(0.5, 1.5), rotate=(-90, 90), brightness=(-0.2, 0.2))
    assert look.num_draws == 5
    uniforms = torch.rand(4, 5, generator=torch.Generator().manual_seed(3)).double()
    pixels, there = look.carry(canvas(4), mask(), uniforms)
    for row in range(4):
        alone = look.carry(canvas(4)[row : row + 1], mask(), uniforms[row : row + 1])
        assert torch.equal(alone[0][0], pixels[row])
        assert torch.equal(alone[1][0], there[row])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": "somewhere"}, "`at` must be"),
        ({"at": (0.5, 2)}, "`at` must be two numbers"),
        ({"scale": 0}, "`scale` must be within"),
        ({"scale": (2, 1)}, "`scale` must begin with its lower end"),
        ({"rotate": 1000}, "`rotate` must be within"),
        ({"brightness": (0, 2)}, "`brightness` must be within"),
    ],
)
def test_what_is_no_view_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.View(**options)
