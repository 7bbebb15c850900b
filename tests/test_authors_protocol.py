"""The authors' loss and start in Table 3: the loss as their code computes it, and the page's table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks import authors_protocol

from saddlepoint.experiments import find

ROOT = Path(__file__).parent.parent


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
    content = json.loads((ROOT / authors_protocol.STORE).read_text(encoding="utf-8"))
    text = (ROOT / authors_protocol.PAGE).read_text(encoding="utf-8")
    keys = [block.key for block in find(authors_protocol.EXPERIMENT).blocks]
    assert list(content["rates"]) == list(authors_protocol.VARIANTS)
    assert all(list(rates) == keys for rates in content["rates"].values())
    assert f"<!-- authors' protocol -->\n{authors_protocol.render(content)}<!-- end -->" in text, (
        "write it again: python -m benchmarks.authors_protocol --render"
    )


@pytest.mark.parametrize("text", ["{", "{}", '{"rates": {"both": {"a": {"avg": 101}}}}'])
def test_a_store_that_is_not_whole_is_one_sentence(text: str, tmp_path: Path) -> None:
    store = tmp_path / "store.json"
    store.write_text(text)
    with pytest.raises(ValueError, match="must be a whole file of this command"):
        authors_protocol.main(["--store", str(store), "--render"])
