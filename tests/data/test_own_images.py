"""The user's own images: every way pixels are stored becomes the right numbers, or one sentence."""

from __future__ import annotations

import gc
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import saddlepoint as sp
from image_folders import digits
from saddlepoint.data import own, splits

RAMP = np.arange(0, 256, 16, dtype=np.uint8).reshape(4, 4)
"""Sixteen grey levels, no two alike, so that nothing can be turned or scaled unnoticed."""


def one(tmp_path: Path, picture: Image.Image, name: str = "i.png", **options) -> torch.Tensor:
    """A picture as it comes out of a folder, (C, H, W)."""
    (tmp_path / "only").mkdir(parents=True, exist_ok=True)
    picture.save(tmp_path / "only" / name, **options)
    return sp.data.folder(tmp_path).images[0]


class TestClasses:
    def test_images_and_labels_are_those_that_were_saved(self, tmp_path):
        x, y = digits(tmp_path)
        found = sp.data.folder(tmp_path)
        assert torch.equal(found.images, x)
        assert torch.equal(found.labels, y)
        assert found.classes == tuple("0123456789")
        images, labels, classes = found
        assert (images is found.images, labels is found.labels, classes[3]) == (True, True, "3")

    def test_a_missing_class_does_not_shift_labels_that_are_named(self, tmp_path):
        x, y = digits(tmp_path, without=3)
        model = sp.models.load("mnist-c")
        right = (model(x).argmax(1) == y).double().mean()
        assert right > 0.95
        with pytest.raises(
            ValueError, match="got '4' in place of 3, so that labels would be shifted"
        ):
            sp.data.folder(tmp_path)
        named = sp.data.folder(tmp_path, classes=[str(k) for k in range(10)])
        assert torch.equal(named.labels, y)
        assert (model(named.images).argmax(1) == named.labels).double().mean() == right
        (tmp_path / "3").mkdir()
        assert torch.equal(sp.data.folder(tmp_path).labels, y)  # an empty folder is a class too

    def test_numbers_are_sorted_as_numbers_and_names_as_names(self, tmp_path):
        numbers = [str(k) for k in range(11)]
        for root, names in (("n", numbers), ("w", ["b10", "b2", "a"])):
            for name in (*names, ".hidden", "__MACOSX"):
                (tmp_path / root / name).mkdir(parents=True)
                Image.new("L", (2, 2), 60).save(tmp_path / root / name / "i.png")
        assert sp.data.folder(tmp_path / "n").classes == tuple(numbers)
        assert sp.data.folder(tmp_path / "w").classes == ("a", "b10", "b2")

    @pytest.mark.parametrize("besides", ["10", "__MACOSX"])
    def test_another_folder_does_not_make_up_for_a_missing_number(self, tmp_path, besides):
        digits(tmp_path, without=3)
        (tmp_path / besides).mkdir()
        with pytest.raises(ValueError, match=r"got '4' in place of 3.*list all classes"):
            sp.data.folder(tmp_path)

    def test_numbers_begin_with_zero(self, tmp_path):
        for name in ("1", "2"):
            (tmp_path / name).mkdir()
            Image.new("L", (2, 2), 60).save(tmp_path / name / "i.png")
        with pytest.raises(ValueError, match="got '1' in place of 0"):
            sp.data.folder(tmp_path)
        assert sp.data.folder(tmp_path, classes=[0, 1, 2]).labels.tolist() == [1, 2]

    def test_what_is_hidden_in_a_class_is_left_out(self, tmp_path):
        for name in ("i.png", "._i.png", ".cache/i.png", "__MACOSX/i.png", "deeper/i.png"):
            (tmp_path / "cat" / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (2, 2), 51 if "cache" in name else 102).save(tmp_path / "cat" / name)
        found = sp.data.folder(tmp_path)
        assert found.images.flatten().tolist() == pytest.approx([0.4] * 8)

    def test_lists_of_classes_from_windows(self, tmp_path):
        for name in ("café", "cat"):
            (tmp_path / name).mkdir()
            Image.new("L", (2, 2)).save(tmp_path / name / "i.png")
        file = tmp_path / "classes.txt"
        file.write_text("café\ncat\n", encoding="utf-8-sig")
        assert sp.data.folder(tmp_path).classes == ("café", "cat")
        file.write_text("cat\ncafé\n", encoding="latin-1")
        with pytest.raises(ValueError, match=r"in UTF-8, got .* byte 0xe9 in line 2; save it"):
            sp.data.folder(tmp_path)

    def test_a_list_of_classes_beside_the_folders_is_read(self, tmp_path):
        for name in ("cat", "bird"):
            (tmp_path / "f" / name).mkdir(parents=True)
            Image.new("L", (2, 2)).save(tmp_path / "f" / name / "i.png")
        lines = "dog\ncat\n\nbird \n"
        (tmp_path / "f" / "classes.txt").write_text(lines)
        inside = sp.data.folder(tmp_path / "f")
        assert (inside.classes, inside.labels.tolist()) == (("dog", "cat", "bird"), [1, 2])
        (tmp_path / "mine.txt").write_text("bird\ncat\n")
        given = sp.data.folder(tmp_path / "f", classes=tmp_path / "mine.txt")
        assert (given.classes, given.labels.tolist()) == (("bird", "cat"), [0, 1])

    @pytest.mark.parametrize(
        ("classes", "message"),
        [
            (["cat"], "`classes` must name every folder of .*, got no 'bird'"),
            (["cat", "bird", "cat"], "`classes` must name every class once, got 'cat' twice"),
            ([], "`classes` must name at least one class"),
            ("none.txt", "`classes` must be a list of names or a file with one name per line"),
            (["cat", None], "`classes` must be names, got None"),
        ],
    )
    def test_wrong_classes(self, tmp_path, classes, message):
        for name in ("cat", "bird"):
            (tmp_path / name).mkdir()
            Image.new("L", (2, 2)).save(tmp_path / name / "i.png")
        with pytest.raises(ValueError, match=message):
            sp.data.folder(tmp_path, classes=classes)

    def test_what_is_missing_is_said(self, tmp_path):
        with pytest.raises(ValueError, match="`path` must be a folder that exists"):
            sp.data.folder(tmp_path / "none")
        Image.new("L", (2, 2)).save(tmp_path / "i.png")
        with pytest.raises(ValueError, match="got 1 image directly in it and no folder"):
            sp.data.folder(tmp_path)
        (tmp_path / "cat").mkdir()
        with pytest.raises(ValueError, match=r"no image in it .*; 1 image beside, without"):
            sp.data.folder(tmp_path)

    def test_a_limit_is_spread_over_the_classes(self, tmp_path):
        for name in "abc":
            (tmp_path / name).mkdir(parents=True)
            for k in range(4):
                Image.new("L", (4, 4), 60 * k).save(tmp_path / name / f"{k}.png")
        found = sp.data.folder(tmp_path, limit=6)
        assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert (found.images[:, 0, 0, 0] * 255).round().tolist() == [0, 60] * 3
        for limit in (0, 1.5, True):
            with pytest.raises(ValueError, match=f"`limit` must be a whole number.*got {limit}"):
                sp.data.folder(tmp_path, limit=limit)


def png16(pixels: np.ndarray, colour: int) -> bytes:
    """A PNG of 16 bits per channel, which Pillow cannot write in colour."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in pixels)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


class TestPixels:
    def test_eight_bits(self, tmp_path):
        assert torch.equal(one(tmp_path, Image.fromarray(RAMP)), torch.from_numpy(RAMP)[None] / 255)

    @pytest.mark.parametrize("name", ["i.png", "i.tif", "i.pgm"])
    def test_sixteen_bits(self, tmp_path, name):
        deep = (RAMP.astype(np.uint16) * 257 + 7 * (RAMP < 200)).astype(np.uint16)
        found = one(tmp_path, Image.fromarray(deep), name)
        expected = torch.from_numpy(deep.astype(np.float32))[None] / 65535
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
        assert found.unique().numel() == 16

    def test_sixteen_bits_of_colour_are_read_with_eight(self, tmp_path):
        deep = np.zeros((4, 4, 3), np.uint16)
        deep[..., 0], deep[..., 2] = RAMP.astype(np.uint16) * 257, 65535
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "i.png").write_bytes(png16(deep, 2))
        found = sp.data.folder(tmp_path).images[0]
        assert torch.equal(found[0], torch.from_numpy(RAMP) / 255)
        assert found[1].max() == 0
        assert found[2].min() == 1

    def test_one_bit(self, tmp_path):
        found = one(tmp_path, Image.fromarray(RAMP > 100))
        assert torch.equal(found, torch.from_numpy(RAMP > 100)[None].float())

    def test_floats_in_range_are_taken_as_they_are_and_others_refused(self, tmp_path):
        values = np.linspace(0, 1, 16, dtype=np.float32).reshape(4, 4)
        assert torch.equal(
            one(tmp_path / "a", Image.fromarray(values), "i.tif"), torch.from_numpy(values)[None]
        )
        with pytest.raises(ValueError, match=r"i\.tif.* floats in \[0, 1\], got .* to 255"):
            one(tmp_path / "b", Image.fromarray(values * 255), "i.tif")

    def test_integers_of_unknown_depth_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"i\.tif.* 32-bit integers.* 8 or 16 bits"):
            one(tmp_path, Image.fromarray(RAMP.astype(np.int32)), "i.tif")

    def test_a_palette_is_looked_up(self, tmp_path):
        picture = Image.new("P", (2, 1))
        picture.putpalette([255, 0, 0, 0, 0, 255])
        picture.putpixel((1, 0), 1)
        found = one(tmp_path, picture)
        assert found.tolist() == [[[1, 0]], [[0, 0]], [[0, 1]]]

    def test_a_palette_of_greys_is_grey(self, tmp_path):
        picture = Image.fromarray(RAMP).convert("P")
        assert picture.mode == "P"
        assert torch.equal(one(tmp_path, picture), torch.from_numpy(RAMP)[None] / 255)

    def test_twelve_bits_in_sixteen_are_noticed(self, tmp_path):
        deep = RAMP.astype(np.uint16) * 17
        with pytest.warns(UserWarning, match=r"nearly black, with no value above 0\.062 of 1"):
            one(tmp_path, Image.fromarray(deep))

    def test_transparent_pixels_are_white(self, tmp_path):
        palette = Image.new("P", (2, 1))
        palette.putpalette([255, 0, 0, 0, 0, 255])
        palette.putpixel((1, 0), 1)
        found = one(tmp_path / "p", palette, transparency=1)
        assert found.tolist() == [[[1, 1]], [[0, 1]], [[0, 1]]]
        colour = Image.new("RGBA", (3, 1), (255, 0, 0, 255))
        colour.putpixel((1, 0), (0, 0, 0, 0))
        colour.putpixel((2, 0), (0, 0, 0, 51))
        found = one(tmp_path / "c", colour)
        assert (found * 255).round().tolist() == [[[255, 255, 204]], *[[[0, 255, 204]]] * 2]
        grey = Image.new("LA", (2, 1), (100, 255))
        grey.putpixel((1, 0), (100, 0))
        found = one(tmp_path / "g", grey)
        assert found.shape == (1, 1, 2)
        assert (found * 255).round().flatten().tolist() == [100, 255]

    def test_a_transparent_value_of_sixteen_bits_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"i\.png.* transparent"):
            one(tmp_path, Image.fromarray(RAMP.astype(np.uint16)), transparency=16)

    def test_photographs_are_turned_as_their_camera_says(self, tmp_path):
        picture = Image.new("L", (8, 16), 0)
        picture.paste(255, (0, 0, 8, 8))  # upright: the upper half is white
        exif = Image.Exif()
        exif[0x0112] = 6  # turn by 90 degrees to the right to see it upright
        lying = picture.transpose(Image.Transpose.ROTATE_90)
        found = one(tmp_path, lying, "i.jpg", exif=exif, quality=95)
        assert found.shape == (1, 16, 8)
        assert found[:, :8].mean() > 0.95
        assert found[:, 8:].mean() < 0.05

    def test_printers_colours(self, tmp_path):
        picture = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # magenta and yellow make red
        found = one(tmp_path, picture, "i.jpg", quality=95)
        assert found.shape == (3, 16, 16)
        assert found[0].min() > 0.95
        assert found[1:].max() < 0.05

    def test_films_are_refused(self, tmp_path):
        first, second = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
        with pytest.raises(ValueError, match=r"i\.gif.* one picture, got 2"):
            one(tmp_path, first, "i.gif", save_all=True, append_images=[second])

    @pytest.mark.parametrize("content", [b"", b"not an image", png16(RAMP[..., None], 0)[:60]])
    def test_damaged_files_are_named(self, tmp_path, content):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "broken.png").write_bytes(content)
        with pytest.raises(ValueError, match=r"broken\.png.* must be an image"):
            sp.data.folder(tmp_path)

    def test_grey_among_colour_gets_three_channels(self, tmp_path):
        (tmp_path / "a").mkdir()
        Image.new("L", (2, 2), 51).save(tmp_path / "a" / "1.png")
        Image.new("RGB", (2, 2), (255, 0, 0)).save(tmp_path / "a" / "2.png")
        found = sp.data.folder(tmp_path).images
        assert found[:, :, 0, 0].tolist() == [pytest.approx([0.2] * 3), [1, 0, 0]]


class TestSize:
    def test_sizes_that_differ_are_refused_unless_one_is_asked_for(self, tmp_path):
        for name, side in (("a", 8), ("b", 9)):
            (tmp_path / name).mkdir()
            Image.new("RGB", (side, 2 * side), (51, 102, 255)).save(tmp_path / name / "i.png")
        with pytest.raises(ValueError, match="one size, got 8x16, 9x18; give `size`"):
            sp.data.folder(tmp_path)
        found = sp.data.folder(tmp_path, size=4).images
        assert found.shape == (2, 3, 4, 4)
        for channel, value in enumerate((51, 102, 255)):
            assert (found[:, channel] * 255).round().unique().tolist() == [value]

    def test_the_shorter_side_is_shrunk_and_the_centre_kept(self, tmp_path):
        # Wide: three squares of 8 pixels, only the middle one stays, averaged two by two.
        wide = np.zeros((8, 24), np.uint8)
        wide[:, 8:16] = np.kron(RAMP, np.ones((2, 2), np.uint8))
        picture = Image.fromarray(wide)
        (tmp_path / "a").mkdir()
        picture.save(tmp_path / "a" / "i.png")
        found = sp.data.folder(tmp_path, size=4).images[0, 0]
        # Pillow's own bilinear filter, which averages over all pixels a new one covers.
        shrunk = np.asarray(picture.resize((12, 4), Image.Resampling.BILINEAR))[:, 4:8]
        assert ((found * 255).round() - torch.from_numpy(shrunk.copy())).abs().max() <= 1
        assert torch.equal(found * 255, (found * 255).round())  # still 8-bit pixels

    def test_thin_stripes_are_averaged_not_sampled(self, tmp_path):
        stripes = np.tile(np.array([0, 255], np.uint8), (32, 16))
        (tmp_path / "a").mkdir()
        Image.fromarray(stripes).save(tmp_path / "a" / "i.png")
        found = sp.data.folder(tmp_path, size=8).images
        assert (found - 0.5).abs().max() < 0.05

    def test_wrong_size(self, tmp_path):
        for size in (0, 2.5):
            with pytest.raises(ValueError, match=f"`size` must be a whole number.*got {size}"):
                sp.data.folder(tmp_path, size=size)


class TestNpz:
    @pytest.mark.parametrize(
        ("images", "scale"),
        [
            (RAMP, 255),
            (RAMP > 100, 1),
            (RAMP.astype(np.uint16) * 257, 65535),
            ((RAMP.astype(np.uint16) * 257).astype(">u2"), 65535),
            (RAMP.astype(np.int64), 255),
            (RAMP / 255, 1),
            ((RAMP / 255).astype(">f4"), 1),
        ],
        ids=["uint8", "bool", "uint16", ">u2", "int64", "float64", ">f4"],
    )
    def test_every_type_has_its_scale(self, tmp_path, images, scale):
        np.savez(tmp_path / "d.npz", images=images[None], labels=np.array([2]))
        found = own.npz(tmp_path / "d.npz")
        expected = torch.from_numpy(images.astype(np.float64) / scale)
        torch.testing.assert_close(found.images[0, 0].double(), expected, rtol=0, atol=1e-7)
        assert found.images.dtype == torch.float32
        assert (found.labels.tolist(), found.classes) == ([2], ("0", "1", "2"))

    @pytest.mark.parametrize(
        "images",
        [RAMP.astype(np.uint16) * 17, RAMP // 16, RAMP / 255 / 255],
        ids=["12 bits", "4 bits", "divided twice"],
    )
    def test_images_that_are_nearly_black_are_noticed(self, tmp_path, images):
        np.savez(tmp_path / "d.npz", images=images[None], labels=np.array([0]))
        with pytest.warns(UserWarning, match=r"d\.npz are nearly black"):
            own.npz(tmp_path / "d.npz")

    def test_names_of_classes_that_are_bytes_or_numbers(self, tmp_path):
        for stored in (np.array([b"caf\xc3\xa9", b"2"]), np.array(["café", "2"])):
            np.savez(tmp_path / "d.npz", images=RAMP[None], labels=np.array([1]), classes=stored)
            assert own.npz(tmp_path / "d.npz").classes == ("café", "2")
        np.savez(tmp_path / "d.npz", images=RAMP[None], labels=np.array([1]), classes=[7, 8])
        assert own.npz(tmp_path / "d.npz").classes == ("7", "8")

    @pytest.mark.parametrize("layout", ["nhw", "nhwc", "nchw"])
    def test_layouts(self, tmp_path, layout):
        images = np.random.default_rng(0).integers(0, 256, (6, 10, 12), dtype=np.uint8)
        shaped = {"nhw": images, "nhwc": images[..., None], "nchw": images[:, None]}[layout]
        names = ["a", "b", "c"]
        np.savez(tmp_path / "d.npz", images=shaped, labels=np.arange(6) % 3, classes=names)
        found = own.npz(tmp_path / "d.npz", limit=4)
        assert torch.equal((found.images * 255).round().byte()[:, 0], torch.from_numpy(images[:4]))
        assert found.classes == ("a", "b", "c")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"labels": None}, "must hold arrays `images` and `labels`, got images"),
            ({"labels": np.zeros(3, int)}, "one integer label"),
            ({"labels": np.zeros(2)}, "one integer label"),
            ({"labels": np.array([0, -1])}, "labels from 0 on, got -1"),
            ({"labels": np.array([0, 3]), "classes": ["a", "b"]}, "name of every label, got 2"),
            ({"labels": np.array([0, 2**63], np.uint64)}, "below 100,000.*got 9223372036854775808"),
            ({"classes": np.array("cat,dog")}, r"`classes` in .* list of names.* shape \(\)"),
            ({"classes": np.array([b"\xe9", b"a"])}, "`classes` in .* must be in UTF-8"),
            ({"classes": np.array(["a", "a"])}, "every class once, got 'a' twice"),
            ({"labels": np.array([0, None])}, "`labels` must be numbers, got Python objects"),
            ({"images": np.array([[["a"]], [["b"]]])}, "`images` must be numbers, got"),
            ({"images": np.array([{"evil": 1}, 2], dtype=object)}, "got Python objects"),
            ({"images": np.full((2, 3, 3), 7.0)}, r"floats in \[0, 1\], got .*7"),
            ({"images": np.full((2, 3, 3), np.nan)}, r"floats in \[0, 1\]"),
            ({"images": np.zeros((2, 3))}, r"\(N, C, H, W\)"),
            ({"images": np.ones((2, 3, 3), np.uint8)}, "between 0 and 1.*bool"),
            ({"images": np.ones((2, 3, 3), int)}, "between 0 and 1.*bool"),
            ({"images": np.full((2, 3, 3), 200, np.uint16)}, "uint16.*uint8"),
            ({"images": np.full((2, 3, 3), 256, int)}, "0 to 255.*got .*256"),
            ({"images": np.full((2, 3, 3), -1, np.int8)}, "0 to 255.*got .*-1"),
            ({"images": np.ones((2, 3, 3), complex)}, "`images` must be numbers, got complex"),
        ],
        ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
    )
    def test_what_cannot_be_read_rightly_is_refused(self, tmp_path, changes, message):
        arrays = {"images": np.zeros((2, 3, 3)), "labels": np.array([0, 1]), **changes}
        np.savez(tmp_path / "d.npz", **{k: v for k, v in arrays.items() if v is not None})
        with pytest.raises(ValueError, match=message) as caught:
            own.npz(tmp_path / "d.npz")
        assert "\n" not in str(caught.value)

    def test_arrays_that_are_not_needed_are_not_read(self, tmp_path):
        extra = np.array([{"anything": 1}], dtype=object)
        np.savez(tmp_path / "d.npz", images=RAMP[None], labels=np.array([0]), notes=extra)
        assert own.npz(tmp_path / "d.npz").images.shape == (1, 1, 4, 4)

    def test_classes_may_be_given(self, tmp_path):
        np.savez(tmp_path / "d.npz", images=RAMP[None], labels=np.array([1]))
        assert own.npz(tmp_path / "d.npz", classes=["a", "b"]).classes == ("a", "b")
        with pytest.raises(ValueError, match="name of every label, got 1"):
            own.npz(tmp_path / "d.npz", classes=["a"])

    def test_what_is_no_npz(self, tmp_path):
        (tmp_path / "d.npz").write_bytes(b"no")
        with pytest.raises(ValueError, match=r"d\.npz.* must be an \.npz file"):
            own.npz(tmp_path / "d.npz")

    def test_a_single_array_under_the_name_of_several(self, tmp_path):
        with (tmp_path / "d.npz").open("wb") as file:
            np.save(file, RAMP[None])
        with pytest.raises(ValueError, match=r"d\.npz.* must be an \.npz file, got a single array"):
            own.npz(tmp_path / "d.npz")

    def test_a_damaged_file_is_closed(self, tmp_path):
        (tmp_path / "d.npz").write_bytes(b"PK\x03\x04" + b"no" * 50)
        gc.collect()  # what other tests have left open is not meant
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            with pytest.raises(ValueError, match=r"d\.npz.* must be an \.npz file"):
                own.npz(tmp_path / "d.npz")
            gc.collect()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int16])
def test_labels_of_any_whole_numbers_are_divided_alike(dtype):
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    for split in splits.SPLITS:
        assert torch.equal(splits.rows_of(labels.to(dtype), split), splits.rows_of(labels, split))


@pytest.mark.parametrize("label", [-1, 2**33])
def test_labels_that_are_no_numbers_of_classes_are_not_divided(label):
    with pytest.raises(ValueError, match=f"labels from 0 to 99,999, got {label}"):
        splits.rows_of(torch.tensor([0, 0, label]), "train")
