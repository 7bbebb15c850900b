"""The authors' loss and start in Table 3: the loss as their code computes it, and the page's table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import authors_protocol

from folders import ROOT
from saddlepoint.experiments import find


def test_the_loss_is_blind_to_all_logits_but_the_attacked_one() -> None:
    logits = torch.randn(5, 2, 10, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.arange(10).view(5, 2)
    loss = authors_protocol.zero_logit_margin(logits, labels)
    assert loss.shape == (5, 2)
    (slope,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.equal(slope, torch.nn.functional.one_hot(labels, 10).float())
    # Their code: max(real - other + kappa, 0), where other is 0 for whatever the wrong classes have.
    real = (torch.nn.functional.one_hot(labels, 10) * logits).sum(dim=-1)
    assert torch.allclose(loss, torch.relu(real - 0 + 50))


def test_the_page_has_the_table_of_the_store() -> None:
    content = json.loads((ROOT / authors_protocol.STUDY.store).read_text(encoding="utf-8"))
    text = (ROOT / authors_protocol.STUDY.page).read_text(encoding="utf-8")
    keys = [block.key for block in find(authors_protocol.EXPERIMENT).blocks]
    assert list(content["rates"]) == list(authors_protocol.VARIANTS)
    assert all(list(rates) == keys for rates in content["rates"].values())
    assert f"<!-- authors' protocol -->\n{authors_protocol.render(content)}<!-- end -->" in text, (
        "write it again: python -m benchmarks.authors_protocol --render"
    )


SETTINGS = '"settings": {"images": 1, "seed": 0, "precision": "float32"}'
BALL = '{"l0-50": {"avg": %s, "minmax": 2.0}}'


@pytest.mark.parametrize("text", ["{", "{}", f'{{{SETTINGS}, "rates": {{"both": {BALL % 101}}}}}'])
def test_a_store_that_is_not_whole_is_one_sentence(text: str, tmp_path: Path) -> None:
    store = tmp_path / "store.json"
    store.write_text(text)
    with pytest.raises(ValueError, match="must be a whole file of measurements"):
        authors_protocol.STUDY.main(["--store", str(store), "--render"])


def test_a_variant_that_was_stopped_inside_has_no_line_yet(tmp_path: Path) -> None:
    store, page = tmp_path / "store.json", tmp_path / "page.md"
    store.write_text(f'{{{SETTINGS}, "rates": {{"both": {BALL % 1}}}}}')
    page.write_text("<!-- authors' protocol -->\n<!-- end -->\n")
    assert (
        authors_protocol.STUDY.main(["--render", "--store", str(store), "--page", str(page)]) == 0
    )
    assert "the paper's" in page.read_text()
    assert "both" not in page.read_text()
