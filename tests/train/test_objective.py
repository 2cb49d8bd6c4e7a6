"""Objective: every term against loops written from the published description, gradients against finite differences, edge cases."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from lilicorr.runtime.errors import UserError
from lilicorr.train.heads import NoHead, Stage, Tables
from lilicorr.train.lilicorr import LiLiCorrHead
from lilicorr.train.objective import Blocks, Weights, drafter_terms, lattice_terms, prefix_metrics, slot_weights
from lilicorr.train.vocabulary import Picked

N, S, K, H, V = 4, 3, 3, 6, 9


class FixedScores(torch.nn.Module):
    """Stands in for the head: fixed start and pair scores, plus a little of every input so that gradients flow."""

    candidate_topk = K

    def __init__(self, start: torch.Tensor, pair: torch.Tensor):
        super().__init__()
        self.start, self.pair = start, pair
        self.seen: tuple[torch.Tensor, ...] = ()

    def forward(self, embeddings, log_probs, hidden, anchor):
        self.seen = (embeddings, log_probs)
        start = self.start + 0.1 * log_probs[:, 0] + 0.1 * anchor.sum(-1, keepdim=True).tanh()
        return start, self.pair + 0.1 * log_probs[:, 1:, None] + 0.1 * hidden[:, 1:, None].sum(-1, keepdim=True).tanh()


def dense_pick(logits, gold, topk, target_logits=None):
    """What `vocabulary.pick` gives, from whole logits."""
    log_q = torch.log_softmax(logits, -1).flatten(0, 1)
    top = logits.flatten(0, 1).topk(topk)
    soft = log_q.new_zeros(len(log_q))
    if target_logits is not None:
        soft = (torch.softmax(target_logits, -1).flatten(0, 1) * log_q).sum(-1)
    gold = log_q.gather(-1, gold.flatten().clamp_min(0)[:, None]).squeeze(-1)
    return Picked(gold, top.indices, log_q.gather(-1, top.indices), soft)


def drafter_loss(logits, target_logits, blocks, weights):
    terms = all_drafter_terms(logits, target_logits, blocks, weights)
    return sum(weight * term for weight, term in terms.values())


def all_drafter_terms(logits, target_logits, blocks, weights):
    picked = dense_pick(logits, blocks.gold, 1, target_logits)
    hit = logits.argmax(-1) == blocks.gold
    return drafter_terms(picked.gold.view_as(hit), hit, picked.soft.view_as(hit), blocks, weights)


def head_terms(head, logits, embeddings, target_rows, blocks, weights):
    picked = dense_pick(logits, blocks.gold, head.candidate_topk)
    lattice = embeddings[picked.ids].view(*blocks.gold.shape, head.candidate_topk, -1)
    terms, metrics = lattice_terms(head, picked, lattice, target_rows, blocks, weights)
    return {name: term for name, (_, term) in terms.items()}, metrics


@pytest.fixture
def case():
    """Blocks: 0 all gold in the lattice; 1 gold of slot 1 not in it; 2 not wholly supervised; 3 gold outside the vocabulary."""
    generator = torch.Generator().manual_seed(11)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    logits = 2 * draw(N, S, V)
    order = logits.argsort(-1, descending=True)
    gold = order[:, :, 1].clone()
    gold[0, 2] = order[0, 2, 0]
    gold[1, 1] = order[1, 1, K]
    gold[3, 2] = -1
    supervised = torch.ones(N, S, dtype=torch.bool)
    supervised[2, 2] = False
    previous = torch.zeros(N, S, dtype=torch.int64)
    blocks = Blocks(draw(N, S, H), gold, supervised, draw(N, S, H), draw(N, H), previous)
    return FixedScores(draw(N, K), draw(N, S - 1, K, K)), logits, draw(V, H), draw(V, H), blocks


def loop_drafter(logits, target_logits, blocks, gamma, soft):
    """Σ w·CE / (Σ w + 1e-6) over block slots j = 1…S, weight exp(-max(j-1, 0)/gamma)."""
    total = weight_sum = 0.0
    for n in range(logits.shape[0]):
        for j in range(1, logits.shape[1] + 1):
            gold = int(blocks.gold[n, j - 1])
            if not blocks.supervised[n, j - 1] or gold < 0:
                continue
            w = math.exp(-max(j - 1, 0) / gamma) if gamma else 1.0
            row = logits[n, j - 1].tolist()
            log_z = math.log(sum(math.exp(x) for x in row))
            ce = log_z - row[gold]
            if soft:
                teacher = target_logits[n, j - 1].tolist()
                z = sum(math.exp(x) for x in teacher)
                kd = sum(math.exp(t) / z * (log_z - x) for t, x in zip(teacher, row, strict=True))
                ce = (1 - soft) * ce + soft * kd
            total, weight_sum = total + w * ce, weight_sum + w
    return total / (weight_sum + 1e-6)


def loop_head(head, logits, target_rows, blocks, margin):
    """Means over the slots whose block is valid and whose gold prefix is in the lattice; first error and chain are per block."""
    log_probs = torch.log_softmax(logits, -1).topk(K, dim=-1).values
    start, pair = head(None, log_probs, blocks.hidden, blocks.anchor_row)
    sums, count = {"ce": 0.0, "margin": 0.0, "penalty": 0.0, "head_soft": 0.0}, 0
    errors, chains = [], []
    for n in range(logits.shape[0]):
        if not all(blocks.supervised[n].tolist()):
            continue
        previous, product = None, 1.0
        errors.append(None)
        chains.append(0.0)
        for s in range(logits.shape[1]):
            candidates = logits[n, s].topk(K).indices.tolist()
            gold = int(blocks.gold[n, s])
            if gold not in candidates:
                break
            g = candidates.index(gold)
            node = (start[n] if s == 0 else pair[n, s - 1, previous]).tolist()
            z = sum(math.exp(x) for x in node)
            target = [float(target_rows[c] @ blocks.target_hidden[n, s]) for c in candidates]
            sums["ce"] += math.log(z) - node[g]
            rival = max(x for j, x in enumerate(node) if j != g)
            sums["margin"] += max(0.0, margin - (node[g] - rival))
            sums["penalty"] += sum(math.exp(x) / z * max(0.0, target[g] - t) for x, t in zip(node, target, strict=True))
            teacher = sum(math.exp(t) for t in target)
            sums["head_soft"] += sum(
                math.exp(t) / teacher * (t - math.log(teacher) - x + math.log(z))
                for t, x in zip(target, node, strict=True)
            )
            if errors[-1] is None and max(node) > node[g]:
                errors[-1] = math.log(z) - node[g]
            product *= math.exp(node[g]) / z
            chains[-1] += product / S
            previous, count = g, count + 1
    means = {name: value / max(1, count) for name, value in sums.items()}
    made = [error for error in errors if error is not None]
    return means | {"head_first_error": sum(made) / len(made), "head_chain": -sum(chains) / len(chains)}, count


@pytest.mark.parametrize("gamma", [4.0, 0.5, 0.0])
@pytest.mark.parametrize("soft", [0.0, 0.3, 1.0])
def test_drafter_loss_equals_the_loop(case, gamma, soft):
    _, logits, _, target_rows, blocks = case
    target_logits = blocks.target_hidden @ target_rows.T
    ours = drafter_loss(logits, target_logits, blocks, Weights(decay=gamma, soft=soft))
    assert ours.item() == pytest.approx(loop_drafter(logits, target_logits, blocks, gamma, soft), rel=1e-7)


def test_head_terms_equal_the_loop(case):
    head, logits, embeddings, target_rows, blocks = case
    on = Weights(head_margin=0.5, margin=1.3, head_soft=0.5, head_first_error=0.5, head_chain=0.5)
    terms, _ = head_terms(head, logits, embeddings, target_rows, blocks, on)
    expected, count = loop_head(head, logits, target_rows, blocks, 1.3)
    assert count == 3 + 1 + 0 + 2  # whole block, up to the gold that is missing, invalid block, up to the gold outside
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        assert value > 0 or (name == "head_chain" and value < 0)
        assert terms[name].item() == pytest.approx(value, abs=1e-12)


def test_metrics_tell_coverage_from_ranking_and_show_a_collapse(case):
    head, logits, embeddings, target_rows, blocks = case
    _, metrics = head_terms(head, logits, embeddings, target_rows, blocks, Weights())
    assert metrics["gold_in_lattice"].item() == pytest.approx((4 * 3 - 1 - 1 - 1) / 11)  # 1 unsupervised, 2 not there
    assert metrics["oracle_gap"] == metrics["oracle_prefix"] - metrics["selected_prefix"]
    assert metrics["score_spread"] > 0.1

    def constant(embeddings, log_probs, hidden, anchor):
        return torch.full((N, K), 3.0), torch.full((N, S - 1, K, K), 3.0)

    constant.candidate_topk = K
    _, metrics = head_terms(constant, logits, embeddings, target_rows, blocks, Weights())
    assert metrics["score_spread"] == 0.0


def test_head_reads_candidates_sorted_and_log_probs_over_the_whole_vocabulary(case):
    head, logits, embeddings, target_rows, blocks = case
    head_terms(head, logits, embeddings, target_rows, blocks, Weights())
    seen_embeddings, seen_log_probs = head.seen
    top = torch.log_softmax(logits, -1).topk(K)
    torch.testing.assert_close(seen_log_probs, top.values)
    assert torch.equal(seen_embeddings, embeddings[top.indices])


def test_a_later_slot_counts_for_nothing_once_the_gold_is_not_in_the_lattice(case):
    head, logits, embeddings, target_rows, blocks = case
    before, _ = head_terms(head, logits, embeddings, target_rows, blocks, Weights(head_margin=1.0))
    head.pair = head.pair.clone()
    head.pair[1] += 5 * torch.randn_like(head.pair[1])  # block 1 stops at slot 1
    head.pair[2] += 5 * torch.randn_like(head.pair[2])  # block 2 is not valid
    head.start[2] += 1
    after, _ = head_terms(head, logits, embeddings, target_rows, blocks, Weights(head_margin=1.0))
    assert {n: t.item() for n, t in before.items()} == {n: t.item() for n, t in after.items()}


def test_gradients_match_finite_differences(case):
    """Real head, float64: through logits, hidden rows and anchor row. The perturbation is far below the top-K gaps."""
    _, logits, embeddings, target_rows, blocks = case
    head = LiLiCorrHead(
        model_hidden_size=H,
        hidden_size=4,
        num_layers=1,
        num_heads=2,
        mlp_ratio=1.0,
        block_size=S + 1,
        candidate_topk=K,
        factor_dim=3,
        rms_norm_eps=1e-5,
        vector_eps=1e-4,
        logit_scale=2.0,
    ).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).mul(0.5)
    weights = Weights(soft=0.4, head_margin=0.5, head_soft=1.0, head_first_error=0.3, head_chain=2.0)
    target_logits = blocks.target_hidden @ target_rows.T

    def all_terms(logits, hidden, anchor_row):
        live = dataclasses.replace(blocks, hidden=hidden, anchor_row=anchor_row)
        terms, _ = head_terms(head, logits, embeddings, target_rows, live, weights)
        return drafter_loss(logits, target_logits, live, weights), *terms.values()

    leaves = tuple(t.clone().requires_grad_() for t in (logits, blocks.hidden, blocks.anchor_row))
    assert torch.autograd.gradcheck(all_terms, leaves, eps=1e-6, atol=1e-6, fast_mode=True)
    names = ("drafter", "ce", "margin", "penalty", "head_soft", "head_first_error", "head_chain")
    for name, term in zip(names, all_terms(*leaves), strict=True):
        gradients = torch.autograd.grad(term, leaves, allow_unused=True, retain_graph=True)
        assert gradients[0].abs().max() > 0, f"{name} does not reach the logits"
        if name != "drafter":
            assert all(g.abs().max() > 0 for g in gradients), f"{name} does not reach the drafter's rows"


def loop_dpace(logits, blocks, alpha):
    """Σ w·CE / (Σ w + 1e-6), w_j = Σ_{m≥j} Π_{i≤m} ((1-α) q_i + α), unlabelled slots left out of sum and product."""
    total = weight_sum = 0.0
    for n in range(logits.shape[0]):
        q = {}
        for s in range(logits.shape[1]):
            gold = int(blocks.gold[n, s])
            if blocks.supervised[n, s] and gold >= 0:
                q[s] = float(torch.softmax(logits[n, s], -1)[gold])
        for j in q:
            w = sum(math.prod((1 - alpha) * q[i] + alpha for i in q if i <= m) for m in q if m >= j)
            total, weight_sum = total - w * math.log(q[j]), weight_sum + w
    return total / (weight_sum + 1e-6)


@pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0])
def test_dpace_equals_the_loop(case, alpha):
    _, logits, _, _, blocks = case
    blocks.supervised[1, 1] = False  # a hole in the middle
    ours = drafter_loss(logits, None, blocks, Weights(dpace=alpha, decay=0.1))
    assert ours.item() == pytest.approx(loop_dpace(logits, blocks, alpha), rel=1e-9)


def test_first_error_equals_the_loop(case):
    """Block 0: first slot wrong. Block 1: first slot right, second wrong. Block 2: never wrong where supervised. Block 3: its
    first error has no label."""
    _, logits, _, _, blocks = case
    best = logits.argmax(-1)
    gold = best.clone()
    gold[0, 0], gold[1, 1], gold[2, 2], gold[3, 1] = (best[0, 0] + 1) % V, (best[1, 1] + 1) % V, 0, -1
    blocks = dataclasses.replace(blocks, gold=gold)
    errors = [-torch.log_softmax(logits[n, s], -1)[gold[n, s]] for n, s in ((0, 0), (1, 1))]
    terms = all_drafter_terms(logits, None, blocks, Weights(first_error=0.3))
    weight, value = terms["first_error"]
    assert weight == 0.3
    assert value.item() == pytest.approx(float(sum(errors) / 2), rel=1e-12)


def test_chain_equals_the_loop(case):
    _, logits, _, _, blocks = case
    expected = 0.0
    for n in range(N):
        product = 1.0
        for s in range(S):
            gold = int(blocks.gold[n, s])
            if not blocks.supervised[n, s] or gold < 0:
                break
            product *= float(torch.softmax(logits[n, s], -1)[gold])
            expected += product
    weight, value = all_drafter_terms(logits, None, blocks, Weights(chain=2.0))["chain"]
    assert (weight, value.item()) == (2.0, pytest.approx(-expected / (N * S), rel=1e-12))


def test_terms_are_off_by_default(case):
    _, logits, _, _, blocks = case
    assert all_drafter_terms(logits, None, blocks, Weights()).keys() == {"drafter"}


@pytest.mark.parametrize("on", [{"first_error": 0.5}, {"chain": 2.0}, {"soft": 0.5}])
def test_gradients_of_the_drafter_terms_match_finite_differences(case, on):
    """Through the vocabulary product of the real code, two rows of logits at a time."""
    _, _, _, target_rows, blocks = case
    blocks = dataclasses.replace(blocks, gold=(blocks.hidden @ target_rows.T).argsort(-1)[..., -2])
    tables = Tables(target_rows, target_rows)

    def terms(hidden):
        live = dataclasses.replace(blocks, hidden=hidden)
        made, _ = NoHead().terms(live, tables, Weights(**on), Stage(0.0, 2))
        return tuple(value for _, value in made.values())

    hidden = blocks.hidden.clone().requires_grad_()
    assert torch.autograd.gradcheck(terms, (hidden,), eps=1e-6, atol=1e-7)
    for value in terms(hidden):
        assert torch.autograd.grad(value, hidden, retain_graph=True)[0].abs().max() > 0


def test_dpace_weights_carry_no_gradient(case):
    """The gradient is that of the cross-entropy with the weights as constants."""
    _, logits, _, _, blocks = case
    leaf = logits.clone().requires_grad_()
    drafter_loss(leaf, None, blocks, Weights(dpace=0.5)).backward()
    log_q = torch.log_softmax(logits, -1).gather(-1, blocks.gold.clamp_min(0)[..., None]).squeeze(-1)
    w = slot_weights(log_q, blocks.labelled, Weights(dpace=0.5))
    onehot = torch.nn.functional.one_hot(blocks.gold.clamp_min(0), V)
    expected = w[..., None] * (torch.softmax(logits, -1) - onehot) / (w.sum() + 1e-6)
    torch.testing.assert_close(leaf.grad, expected)


def test_nothing_supervised_is_a_zero_with_a_graph(case):
    head, logits, embeddings, target_rows, blocks = case
    blocks = dataclasses.replace(blocks, supervised=torch.zeros(N, S, dtype=torch.bool))
    logits = logits.clone().requires_grad_()
    terms, metrics = head_terms(head, logits, embeddings, target_rows, blocks, Weights(head_margin=1.0))
    loss = drafter_loss(logits, None, blocks, Weights()) + sum(terms.values())
    assert loss.item() == 0.0
    loss.backward()
    assert not logits.grad.any()
    assert all(value.item() == 0.0 for name, value in metrics.items() if name != "score_spread")


def test_one_candidate_has_no_margin_term(case):
    head, logits, embeddings, target_rows, blocks = case
    head.candidate_topk = 1
    head.start, head.pair = head.start[:, :1], head.pair[:, :, :1, :1]
    terms, _ = head_terms(head, logits, embeddings, target_rows, blocks, Weights(head_margin=1.0))
    assert terms.keys() == {"ce", "penalty"}
    assert all(math.isfinite(t.item()) for t in terms.values())


def test_gold_outside_the_draft_vocabulary_is_not_a_label(case):
    """The logits of a slot without label may be anything."""
    _, logits, _, _, blocks = case
    changed = logits.clone()
    changed[3, 2] *= 30
    assert drafter_loss(changed, None, blocks, Weights()) == drafter_loss(logits, None, blocks, Weights())


def test_prefix_metrics_by_hand():
    """K = 2. Block 0: gold 0, 1, 0, walk 0, 1, 1. Block 1: gold 1, none, 0, walk begins with 1. Block 2 is not valid."""
    start = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    pair = torch.zeros(3, 2, 2, 2)
    pair[0, 0, 0] = pair[0, 1, 1] = torch.tensor([0.0, 1.0])
    is_gold = torch.tensor(
        [[[1, 0], [0, 1], [1, 0]], [[0, 1], [0, 0], [1, 0]], [[1, 0], [1, 0], [1, 0]]], dtype=torch.bool
    )
    whole = torch.tensor([[True], [True], [False]])
    metrics = {name: value.item() for name, value in prefix_metrics(start, pair, is_gold, whole).items()}
    assert metrics == {"selected_prefix": (2 + 1) / 2, "top1_prefix": (1 + 0) / 2, "oracle_prefix": (3 + 1) / 2}


@pytest.mark.parametrize(
    "change",
    [
        {"head_ce": -0.1},
        {"decay": -1.0},
        {"soft": 1.5},
        {"margin": -2.0},
        {"dpace": 1.1},
        {"base_until": 0.0},
    ],
)
def test_values_without_meaning_are_refused(change):
    with pytest.raises(UserError, match="objective"):
        Weights(**change)
