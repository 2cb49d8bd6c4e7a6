"""Domino and DSpark against loops written from their published descriptions: labels, losses, drafts, names, configuration."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from lilicorr.export.pair import check_pair
from lilicorr.runtime.errors import UserError
from lilicorr.train.checkpoint import read_drafter, write_drafter
from lilicorr.train.config import DominoConfig, DrafterConfig, DSparkConfig
from lilicorr.train.config_json import config_from_dict, config_to_dict
from lilicorr.train.domino import base_share
from lilicorr.train.drafter import Drafter
from lilicorr.train.heads import Stage, Tables
from lilicorr.train.objective import Blocks, Weights
from tests.fixtures import drafter_config

H, V, VD, B, N = 6, 12, 9, 4, 3
DOMINO = DominoConfig(gru_hidden_dim=5, emb_dim=4, pure_draft_prefix_len=1)


def dspark(kind="vanilla", confidence=True, with_markov=True):
    return DSparkConfig(3, kind, confidence, with_markov)


def config_with(head, **changes) -> DrafterConfig:
    plain = config_from_dict(drafter_config(architectures=["DFlashDraftModel"]))
    fields = {"hidden_size": H, "vocab_size": V, "draft_vocab_size": VD, "block_size": B, "head": head} | changes
    return dataclasses.replace(plain, **fields)


def random_drafter(head, seed=0, **changes) -> Drafter:
    torch.manual_seed(seed)
    drafter = Drafter(config_with(head, **changes)).double().eval()
    for parameter in drafter.head.parameters():
        parameter.data.normal_(std=0.7)
    return drafter


def draw(*shape, seed=5):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def tables():
    kept = torch.tensor([0, 1, 3, 4, 6, 7, 8, 10, 11])
    return Tables(draw(V, H, seed=1), draw(VD, H, seed=2), kept)


@pytest.fixture
def blocks():
    """Three blocks of a text: (N, B) gold tokens; one outside the draft vocabulary, one block cut short."""
    ids = torch.tensor([[3, 0, 4, 11, 7], [1, 8, 2, 6, 10], [7, 7, 0, 1, 3]])  # anchor, then what follows
    to_draft = torch.full((V,), -1)
    to_draft[torch.tensor([0, 1, 3, 4, 6, 7, 8, 10, 11])] = torch.arange(VD)
    supervised = torch.ones(N, B, dtype=torch.bool)
    supervised[2, 3] = False
    return Blocks(
        hidden=draw(N, B, H, seed=3),
        gold=to_draft[ids[:, 1:]],
        supervised=supervised,
        target_hidden=draw(N, B, H, seed=4),
        anchor_row=draw(N, H),
        previous=ids[:, :-1],
    )


def numbers(terms):
    return {name: (weight, value.item()) for name, (weight, value) in terms.items()}


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def gru_states(head, embeddings):
    """The published gate equations of a GRU without biases, one token after the other."""
    w_ih, w_hh = head.prefix_gru.weight_ih_l0, head.prefix_gru.weight_hh_l0
    state, states = torch.zeros(w_hh.shape[1], dtype=torch.float64), []
    for x in embeddings:
        (ir, iz, inn), (hr, hz, hn) = (w_ih @ x).chunk(3), (w_hh @ state).chunk(3)
        r, z = sigmoid(ir + hr), sigmoid(iz + hz)
        state = (1 - z) * torch.tanh(inn + r * hn) + z * state
        states.append(state)
    return states


def domino_logits(head, tables, hidden, tokens):
    """Base and final logits of each row j of one block; `tokens` are those at anchor, anchor + 1, …"""
    states = gru_states(head, [tables.embeddings[t] for t in tokens])
    base = [tables.rows @ h for h in hidden]
    final = []
    for j, (h, state) in enumerate(zip(hidden, states, strict=True)):
        x = head.embed_proj[0].weight @ torch.cat([h, state])
        final.append(base[j] + (head.embed_proj[2].weight @ (x * sigmoid(x)) if j >= 1 else 0))
    return base, final


def decayed_ce(rows, blocks, gamma):
    total = weights = 0.0
    for n in range(N):
        for j in range(B):
            gold = int(blocks.gold[n, j])
            if blocks.supervised[n, j] and gold >= 0:
                w = math.exp(-j / gamma)
                total += w * -float(torch.log_softmax(rows[n][j], -1)[gold])
                weights += w
    return total / (weights + 1e-6)


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_domino_loss_equals_the_loop(tables, blocks, progress):
    head = random_drafter(DOMINO).head
    with torch.no_grad():
        rows = [domino_logits(head, tables, blocks.hidden[n], blocks.previous[n].tolist()) for n in range(N)]
    base = decayed_ce([r[0] for r in rows], blocks, 7.0)
    final = decayed_ce([r[1] for r in rows], blocks, 7.0)
    terms = numbers(head.terms(blocks, tables, Weights(decay=7.0), Stage(progress, 5))[0])
    assert terms.keys() == {"drafter", "base_drafter"}
    assert terms["base_drafter"] == (pytest.approx(1 - progress), pytest.approx(base))
    assert terms["drafter"] == (pytest.approx(progress), pytest.approx(final))
    assert base != pytest.approx(final, rel=1e-3)


def test_domino_share_of_the_base_loss():
    weights = Weights(base_start=0.8, base_until=0.5)
    assert [base_share(weights, p) for p in (0.0, 0.25, 0.5, 0.9)] == [0.8, pytest.approx(0.4), 0.0, 0.0]


def test_domino_drafts_left_to_right(tables):
    drafter = random_drafter(DOMINO)
    hidden = draw(2, B - 1, H, seed=9)
    for lane, anchor in enumerate((3, 11)):
        tokens, drafts = [anchor], []
        for t in range(B - 1):
            with torch.no_grad():
                _, final = domino_logits(drafter.head, tables, hidden[lane, : t + 1], tokens)
            drafts.append(int(tables.target_ids[final[-1].argmax()]))
            tokens.append(drafts[-1])
        with torch.no_grad():
            found = drafter.head.draft(hidden, torch.tensor([3, 11]), draw(2, H), tables)
        assert found[lane].tolist() == drafts
    assert drafter.config.slots == B - 1
    assert drafter.config.rows(B - 1) == B  # the last row is trained and not drafted from
    assert drafter.config.trained_slots == B


def dspark_logits(head, kind, tables, hidden, tokens):
    """U_k + B_k of each row of one block, and the rows e of the previous tokens."""
    state, logits, rows = torch.zeros(3, dtype=torch.float64), [], []
    for h, token in zip(hidden, tokens, strict=True):
        e = head.markov_w1.weight[token]
        m = e
        if kind == "gated":
            m = sigmoid(head.gate_proj.weight @ torch.cat([h, e]) + head.gate_proj.bias) * e
        if kind == "rnn":
            z = head.joint_proj.weight @ torch.cat([state, e, h]) + head.joint_proj.bias
            g, c, o = z[:3], z[3:6], z[6:]
            state = sigmoid(g) * state + (1 - sigmoid(g)) * torch.tanh(c)
            m = torch.tanh(o)
        logits.append(tables.rows @ h + head.markov_w2.weight @ m)
        rows.append(e)
    return logits, rows


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
@pytest.mark.parametrize("with_markov", [True, False])
def test_dspark_loss_equals_the_loop(tables, blocks, kind, with_markov):
    head = random_drafter(dspark(kind, with_markov=with_markov)).head
    sums = {"l1": 0.0, "confidence": 0.0}
    total, rows = 0.0, []
    with torch.no_grad():
        for n in range(N):
            logits, e = dspark_logits(head, kind, tables, blocks.hidden[n], blocks.previous[n].tolist())
            rows.append(logits)
            for k in range(B):
                if not blocks.supervised[n, k]:
                    continue
                w = math.exp(-k / 4.0)
                p_d = torch.softmax(logits[k], -1)
                p_t = torch.softmax(tables.rows @ blocks.target_hidden[n, k], -1)
                distance = float((p_d - p_t).abs().sum())
                label = 1 - 0.5 * distance
                x = torch.cat([blocks.hidden[n, k], e[k]]) if with_markov else blocks.hidden[n, k]
                c = float(sigmoid(head.confidence_proj.weight[0] @ x + head.confidence_proj.bias[0]))
                sums["l1"] += w * distance
                sums["confidence"] -= w * (label * math.log(c) + (1 - label) * math.log(1 - c))
                total += w
    terms = numbers(head.terms(blocks, tables, Weights(decay=4.0), Stage(0.0, 4))[0])
    assert terms["drafter"] == (0.1, pytest.approx(decayed_ce(rows, blocks, 4.0)))
    assert terms["l1"] == (0.9, pytest.approx(sums["l1"] / (total + 1e-6)))
    assert terms["confidence"] == (1.0, pytest.approx(sums["confidence"] / (total + 1e-6)))


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_dspark_drafts_from_the_anchors_row_on(tables, kind):
    drafter = random_drafter(dspark(kind))
    hidden = draw(2, B, H, seed=9)
    with torch.no_grad():
        found = drafter.head.draft(hidden, torch.tensor([3, 11]), draw(2, H), tables)
        for lane, anchor in enumerate((3, 11)):
            tokens = [anchor]
            for k in range(B):
                logits, _ = dspark_logits(drafter.head, kind, tables, hidden[lane, : k + 1], tokens)
                tokens.append(int(tables.target_ids[logits[-1].argmax()]))
            assert found[lane].tolist() == tokens[1:]
    assert (drafter.config.slots, drafter.config.rows(B), drafter.config.trained_slots) == (B, B, B)


@pytest.mark.parametrize("head", [DOMINO, dspark("vanilla"), dspark("gated"), dspark("rnn")], ids=str)
def test_gradients_match_finite_differences(tables, blocks, head):
    """Every term, through the hidden rows and every parameter of the head. The L1 label of the confidence is detached."""
    module = random_drafter(head).head
    weights = Weights(first_error=0.3, chain=2.0, soft=0.2, confidence=0.0)

    def loss(hidden, *parameters):
        values = dict(zip(names, parameters, strict=True))
        live = dataclasses.replace(blocks, hidden=hidden)
        with torch.nn.utils.stateless._reparametrize_module(module, values):
            terms, _ = module.terms(live, tables, weights, Stage(0.4, 5))
        return sum(weight * value for weight, value in terms.values())

    names = [n for n, _ in module.named_parameters()]
    leaves = tuple(p.detach().clone().requires_grad_() for p in module.parameters())
    inputs = (blocks.hidden.clone().requires_grad_(), *leaves)
    assert torch.autograd.gradcheck(loss, inputs, eps=1e-6, atol=1e-6, fast_mode=True)
    used = [n for n in names if not n.startswith("confidence")]
    gradients = dict(zip(names, torch.autograd.grad(loss(*inputs), leaves, allow_unused=True), strict=True))
    assert all(gradients[name].abs().max() > 0 for name in used)


NAMES = {
    "domino": {
        "prefix_gru.weight_ih_l0": [15, H],
        "prefix_gru.weight_hh_l0": [15, 5],
        "embed_proj.0.weight": [4, H + 5],
        "embed_proj.2.weight": [VD, 4],
    },
    "gated": {
        "markov_head.markov_w1.weight": [V, 3],
        "markov_head.markov_w2.weight": [VD, 3],
        "markov_head.gate_proj.weight": [3, H + 3],
        "markov_head.gate_proj.bias": [3],
        "confidence_head.proj.weight": [1, H + 3],
        "confidence_head.proj.bias": [1],
    },
    "rnn": {
        "markov_head.markov_w1.weight": [V, 3],
        "markov_head.markov_w2.weight": [VD, 3],
        "markov_head.joint_proj.weight": [9, 6 + H],
        "markov_head.joint_proj.bias": [9],
        "confidence_head.proj.weight": [1, H + 3],
        "confidence_head.proj.bias": [1],
    },
}


@pytest.mark.parametrize(
    ("head", "names", "architecture"),
    [
        (DOMINO, "domino", "DominoDraftModel"),
        (dspark("gated"), "gated", "DSparkDraftModel"),
        (dspark("rnn"), "rnn", "DSparkDraftModel"),
    ],
)
def test_written_in_the_published_layout_and_read_back(tmp_path, head, names, architecture):
    drafter = random_drafter(head)
    write_drafter(drafter, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    backbone = {n for n, _ in Drafter(config_with(None)).state_dict().items()}
    assert {n: list(t.shape) for n, t in tensors.items() if n not in backbone} == NAMES[names]
    data = json.loads((tmp_path / "config.json").read_text())
    assert data["architectures"] == [architecture]
    assert data["dflash_config"]["projector_type"] == head.kind
    read = read_drafter(tmp_path)
    assert read.config == drafter.config
    assert all(torch.equal(t, read.state_dict()[n]) for n, t in drafter.state_dict().items())


@pytest.mark.parametrize(
    ("head", "rename"),
    [
        (DOMINO, lambda n: f"logit_head.{n}" if n.startswith(("prefix_gru", "embed_proj")) else n),
        (DOMINO, lambda n: f"model.{n}"),
        (dspark("rnn"), lambda n: n.removeprefix("markov_head.").replace("confidence_head.proj", "confidence_proj")),
    ],
    ids=["nested domino", "leading model.", "flat dspark"],
)
def test_other_stacks_tensor_names_are_read(tmp_path, head, rename):
    drafter = random_drafter(head)
    write_drafter(drafter, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({rename(n): t for n, t in tensors.items()}, tmp_path / "model.safetensors")
    read = read_drafter(tmp_path).state_dict()
    assert all(torch.equal(t, read[n]) for n, t in drafter.state_dict().items())


def test_deepspecs_copies_of_the_targets_tables_are_left_out(tmp_path):
    drafter = random_drafter(dspark())
    write_drafter(drafter, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {"embed_tokens.weight": torch.zeros(V, H), "lm_head.weight": torch.zeros(V, H)}
    save_file(tensors, tmp_path / "model.safetensors")
    assert read_drafter(tmp_path).lm_head is None


def edited(head, changes):
    data = config_to_dict(config_with(head))
    for key, value in changes.items():
        node = data["dflash_config"] if key in data["dflash_config"] or key not in data else data
        node[key] = value
        if value is None:
            del node[key]
    return data


def test_modelopts_configuration_is_read():
    """A plain architecture whose projector type says it, and ModelOpt's name of the confidence."""
    data = edited(dspark("gated"), {"enable_confidence_head": None, "confidence_head_with_markov": None})
    data["architectures"] = ["DFlashDraftModel"]
    data["dflash_config"] |= {"use_confidence_head": True, "shift_label": True}
    assert config_from_dict(data).head == dspark("gated")
    data = config_to_dict(config_with(DOMINO))
    data["architectures"] = ["DFlashDraftModel"]
    assert config_from_dict(data).head == DOMINO


@pytest.mark.parametrize("head", [DOMINO, dspark("gated")])
def test_without_shifted_labels_rows_and_slots_are_those_of_dflash(head):
    shifted, plain = config_with(head), config_with(dataclasses.replace(head, shift_label=False))
    assert config_from_dict(config_to_dict(plain)) == plain != shifted
    assert (shifted.first_row, plain.first_row) == (0, 1)
    assert plain.slots == plain.trained_slots == plain.block_size - 1 == config_with(None).slots


@pytest.mark.parametrize(
    ("head", "changes", "text"),
    [
        (DOMINO, {"shift_label": None}, "`dflash_config.shift_label` is missing"),
        (DOMINO, {"pure_draft_prefix_len": None}, "`dflash_config.pure_draft_prefix_len` is missing"),
        (DOMINO, {"gru_hidden_dim": None}, "`dflash_config.gru_hidden_dim` is missing"),
        (dspark(), {"markov_head_type": "lstm"}, "'lstm', expected one of"),
        (dspark(), {"markov_rank": 0}, "without Markov head"),
        (dspark(), {"enable_confidence_head": None}, "enable_confidence_head` (or `use_confidence_head`) is missing"),
        (dspark(), {"projector_type": "domino"}, "'domino' is not supported, expected 'dspark'"),
    ],
)
def test_configurations_that_are_refused(head, changes, text):
    with pytest.raises(UserError) as caught:
        config_from_dict(edited(head, changes))
    assert text in caught.value.what


def test_their_export_is_refused_by_name(tiny_target, tmp_path):
    config = config_from_dict(drafter_config(architectures=["DFlashDraftModel"]))
    write_drafter(Drafter(dataclasses.replace(config, head=DOMINO)), tmp_path)
    with pytest.raises(UserError, match="the drafter's head is `domino`"):
        check_pair(tiny_target, tmp_path)
