"""The reduced vocabulary product against whole logits: values, gradients, any chunk size, bf16, and its memory."""

from __future__ import annotations

import pytest
import torch

from lilicorr.train.vocabulary import in_chunks, pick

M, H, V, K = 7, 5, 11, 3


@pytest.fixture
def case():
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    gold = torch.tensor([0, 10, 3, -1, 5, 5, 1])
    return draw(M, H).requires_grad_(), draw(V, H), gold, draw(M, H)


def dense(hidden, rows, gold, target_hidden):
    log_q = torch.log_softmax(hidden @ rows.T, -1)
    top = log_q.topk(K)
    soft = (torch.softmax(target_hidden @ rows.T, -1) * log_q).sum(-1)
    return log_q.gather(-1, gold.clamp_min(0)[:, None]).squeeze(-1), top.indices, top.values, soft


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_values_and_gradients_equal_the_dense_product(case, chunk):
    hidden, rows, gold, target_hidden = case
    ours = pick(hidden, rows, gold, K, target_hidden, chunk=chunk)
    expected = dense(hidden, rows, gold, target_hidden)
    for found, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(found, wanted)
    factors = [torch.randn_like(t) for t in (ours.gold, ours.log_probs, ours.soft)]
    for made in (ours, expected):
        values = [made[0], made[2], made[3]]
        loss = sum((f * v).sum() for f, v in zip(factors, values, strict=True))
        gradient = torch.autograd.grad(loss, hidden, retain_graph=True)[0]
        if made is ours:
            first = gradient
    torch.testing.assert_close(first, gradient)


def test_without_soft_labels_or_gradient(case):
    hidden, rows, gold, _ = case
    with torch.no_grad():
        ours = pick(hidden, rows, gold, K, chunk=2)
    assert not ours.soft.any()
    assert not ours.gold.requires_grad
    torch.testing.assert_close(ours.gold, dense(hidden, rows, gold, hidden)[0])


def test_under_bf16_autocast_the_logits_are_those_of_the_bf16_product(case):
    hidden, rows, gold, _ = (t.float() if t.is_floating_point() else t for t in case)
    hidden = hidden.detach().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = pick(hidden, rows.bfloat16(), gold, K, chunk=4)
    logits = (hidden.bfloat16() @ rows.bfloat16().T).float()
    expected = torch.log_softmax(logits, -1).gather(-1, gold.clamp_min(0)[:, None]).squeeze(-1)
    torch.testing.assert_close(ours.gold, expected)
    ours.gold.sum().backward()
    assert hidden.grad.dtype == torch.float32


def test_chunked_rows_with_weights_of_their_own(case):
    hidden, rows, gold, _ = case
    weight = rows.clone().requires_grad_()

    def function(h, g):
        log_q = torch.log_softmax(h @ weight.T, -1)
        return log_q.gather(-1, g.clamp_min(0)[:, None]).squeeze(-1), (log_q.exp() ** 2).sum(-1)

    for whole, parts in zip(function(hidden, gold), in_chunks(function, 3, hidden, gold), strict=True):
        torch.testing.assert_close(parts, whole)
        for leaf in (hidden, weight):
            expected, found = (torch.autograd.grad(t.sum(), leaf, retain_graph=True)[0] for t in (whole, parts))
            torch.testing.assert_close(found, expected)
