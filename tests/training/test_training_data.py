"""What `train` takes in place of a loader of tensors."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

import saddlepoint as sp
from saddlepoint.loaders import in_order
from small_training import assert_equal_bits, bits, network

X, Y = (part[:48] for part in sp.data.sample("mnist", 60))
HELD_OUT = tuple(part[48:] for part in sp.data.sample("mnist", 60))
RECIPE = sp.Recipe("mine", "adamw", 0.01, 1, batch_size=16)


def trained(loader, **options):
    model = network()
    history = sp.train(model, loader, recipe=RECIPE, seed=3, **options)
    return bits(model), history


def test_a_data_set_is_shuffled_into_batches_of_the_recipe():
    data = TensorDataset(X, Y)
    found, history = trained(data)
    expected, _ = trained(DataLoader(data, batch_size=16, shuffle=True))
    assert_equal_bits(found, expected)
    assert history[0].steps == 3


def test_arrays_are_batches():
    found, _ = trained([(X.numpy()[:24], Y.numpy()[:24]), (X.numpy()[24:], Y.numpy()[24:])])
    expected, _ = trained([(X[:24], Y[:24]), (X[24:], Y[24:])])
    assert_equal_bits(found, expected)


def test_held_out_images_come_from_a_loader_or_a_data_set():
    data = TensorDataset(*HELD_OUT)
    scores = [
        trained(TensorDataset(X, Y), validation=given)[1][0].validation
        for given in (HELD_OUT, data, DataLoader(data, batch_size=5))
    ]
    assert scores[0] == scores[1] == scores[2]
    assert 0 < scores[0]["clean"] <= 1


class Made(Dataset):
    """Images that exist when they are asked for, and how many of them were alive at most."""

    def __init__(self, count: int) -> None:
        self.count, self.alive, self.most = count, weakref.WeakSet(), 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        image = torch.full((1, 28, 28), index / self.count)
        self.alive.add(image)
        self.most = max(self.most, len(self.alive))
        return image, index % 10


@pytest.mark.parametrize("loader", [None, False, True])
def test_held_out_images_are_read_batch_by_batch_where_their_order_is_fixed(loader):
    data = Made(600)
    given = data if loader is None else DataLoader(data, batch_size=50, shuffle=loader)
    _, history = trained(TensorDataset(X, Y), epochs=2, validation=given)
    most = data.most
    expected = trained(TensorDataset(X, Y), epochs=2, validation=tuple(given_at_once(data)))[1]
    assert [each.validation for each in history] == [each.validation for each in expected]
    # What shuffles is kept, so that all epochs are compared on the same images in the same order.
    if loader is None:
        assert most <= 251


def test_a_sampler_of_batches_that_shuffles_is_read_once():
    data = TensorDataset(X, Y)
    for sampler in (
        BatchSampler(RandomSampler(data, num_samples=6), 3, False),
        [[0, 1], [2]],
    ):
        assert not in_order(DataLoader(data, batch_sampler=sampler))
    assert in_order(DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 3, False)))
    assert in_order(DataLoader(data, batch_size=None))
    # Every epoch is judged on the same images, those that were drawn first.
    noted = Noted(data)
    shuffled = BatchSampler(RandomSampler(noted, num_samples=6), 3, False)
    trained(data, epochs=3, validation=DataLoader(noted, batch_sampler=shuffled))
    assert len(noted.asked) == 6


class Noted(Dataset):
    def __init__(self, data):
        self.data, self.asked = data, []

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.data[index]


def given_at_once(data):
    images, labels = zip(*(data[index] for index in range(len(data))), strict=True)
    return torch.stack(images), torch.tensor(labels)


def test_nothing_to_validate_on_is_said_before_the_training():
    for empty in (TensorDataset(X[:0], Y[:0]), DataLoader(TensorDataset(X[:0], Y[:0]))):
        with pytest.raises(ValueError, match="at least one batch of images and labels, got none"):
            trained(TensorDataset(X, Y), validation=empty, callback=pytest.fail)


@pytest.mark.parametrize("given", ["pair", "data set", "loader", "shuffled"])
@pytest.mark.parametrize(
    ("x", "y", "kind", "told"),
    [
        ((X * 255).byte(), Y, TypeError, r"^`validation` must "),
        (3 * X, Y, ValueError, r"^`validation` must "),
        (
            X,
            Y + 20,
            ValueError,
            r"^the labels of `validation` must be in 0 \.\.\. 9, as the model has 10",
        ),
    ],
)
def test_a_wrong_validation_set_is_said_before_the_training(given, x, y, kind, told):
    data = TensorDataset(x, y)
    loader = DataLoader(data, batch_size=7, shuffle=given == "shuffled")
    validation = {"pair": (x, y), "data set": data}.get(given, loader)
    with pytest.raises(kind, match=told):
        trained(TensorDataset(X, Y), validation=validation, callback=pytest.fail)


def test_a_validation_set_without_labels_is_said_before_the_training():
    with pytest.raises(TypeError, match=r"^`validation` must give pairs of images and labels, got"):
        trained(TensorDataset(X, Y), validation=Noted(X), callback=pytest.fail)


def test_the_first_look_at_the_validation_set_draws_nothing():
    class Noisy(Noted):
        def __getitem__(self, index):
            torch.rand(3)
            return self.data[index]

    expected = trained(TensorDataset(X, Y), validation=HELD_OUT)
    found = trained(TensorDataset(X, Y), validation=Noisy(TensorDataset(*HELD_OUT)))
    assert_equal_bits(found[0], expected[0])
    assert found[1][0].validation == expected[1][0].validation


def test_a_stream_cannot_be_shuffled():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(X[0], Y[0])])

    with pytest.raises(TypeError, match="a data set that can be shuffled, got an IterableDataset"):
        sp.train(network(), Stream())
    assert torch.equal(X, sp.data.sample("mnist", 48)[0])
