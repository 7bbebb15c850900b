"""Networks outside the wheel: bits, folders, hashes, and what is said where there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import saddlepoint as sp
from commands import inside
from saddlepoint.models import loading
from saddlepoint.models.packed import pack, unpack


@pytest.mark.parametrize("bits", [8, 16])
def test_entries_come_back_as_near_as_the_bits_allow(bits: int) -> None:
    generator = torch.Generator().manual_seed(0)
    filters = (
        torch.randn(5, 3, 4, 4, generator=generator)
        * torch.tensor([1e-3, 1, 50, 0, 7])[:, None, None, None]
    )
    given = {"f": filters, "b": torch.randn(5, generator=generator), "n": torch.tensor(7)}
    small = pack(given, bits)  # type: ignore[arg-type]
    back = unpack(small)
    assert set(back) == set(given)
    assert torch.equal(back["b"], given["b"])
    assert torch.equal(back["n"], given["n"])
    error = (back["f"].float() - filters).abs().flatten(1).amax(dim=1)
    largest = filters.abs().flatten(1).amax(dim=1)
    assert bool((error <= largest * (0.5 / 127 if bits == 8 else 2.0**-11) * 1.001).all())
    kept = sum(t.numel() * t.element_size() for n, t in small.items() if n.startswith("f"))
    assert kept <= filters.numel() * bits / 8 + 4 * 5


def test_int8_entries_without_a_scale_are_left_alone() -> None:
    table = {"a": torch.ones(2, 2, dtype=torch.int8), "b.scale": torch.ones(2)}
    assert unpack(table) is table


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The folder of a training, with the parameters of mnist-c."""
    folder = tmp_path / "run"
    folder.mkdir()
    for suffix in ("json", "safetensors"):
        content = (loading._folder() / f"mnist-c.{suffix}").read_bytes()
        (folder / f"model.{suffix}").write_bytes(content)
    return folder


@pytest.mark.parametrize("bits", [8, 16])
def test_a_packed_network_is_found_checked_and_as_good(
    bits: int,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    weights = tmp_path / "weights"
    x, y = sp.data.sample("mnist", 200)
    monkeypatch.setattr("saddlepoint.data.load", lambda *args, **flags: (x, y))
    words = ("models", "pack", trained, "mnist-h", "--out", weights, "--bits", bits)
    assert inside(*words) == 0
    assert "% right as it is kept" in capsys.readouterr().out
    size = (weights / "mnist-h.safetensors").stat().st_size
    assert size < (trained / "model.safetensors").stat().st_size * (bits / 32 + 0.05)
    assert "mnist-h" not in sp.models.shipped()
    monkeypatch.setenv("SADDLEPOINT_WEIGHTS", str(weights))
    assert "mnist-h" in sp.models.shipped()
    network = sp.models.load("mnist-h")
    assert next(network.parameters()).dtype == torch.float32
    before = sp.models.load("mnist-c")(x).argmax(dim=1)
    assert (network(x).argmax(dim=1) == before).double().mean() >= 0.99
    card = sp.models.card("mnist-h")
    right = 100 * (network(x).argmax(dim=1) == y).double().mean().item()
    assert (card.accuracy, card.test_images) == (pytest.approx(right, abs=0.01), 200)
    content = bytearray((weights / "mnist-h.safetensors").read_bytes())
    content[-1] ^= 1
    (weights / "mnist-h.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="SHA-256 of `mnist-h` must be"):
        sp.models.load("mnist-h")
    assert load_file(trained / "model.safetensors")


def test_what_is_in_the_package_goes_first(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in ("json", "safetensors"):
        (tmp_path / f"mnist-a.{suffix}").write_bytes((trained / f"model.{suffix}").read_bytes())
    monkeypatch.setenv("SADDLEPOINT_WEIGHTS", str(tmp_path))
    assert sp.models.card("mnist-a").architecture == "A"
    (tmp_path / "alone.safetensors").write_bytes(b"")  # no card beside it
    assert "alone" not in sp.models.shipped()


def test_a_network_of_the_paper_without_parameters_says_how_to_get_them() -> None:
    if "cifar10-g" in sp.models.shipped():
        pytest.skip("somebody has trained it")
    with pytest.raises(
        ValueError, match="train --data cifar10 --model G --precision auto"
    ) as error:
        sp.models.load("cifar10-g")
    assert "SADDLEPOINT_WEIGHTS" in str(error.value)
    with pytest.raises(ValueError, match="`source` must be one of"):
        sp.models.load("cifar10-z")


def test_a_folder_that_is_no_training_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside("models", "pack", tmp_path, "cifar10-e", "--out", tmp_path) == 2
    assert "must hold model.safetensors and model.json" in capsys.readouterr().err
    assert json.dumps(sorted(p.name for p in tmp_path.iterdir())) == "[]"


def test_what_is_there_is_replaced_only_if_asked_and_only_if_it_is_a_network(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("saddlepoint.data.load", lambda *_, **__: sp.data.sample("mnist", 50))
    out = tmp_path / "weights"
    words = ("models", "pack", trained, "mnist-h", "--out", out)
    out.mkdir()
    for ending in ("safetensors", "json"):
        foreign = out / f"mnist-h.{ending}"
        foreign.write_text("mine")
        assert inside(*words) == 2
        assert "must not be there yet; add --overwrite" in capsys.readouterr().err
        assert inside(*words, "--overwrite") == 2
        assert "got files that are no network with a card" in capsys.readouterr().err
        assert [path.read_text() for path in out.iterdir()] == ["mine"]
        foreign.unlink()
    assert inside(*words) == 0
    large = (out / "mnist-h.safetensors").stat().st_size
    assert inside(*words, "--bits", 8) == 2
    assert (out / "mnist-h.safetensors").stat().st_size == large
    assert inside(*words, "--bits", 8, "--overwrite") == 0
    assert (out / "mnist-h.safetensors").stat().st_size < large
    # The training that it is made of is never replaced by it.
    whole = (trained / "model.safetensors").read_bytes()
    assert inside("models", "pack", trained, "model", "--out", trained, "--overwrite") == 2
    assert "got the network of the training itself" in capsys.readouterr().err
    assert (trained / "model.safetensors").read_bytes() == whole
