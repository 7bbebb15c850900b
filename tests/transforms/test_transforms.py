"""Transforms against hand-derived pixels, kornia, and the contract on randomness."""

from __future__ import annotations

import dataclasses
import math
import pickle
from collections.abc import Callable

import kornia
import pytest
import torch
from torch import Tensor

from saddlepoint import transforms as T

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}
DTYPES = list(TOLERANCE)
SHAPES = [(3, 2, 7, 7), (2, 3, 10, 20), (2, 1, 15, 5)]

DETERMINISTIC = {
    "identity": T.identity,
    "hflip": T.hflip,
    "vflip": T.vflip,
    "brightness": T.brightness(0.1),
    "gamma": T.gamma(1.3),
    "gamma<1": T.gamma(0.5),
    "crop": T.crop_resize(0.8),
    "rotate": T.rotate(30),
}
RANDOM = {
    "hflip": T.random_hflip(0.6),
    "vflip": T.random_vflip(0.6),
    "brightness": T.random_brightness(0.1, probability=0.6),
    "gamma": T.random_gamma(1.3, probability=0.6),
    "crop": T.random_crop_resize(0.6, 1.0),
    "rotate": T.random_rotate(-10, 10),
    "sometimes rotate": T.sometimes(T.random_rotate(20, 40), 0.6),
}


def images_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def close(actual: Tensor, expected: Tensor, scale: float = 1.0) -> None:
    tolerance = scale * TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def picture(*rows: list[float]) -> Tensor:
    return torch.tensor([[list(rows)]], dtype=torch.float64)


# --- Known pixels, by hand ------------------------------------------------------------------------


def test_flips_move_known_pixels():
    x = picture([1, 2], [3, 4]) / 10
    assert torch.equal(T.hflip(x), picture([2, 1], [4, 3]) / 10)
    assert torch.equal(T.vflip(x), picture([3, 4], [1, 2]) / 10)


def test_brightness_is_additive_and_clips():
    x = picture([0.0, 0.5, 0.95, 1.0])
    close(T.brightness(0.1)(x), picture([0.1, 0.6, 1.0, 1.0]))
    close(T.brightness(-0.6)(x), picture([0.0, 0.0, 0.35, 0.4]))


def test_gamma_is_a_power():
    x = picture([0.0, 0.25, 0.5, 1.0])
    close(T.gamma(2.0)(x), picture([0.0, 0.0625, 0.25, 1.0]))
    close(T.gamma(0.5)(x), picture([0.0, 0.5, math.sqrt(0.5), 1.0]))


def test_rotation_by_90_degrees_is_clockwise():
    x = picture([1, 2, 3], [4, 5, 6], [7, 8, 9]) / 10
    close(T.rotate(90)(x), picture([7, 4, 1], [8, 5, 2], [9, 6, 3]) / 10)
    close(T.rotate(-90)(x), picture([3, 6, 9], [2, 5, 8], [1, 4, 7]) / 10)
    close(T.rotate(180)(x), picture([9, 8, 7], [6, 5, 4], [3, 2, 1]) / 10)


def test_an_arrow_pointing_up_points_right_after_90_degrees():
    up = picture(
        [0, 0, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]
    )
    right = picture(
        [0, 0, 0, 0, 0], [0, 0, 0, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]
    )
    close(T.rotate(90)(up), right)


def test_rotation_of_a_wide_image_keeps_pixels_square_and_fills_with_zero():
    # Three of the five columns become rows; left and right of them is outside.
    x = picture([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14, 15]) / 16
    expected = picture([0, 12, 7, 2, 0], [0, 13, 8, 3, 0], [0, 14, 9, 4, 0]) / 16
    close(T.rotate(90)(x), expected)


def test_rotation_by_45_degrees_interpolates_bilinearly():
    # In pixels from the centre: the corner (-1, -1) is read at (-sqrt 2, 0), which is 2 - sqrt 2 of
    # the left pixel and the rest outside; (0, -1) is read at (-h, -h) and (-1, 0) at (-h, h), with
    # h = sqrt(1/2): in x a share h of the left column, in y a share 1 - h of the middle row.
    x = picture([0, 0, 0], [1, 0, 0], [0, 0, 0])
    out = T.rotate(45)(x)[0, 0]
    h = math.sqrt(0.5)
    assert out[0, 0].item() == pytest.approx(2 - math.sqrt(2), abs=1e-12)
    assert out[0, 1].item() == pytest.approx(h * (1 - h), abs=1e-12)
    assert out[1, 0].item() == pytest.approx(h * (1 - h), abs=1e-12)
    assert out[1, 1].item() == pytest.approx(0.0, abs=1e-12)
    assert out[2, 2].item() == pytest.approx(0.0, abs=1e-12)


def test_crop_reads_the_window_and_repeats_its_border():
    # The window is [1, 3), read at 1.25, 1.75, 2.25, 2.75; its pixel centres are 1.5 and 2.5, so
    # that the first and the last repeat the border.
    x = picture([0, 1, 3, 7]) / 8
    close(T.crop_resize(0.5)(x), picture([1, 1.5, 2.5, 3]) / 8)


def test_crop_of_a_fractional_window():
    # 0.75 * 3 = 2.25 pixels, from 0.375 to 2.625, read at 0.75, 1.5, 2.25 and kept half a pixel
    # inside: 0.875, 1.5, 2.125, which are the pixel indices 0.375, 1, 1.625.
    x = picture([0.0, 0.8, 0.0])
    close(T.crop_resize(0.75)(x), picture([0.3, 0.8, 0.3]))


def test_crop_smaller_than_a_pixel_reads_the_centre():
    x = picture([1, 2, 3], [4, 5, 6], [7, 8, 9]) / 10
    close(T.crop_resize(0.01)(x), torch.full_like(x, 0.5))


def test_crop_does_not_see_outside_its_window():
    x = images_of((1, 2, 10, 10))
    changed = x.clone()
    changed[:, :, 0], changed[:, :, -1] = 1 - x[:, :, 0], 1 - x[:, :, -1]
    close(T.crop_resize(0.8)(x), T.crop_resize(0.8)(changed))
    assert bool((T.crop_resize(0.9)(x) - T.crop_resize(0.9)(changed)).abs().max() > 0.1)


# --- Against kornia -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
class TestAgainstKornia:
    def test_flips(self, shape, dtype):
        x = images_of(shape, dtype)
        assert torch.equal(T.hflip(x), kornia.geometry.transform.hflip(x))
        assert torch.equal(T.vflip(x), kornia.geometry.transform.vflip(x))

    @pytest.mark.parametrize("amount", [0.1, -0.3, 0.0, 1.0])
    def test_brightness(self, shape, dtype, amount):
        x = images_of(shape, dtype)
        close(T.brightness(amount)(x), kornia.enhance.adjust_brightness(x, amount))

    @pytest.mark.parametrize("exponent", [1.3, 0.5, 1.0, 3.0])
    def test_gamma(self, shape, dtype, exponent):
        x = images_of(shape, dtype)
        x[0, 0, 0, 0], x[0, 0, 0, 1], x[0, 0, 1, 0] = 0.0, 1.0, 1e-5
        close(T.gamma(exponent)(x), kornia.enhance.adjust_gamma(x, exponent))

    @pytest.mark.parametrize("degrees", [30.0, -10.0, 123.0, 0.0, 400.0])
    def test_rotate(self, shape, dtype, degrees):
        x = images_of(shape, dtype)
        # kornia turns counter-clockwise about the same centre ((W - 1) / 2, (H - 1) / 2).
        angle = torch.tensor(-degrees, dtype=dtype)
        close(T.rotate(degrees)(x), kornia.geometry.transform.rotate(x, angle), scale=10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("size", "fraction", "window"),
    [
        ((10, 20), 0.8, (8, 16)),
        ((20, 10), 0.6, (12, 6)),
        ((9, 9), 1 / 3, (3, 3)),
        ((8, 6), 1, (8, 6)),
    ],
)
def test_crop_resize_is_kornias_center_crop_then_resize(size, fraction, window, dtype):
    x = images_of((2, 3, *size), dtype)
    crop = kornia.geometry.transform.center_crop(x, window)
    expected = kornia.geometry.transform.resize(crop, size, align_corners=False)
    close(T.crop_resize(fraction)(x), expected, scale=10)


# --- Properties -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_neutral_parameters_change_nothing(shape):
    x = images_of(shape)
    assert torch.equal(T.identity(x), x)
    assert torch.equal(T.brightness(0.0)(x), x)
    close(T.gamma(1.0)(x), x)
    close(T.crop_resize(1.0)(x), x)
    close(T.rotate(0)(x), x)
    close(T.rotate(360)(x), x)


@pytest.mark.parametrize("shape", SHAPES)
def test_flips_are_involutions_and_together_a_half_turn(shape):
    x = images_of(shape)
    for flip in (T.hflip, T.vflip):
        assert not torch.equal(flip(x), x)
        assert torch.equal(flip(flip(x)), x)
    close(T.rotate(180)(x), T.hflip(T.vflip(x)))


def test_opposite_quarter_turns_cancel():
    x = images_of((2, 3, 6, 6))
    close(T.rotate(-90)(T.rotate(90)(x)), x)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_contract(name):
    transform = DETERMINISTIC[name]
    x = images_of((2, 3, 6, 8))
    before = x.clone()
    assert transform.num_draws == 0
    out = transform(x)
    assert torch.equal(x, before)
    assert out.shape == x.shape
    assert bool(((out >= 0) & (out <= 1)).all())
    assert torch.equal(transform(x, torch.rand(7, 3)), out)  # `uniforms` are ignored
    assert pickle.loads(pickle.dumps(transform)) == transform


@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtype_is_kept(name, dtype):
    x = images_of((2, 3, 24, 32)).to(dtype)
    out = DETERMINISTIC[name](x)
    assert out.dtype == dtype
    # A rounding or two of the values: coordinates in half precision would be off by much more.
    exact = DETERMINISTIC[name](x.double())
    atol = max(2 * torch.finfo(dtype).eps, TOLERANCE.get(dtype, 0.0) * 10)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=atol)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_gradcheck(name):
    # Clear of the kinks of clipping and of gamma's knee.
    x = (0.1 + 0.7 * images_of((2, 2, 4, 5))).requires_grad_()
    assert torch.autograd.gradcheck(DETERMINISTIC[name], (x,))


@pytest.mark.parametrize("name", RANDOM)
def test_gradcheck_random(name):
    x = (0.1 + 0.7 * images_of((4, 2, 4, 5))).requires_grad_()
    u = images_of((4, RANDOM[name].num_draws), seed=1)
    assert torch.autograd.gradcheck(lambda images: RANDOM[name](images, u), (x,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", [0.05, 0.5, 0.99, 1.0, 1.3, 3.0])
def test_gamma_is_finite_at_and_beyond_black_and_white(exponent, dtype):
    tiny = torch.finfo(dtype).tiny
    values = [0.0, -1e-7, tiny, tiny / 4, 1e-6, 0.5, 1.0, 1.0 + 1e-6]
    x = torch.tensor(values, dtype=dtype).view(1, 1, 2, 4).requires_grad_()
    out = T.gamma(exponent)(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert bool(torch.isfinite(out).all())
    assert bool(torch.isfinite(grad).all())
    assert bool((out >= 0).all())
    assert bool((out <= 1).all())
    assert out[0, 0, 0, 0] == 0
    assert grad[0, 0, 1, 2].item() == pytest.approx(exponent, rel=1e-5)  # the slope at 1


def test_gamma_below_one_lets_black_pixels_move():
    x = torch.zeros(1, 1, 1, 1, requires_grad=True)
    (grad,) = torch.autograd.grad(T.gamma(0.5)(x).sum(), x)
    assert grad.item() == pytest.approx(64.0)  # the chord from 0 to 2 ** -12, whose root is 2 ** -6


def test_gamma_through_sometimes_has_a_finite_gradient_on_skipped_rows():
    x = torch.zeros(2, 1, 1, 1, requires_grad=True)
    out = T.random_gamma(0.5, 0.8)(x, torch.tensor([[0.0], [0.9]]))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.flatten().tolist() == [64.0, 1.0]


# --- Randomness is passed in ----------------------------------------------------------------------


@pytest.mark.parametrize("name", RANDOM)
def test_a_row_alone_equals_the_row_in_the_batch(name):
    transform = RANDOM[name]
    x, u = images_of((6, 2, 5, 7)), images_of((6, transform.num_draws), seed=3)
    together = transform(x, u)
    assert not torch.equal(together, x)
    for row in range(6):
        close(transform(x[row : row + 1], u[row : row + 1]), together[row : row + 1])
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    close(transform(x[order], u[order]), together[order])


@pytest.mark.parametrize("name", RANDOM)
def test_nothing_is_drawn_inside(name):
    transform = RANDOM[name]
    x, u = images_of((6, 2, 5, 7)), images_of((6, transform.num_draws), seed=3)
    state = torch.get_rng_state()
    first = transform(x, u)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(transform(x, u), first)


@pytest.mark.parametrize(
    ("transform", "plain"),
    [
        (T.random_hflip(0.8), T.hflip),
        (T.random_vflip(0.8), T.vflip),
        (T.random_brightness(0.1, probability=0.8), T.brightness(0.1)),
        (T.random_gamma(1.3, probability=0.8), T.gamma(1.3)),
        (T.sometimes(T.rotate(30), 0.8), T.rotate(30)),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_applied_exactly_when_the_uniform_is_below_the_probability(transform, plain, dtype):
    p = torch.tensor(0.8, dtype=dtype)
    below = torch.nextafter(p, torch.zeros_like(p))
    u = torch.stack([torch.zeros_like(p), below, p, torch.ones_like(p) - 1e-6]).view(4, 1)
    x = images_of((4, 2, 5, 6), dtype)
    out = transform(x, u)
    close(out[:2], plain(x)[:2])
    assert torch.equal(out[2:], x[2:])
    assert not torch.equal(out[:2], x[:2])


def test_probabilities_zero_and_one():
    x, u = images_of((50, 1, 2, 2)), images_of((50, 1), seed=1)
    assert torch.equal(T.random_hflip(0.0)(x, u), x)
    assert torch.equal(T.random_hflip(1.0)(x, u), T.hflip(x))


def test_frequency():
    x = picture([0.0, 1.0]).expand(10_000, 1, 1, 2)
    u = images_of((10_000, 1), seed=5)
    flipped = T.random_hflip(0.8)(x, u)[:, 0, 0, 0].mean().item()
    assert abs(flipped - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 10_000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("transform", "plain"),
    [
        (T.random_crop_resize(0.6, 1.0), lambda u: T.crop_resize(0.6 + 0.4 * u)),
        (T.random_rotate(-10, 10), lambda u: T.rotate(-10 + 20 * u)),
        (T.random_rotate(15, 60), lambda u: T.rotate(15 + 45 * u)),
    ],
)
def test_uniforms_map_linearly_onto_the_range(
    transform: T.Transform, plain: Callable[[float], T.Transform], dtype: torch.dtype
):
    uniforms = [0.0, 0.25, 0.5, 0.8125, 0.9990234375]
    x = images_of((5, 2, 6, 9), dtype)
    out = transform(x, torch.tensor(uniforms, dtype=dtype).view(5, 1))
    for row, u in enumerate(uniforms):
        close(out[row : row + 1], plain(u)(x[row : row + 1]), scale=10)


def test_sometimes_hands_the_remaining_draws_to_the_inner_transform():
    inner = T.random_rotate(0, 90)
    x = images_of((2, 1, 5, 5))
    out = T.sometimes(inner, 0.5)(x, torch.tensor([[0.1, 0.5], [0.9, 0.5]], dtype=torch.float64))
    close(out[:1], T.rotate(45)(x[:1]))
    assert torch.equal(out[1:], x[1:])
    nested = T.sometimes(T.sometimes(inner, 0.5), 0.5)
    assert nested.num_draws == 3
    u = torch.tensor([[0.1, 0.9, 0.5], [0.1, 0.1, 0.5]], dtype=torch.float64)
    out = nested(x, u)
    assert torch.equal(out[:1], x[:1])
    close(out[1:], T.rotate(45)(x[1:]))


def test_uniforms_may_have_another_dtype_than_the_images():
    u = torch.tensor([[0.25], [0.75]], dtype=torch.float32)
    for name in ("hflip", "rotate"):
        x = images_of((2, 1, 4, 4))
        out = RANDOM[name](x, u)
        assert out.dtype == torch.float64
        close(out, RANDOM[name](x, u.double()))


def test_an_empty_range_is_deterministic():
    x = images_of((2, 1, 4, 4))
    assert T.random_rotate(30, 30).num_draws == 0
    assert torch.equal(T.random_rotate(30, 30)(x), T.rotate(30)(x))
    assert T.random_rotate(30, 31).num_draws == 1


@pytest.mark.parametrize("transform", [*DETERMINISTIC.values(), *RANDOM.values()])
def test_empty_batches_stay_empty(transform):
    out = transform(torch.zeros(0, 3, 4, 5), torch.zeros(0, transform.num_draws))
    assert out.shape == (0, 3, 4, 5)


# --- Families, wrapping, names --------------------------------------------------------------------


def test_paper_family_has_the_papers_names_and_values():
    assert [t.name for t in T.paper_family()] == ["ori", "flh", "flv", "bri", "gam", "crop"]
    family = T.paper_family(rotation=True)
    assert [t.name for t in family] == ["ori", "flh", "flv", "bri", "gam", "crop", "rot"]
    x = images_of((2, 3, 10, 10))
    crop = kornia.geometry.transform.center_crop(x, (8, 8))
    expected = [
        x,
        x.flip(3),
        x.flip(2),
        (x + 0.1).clamp(max=1),
        x**1.3,
        torch.nn.functional.interpolate(crop, (10, 10), mode="bilinear"),
        kornia.geometry.transform.rotate(x, torch.tensor(-30.0, dtype=x.dtype)),
    ]
    for transform, image in zip(family, expected, strict=True):
        close(transform(x), image)


def test_paper_random_family_has_the_papers_names_and_ranges():
    family = T.paper_random_family()
    assert [t.name for t in family] == ["ori", "flh", "flv", "bri", "crop"]
    x = images_of((3, 1, 8, 8))
    low, high, below = 0.0, 0.8, 0.79
    u = torch.tensor([[low], [below], [high]], dtype=torch.float64)
    by_name = {t.name: t(x, u) for t in family}
    assert torch.equal(by_name["ori"], x)
    for name, plain in {"flh": T.hflip, "flv": T.vflip, "bri": T.brightness(0.1)}.items():
        assert torch.equal(by_name[name], torch.cat([plain(x[:2]), x[2:]]))
    for row, fraction in enumerate([0.6, 0.6 + 0.4 * below, 0.6 + 0.4 * high]):
        close(by_name["crop"][row : row + 1], T.crop_resize(fraction)(x[row : row + 1]))


def test_families_are_fresh_lists():
    T.paper_family().clear()
    assert len(T.paper_family()) == 6


def invert(images: Tensor) -> Tensor:
    return 1 - images


def test_from_callable_wraps_functions_and_modules():
    x = images_of((2, 3, 4, 4))
    wrapped = T.from_callable(invert, name="neg")
    assert isinstance(wrapped, T.Transform)
    assert (wrapped.name, wrapped.num_draws) == ("neg", 0)
    assert torch.equal(wrapped(x), 1 - x)
    assert T.from_callable(invert).name == "invert"
    pool = T.from_callable(torch.nn.AvgPool2d(2))
    assert pool.name == "AvgPool2d"
    assert pool(x).shape == (2, 3, 2, 2)
    assert torch.equal(T.sometimes(wrapped, 1.0)(x, torch.zeros(2, 1)), 1 - x)


def test_identity_and_wrapped_functions_take_rows_of_any_shape():
    rows = images_of((5, 4))
    assert torch.equal(T.identity(rows), rows)
    assert torch.equal(T.from_callable(invert)(rows), 1 - rows)
    u = torch.tensor([[0.1], [0.9], [0.1], [0.9], [0.9]])
    out = T.sometimes(T.from_callable(invert), 0.5)(rows, u)
    assert torch.equal(out, torch.where(u < 0.5, 1 - rows, rows))


def test_named_relabels_a_copy():
    dark = T.brightness(-0.5).named("dark")
    assert dark.name == "dark"
    close(dark(picture([0.75])), picture([0.25]))
    assert T.identity.named("clean").name == "clean"
    assert T.identity.name == "ori"
    assert T.random_hflip(0.8).named("mirror").name == "mirror"


def test_equal_parameters_are_equal_transforms():
    for make in (T.brightness, T.gamma, T.crop_resize, T.rotate, T.random_hflip):
        assert make(0.5) == make(0.5)
        assert make(0.5) != make(0.75)
    assert len({T.rotate(30), T.rotate(30), T.rotate(20)}) == 2


def test_transforms_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        T.identity.name = "other"  # type: ignore[misc]


def test_a_subclass_needs_only_apply():
    class Dim(T.Transform):
        name = "dim"

        @property
        def num_draws(self) -> int:
            return 1

        def apply(self, images: Tensor, uniforms: Tensor) -> Tensor:
            return images * uniforms[:, :, None, None]

    x = images_of((2, 1, 2, 2))
    u = torch.tensor([[0.5], [0.25]], dtype=torch.float64)
    close(Dim()(x, u), torch.stack([x[0] / 2, x[1] / 4]))
    with pytest.raises(ValueError, match="'dim'"):
        Dim()(x)
    with pytest.raises(TypeError, match="abstract"):
        T.Transform()  # type: ignore[abstract]


# --- Errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.crop_resize(1.5), "`fraction` must be in (0, 1], got 1.5."),
        (lambda: T.crop_resize(0.0), "`fraction` must be in (0, 1], got 0.0."),
        (lambda: T.random_crop_resize(-0.1, 1.0), "`fraction` must be in (0, 1], got -0.1."),
        (lambda: T.random_crop_resize(0.9, 0.6), "`low` must be at most `high`, got (0.9, 0.6)."),
        (lambda: T.brightness(1.1), "`amount` must be in [-1, 1], got 1.1."),
        (lambda: T.random_brightness(math.nan), "`amount` must be in [-1, 1], got nan."),
        (lambda: T.gamma(0.0), "`exponent` must be positive and finite, got 0.0."),
        (lambda: T.random_gamma(math.inf), "`exponent` must be positive and finite, got inf."),
        (lambda: T.rotate(math.inf), "`degrees` must be finite, got inf."),
        (lambda: T.random_rotate(-10, math.nan), "`degrees` must be finite, got nan."),
        (lambda: T.random_rotate(10, -10), "`low` must be at most `high`, got (10, -10)."),
        (lambda: T.random_hflip(1.2), "`probability` must be in [0, 1], got 1.2."),
        (lambda: T.random_vflip(-0.1), "`probability` must be in [0, 1], got -0.1."),
        (lambda: T.sometimes(T.hflip, math.nan), "`probability` must be in [0, 1], got nan."),
    ],
)
def test_parameters_are_checked_at_construction(make, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize("name", [name for name in DETERMINISTIC if name != "identity"])
def test_a_single_image_is_refused(name):
    with pytest.raises(
        ValueError, match=r"`images` must have shape \(B, C, H, W\), got \(3, 4, 5\)"
    ):
        DETERMINISTIC[name](torch.zeros(3, 4, 5))


@pytest.mark.parametrize("transform", [T.identity, T.hflip, T.rotate(30)])
def test_integer_images_are_refused(transform):
    with pytest.raises(ValueError, match=r"`images` must be floating point .* got torch.uint8"):
        transform(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))


@pytest.mark.parametrize("name", RANDOM)
def test_missing_or_misshapen_uniforms_are_refused(name):
    transform, x = RANDOM[name], torch.zeros(4, 1, 2, 2)
    need = rf"`uniforms` must be .* of shape \(B, num_draws\) = \(4, {transform.num_draws}\)"
    with pytest.raises(ValueError, match=rf"{need} for '{transform.name}', got None\."):
        transform(x)
    for shape in [(4,), (3, transform.num_draws), (4, 3), (1, transform.num_draws)]:
        with pytest.raises(ValueError, match=need):
            transform(x, torch.zeros(shape))
    with pytest.raises(ValueError, match=r"got torch.int64 of shape"):
        transform(x, torch.zeros(4, transform.num_draws, dtype=torch.long))


def test_a_wrapped_function_must_keep_the_rows():
    mean = T.from_callable(lambda images: images.mean(0, keepdim=True), name="mean")
    message = r"'mean' must keep the batch axis of \(2, 1, 3, 3\), got \(1, 1, 3, 3\)"
    with pytest.raises(ValueError, match=message):
        mean(torch.zeros(2, 1, 3, 3))


def test_sometimes_needs_a_transform_that_keeps_the_shape():
    grey = T.from_callable(lambda images: images.mean(1, keepdim=True), name="grey")
    message = r"'grey' must keep the shape \(2, 3, 4, 4\), got \(2, 1, 4, 4\)"
    with pytest.raises(ValueError, match=message):
        T.sometimes(grey, 0.5)(torch.zeros(2, 3, 4, 4), torch.zeros(2, 1))


def test_all_lists_every_public_name():
    own = {
        name
        for name, value in vars(T).items()
        if not name.startswith("_")
        and (
            isinstance(value, T.Transform)
            or getattr(value, "__module__", "").startswith(T.__name__)
        )
    }
    assert own == set(T.__all__)
