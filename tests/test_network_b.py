"""Why network B is hard: the variants differ in what they say, and the table is what was stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import marks, network_b

from folders import ROOT

FOUND = {"clean": 96.5, "left_alone": 1.0, "slope": 56.38, "asr_all_average": 35.5}
FOUND |= {f"left_average_{name}": 10.0 + k for k, name in enumerate("ABCD")}
CONTENT = {
    "settings": {"images": 10_000, "epochs": 4, "test_images": 200, "seed": 0},
    "variants": {"as shipped": FOUND},
}


def made(variant: network_b.Variant) -> torch.nn.Sequential:
    torch.manual_seed(1)
    return network_b.network(variant).eval()


def test_without_the_shift_a_network_sees_what_it_would_see_after_it() -> None:
    x = torch.rand(2, 1, 28, 28)
    shifted, plain = made(network_b.Variant()), made(network_b.Variant(shift=False))
    torch.testing.assert_close(plain(x - 0.5), shifted(x))
    assert not torch.allclose(plain(x), shifted(x))


def test_a_stride_of_two_leaves_every_second_place_of_the_last_convolution() -> None:
    x = torch.rand(2, 1, 28, 28)
    one, two = made(network_b.Variant()), made(network_b.Variant(stride=2))
    places = one[:-2](x)
    assert places.shape[-1] == 7
    torch.testing.assert_close(two(x), places[..., ::2, ::2].mean(dim=(2, 3)))


def test_a_line_has_the_numbers_of_its_variant_and_the_first_line_those_of_the_paper() -> None:
    _, _, paper, ours = network_b.render(CONTENT).split("\n\n")[0].splitlines()
    cells = [cell.strip() for cell in ours.strip("|").split("|")]
    assert cells == ["as shipped", "96.5", "1.0", "56.4", "10.0", "11.0", "12.0", "13.0", "35.5"]
    cells = [cell.strip() for cell in paper.strip("|").split("|")]
    assert cells == ["the paper's", "99.5", "-", "-", "1.1", "0.1", "41.1", "35.0", "48.2"]


def test_the_page_has_the_table_of_the_store() -> None:
    content = json.loads((ROOT / network_b.STUDY.store).read_text(encoding="utf-8"))
    text = (ROOT / network_b.STUDY.page).read_text(encoding="utf-8")
    assert list(content["variants"]) == list(network_b.VARIANTS)
    assert f"<!-- network b -->\n{network_b.render(content)}<!-- end -->" in text, (
        "write it again: python -m benchmarks.network_b --render"
    )


def test_a_store_of_other_settings_is_left_alone(tmp_path: Path) -> None:
    store, page = tmp_path / "store.json", tmp_path / "page.md"
    store.write_text(json.dumps(CONTENT))
    said: list[str] = []
    words = ["--store", str(store), "--page", str(page), "--epochs", "5"]
    assert network_b.STUDY.main(words, said.append) == 2
    assert "'epochs': 5" in said[0]
    assert json.loads(store.read_text()) == CONTENT


class TestMarks:
    def test_only_what_is_between_the_marks_is_made_anew(self, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text("a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\nkept\n<!-- end -->\n")
        marks.put(page, "new\n", "<!-- x -->")
        expected = "a\n<!-- x -->\nnew\n<!-- end -->\nb\n<!-- y -->\nkept\n<!-- end -->\n"
        assert page.read_text() == expected

    @pytest.mark.parametrize("text", ["", "<!-- x -->\n", "<!-- end -->\n<!-- x -->\n"])
    def test_a_page_that_lacks_a_mark_stays_as_it_is(self, text: str, tmp_path: Path) -> None:
        page = tmp_path / "page.md"
        page.write_text(text)
        with pytest.raises(ValueError, match="must have the marks"):
            marks.put(page, "new\n", "<!-- x -->")
        assert page.read_text() == text
