"""The trainer's step against the straightforward one: same loss, same gradients."""

from __future__ import annotations

import pytest
import torch

from benchmarks.dense_step import dense_loss
from lilicorr.train.conversation import Conversation
from lilicorr.train.recipe import read_recipe
from lilicorr.train.target import lm_head_table, load_target
from lilicorr.train.trainer import Trainer
from tests.train.test_fit import _signals_restored, recipe  # noqa: F401 (fixtures)
from tests.train.test_recipe import RECIPE


@pytest.mark.parametrize("draft_vocab_size", [None, 40])
@pytest.mark.parametrize("logit_rows", [1, 4, 2048])
def test_same_loss_and_gradients(recipe, tiny_target, draft_vocab_size, logit_rows):  # noqa: F811
    options = {"drafter": RECIPE["drafter"] | {"draft_vocab_size": draft_vocab_size}, "logit_rows": logit_rows}
    # The gold token is always a candidate.
    options |= {"head": RECIPE["head"] | {"candidate_topk": draft_vocab_size or 300}}
    options |= {"anchors_per_sequence": 9}
    trainer = Trainer(read_recipe(recipe(**options)))
    whole, lm_head = trainer.train_set[0], lm_head_table(load_target(tiny_target))
    ((begin, end),) = whole.answers
    item = Conversation(
        "a", whole.ids, ((begin, begin + 6), (begin + 8, end))
    )  # two answers, so that some blocks meet an end
    gradients = []
    losses = [
        trainer.losses(item, torch.Generator().manual_seed(3))[0],
        dense_loss(trainer, lm_head, item, torch.Generator().manual_seed(3)),
    ]
    for loss in losses:
        trainer.drafter.zero_grad()
        loss.backward()
        gradients.append({n: p.grad.clone() for n, p in trainer.drafter.named_parameters()})
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-3, atol=2e-5, msg=name)
    assert gradients[1]["lilicorr.out_head.weight"].abs().max() > 1e-3  # the lattice terms are not all zero
