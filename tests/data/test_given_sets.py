"""Data sets that a user wrote: every form becomes the same images and labels, or one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

import saddlepoint as sp

RAMP = np.arange(0, 240, 5, dtype=np.uint8).reshape(3, 4, 4)
"""Three grey pictures, no two pixels alike."""
EXPECTED = torch.from_numpy(RAMP.astype(np.float32) / 255).unsqueeze(1)


class Pictures(Dataset):
    """As torchvision's without a transform: pictures of PIL, and names of classes."""

    classes = ("cat", "dog", "bird", "fish")

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return Image.fromarray(RAMP[index % 3]), index % 3


FORMS = {
    "pictures": Pictures(),
    "bytes without channels": list(zip(RAMP, range(3), strict=True)),
    "bytes": list(zip(torch.from_numpy(RAMP).unsqueeze(1), range(3), strict=True)),
    "floats": TensorDataset(EXPECTED, torch.arange(3)),
    "halves": TensorDataset(EXPECTED.half(), torch.arange(3)),
    "loader": DataLoader(TensorDataset(EXPECTED, torch.arange(3)), batch_size=2),
    "one pair": (EXPECTED, torch.arange(3)),
    "arrays": (RAMP, np.arange(3)),
    "labelled": sp.data.LabelledImages(EXPECTED, torch.arange(3), ("a", "b", "c")),
}


@pytest.mark.parametrize("form", FORMS)
def test_images_and_labels_are_those_of_the_data_set(form):
    x, y, names = sp.data.from_dataset(FORMS[form])
    torch.testing.assert_close(x, EXPECTED, atol=5e-4 if form == "halves" else 1e-7, rtol=0)
    assert (x.dtype, y.tolist(), y.dtype) == (torch.float32, [0, 1, 2], torch.int64)
    known = {"pictures": Pictures.classes, "labelled": ("a", "b", "c")}
    assert names == known.get(form, ("0", "1", "2"))
    few = sp.data.from_dataset(FORMS[form], limit=2)
    assert (few.labels.tolist(), len(few.images)) == ([0, 1], 2)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_may_be_last_as_numpy_and_opencv_have_them(channels):
    pixels = np.arange(6 * 5 * channels, dtype=np.uint8).reshape(6, 5, channels)
    x = sp.data.from_dataset([(pixels, 0)]).images
    assert torch.equal(x, sp.data.from_dataset([(pixels.transpose(2, 0, 1), 0)]).images)
    assert x.shape == (1, channels, 6, 5)


def test_channels_are_first_where_both_ends_could_be():
    assert sp.data.from_dataset([(np.zeros((4, 6, 3), np.uint8), 0)]).images.shape == (1, 4, 6, 3)


def test_only_as_many_images_are_read_as_are_wanted():
    def stream():
        yield from FORMS["bytes"][:2]
        raise AssertionError("the third image was not asked for")

    assert len(sp.data.from_dataset(stream(), limit=2).images) == 2


def test_images_of_several_sizes_are_resized_as_those_of_a_folder(tmp_path):
    sides = ((40, 30), (28, 28))
    pictures = [Image.effect_mandelbrot(side, (-2, -1, 1, 1), 50).convert("L") for side in sides]
    for label, picture in enumerate(pictures):
        (tmp_path / str(label)).mkdir()
        picture.save(tmp_path / str(label) / "i.png")
    pairs = [(picture, label) for label, picture in enumerate(pictures)]
    with pytest.raises(
        ValueError, match=r"one shape, got \(1, 30, 40\) and \(1, 28, 28\); give `size`"
    ):
        sp.data.from_dataset(pairs)
    ours, theirs = sp.data.from_dataset(pairs, size=14), sp.data.folder(tmp_path, size=14)
    assert torch.equal(ours.images, theirs.images)
    assert ours.images.shape == (2, 1, 14, 14)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([], {}, "at least one image"),
        ([(torch.randn(1, 4, 4), 0)], {}, r"floats in \[0, 1\].*leave normalisation to the model"),
        ([(torch.rand(4), 0)], {}, r"images \(C, H, W\) or \(H, W\)"),
        ([(torch.rand(4, 4), -1)], {}, "labels from 0 on, got .* label -1"),
        ([(torch.rand(4, 4), 0.5)], {}, "labels from 0 on, got .* label 0.5"),
        ([(torch.rand(4, 4), 3)], {"classes": ["a", "b"]}, "got 2 names and label 3"),
        ([(torch.rand(4, 4), 10**6)], {}, "labels below 100,000"),
        ([(torch.rand(4, 4), 0)], {"size": 0}, "`size` must be a whole number"),
    ],
)
def test_what_cannot_be_read_rightly_is_refused(source, options, message):
    with pytest.raises(ValueError, match=message):
        sp.data.from_dataset(source, **options)
