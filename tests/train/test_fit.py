"""Training loop: exact resume, refusals, stop signals, what a block is made of, and that it learns."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from lilicorr.runtime.errors import UserError
from lilicorr.train import fit as module
from lilicorr.train import trainer as trainer_module
from lilicorr.train.checkpoint import read_drafter
from lilicorr.train.fit import finish, fit
from lilicorr.train.lilicorr import LiLiCorrHead
from lilicorr.train.replay import acceptance_on_continuation
from lilicorr.train.state import FILE
from lilicorr.train.target import load_target
from lilicorr.train.trainer import Trainer, schedule
from tests.fixtures import TEXT
from tests.train import independent
from tests.train.test_recipe import RECIPE


@pytest.fixture(autouse=True)
def _signals_restored():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def recipe(tiny_target, tmp_path):
    """A function that writes a recipe of 6 steps with the given changes and returns its path."""
    responses = tmp_path / "responses.jsonl"
    lines = [{"id": f"r{i}", "turns": ["who?"], "response": TEXT[i * 7 :], "finished": True} for i in range(5)]
    responses.write_text("\n".join(map(json.dumps, lines)))

    def write(out: str = "run", **changes) -> Path:
        data = RECIPE | {"target": str(tiny_target), "responses": [str(responses)], "out": str(tmp_path / out)}
        data |= {"steps": 6, "sequences_per_step": 2, "anchors_per_sequence": 5, "save_every": 2, "threads": 1}
        data |= {"held_out": 0.0, "bf16": False, **changes}
        path = tmp_path / f"{out}.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    return write


def stop_at(monkeypatch, step: int, action) -> None:
    """Call `action` at the end of training step number `step` (1-based)."""
    original = Trainer.train_step

    def train_step(self):
        original(self)
        if self.step == step:
            action()

    monkeypatch.setattr(Trainer, "train_step", train_step)


def test_six_steps_and_the_drafter_they_make(recipe, tmp_path, tiny_target):
    folder = fit(recipe(drafter=RECIPE["drafter"] | {"draft_vocab_size": 40}, held_out=0.6))
    assert folder == tmp_path / "run" / "drafter"
    (line,) = map(json.loads, (tmp_path / "run" / "log.jsonl").read_text().splitlines())
    assert line["step"] == 6
    for name in ("loss", "drafter", "ce", "penalty", "selected_prefix", "oracle_prefix", "grad_norm", "dev_loss"):
        assert np.isfinite(line[name])
    drafter = read_drafter(folder)
    assert drafter.fc.weight.dtype == torch.bfloat16
    assert drafter.config.head.candidate_topk == 4
    kept = drafter.target_ids(torch.arange(40))
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert 2 in kept.tolist()  # <|im_end|> is always kept
    features, block = torch.zeros(1, 3, 64).bfloat16(), torch.zeros(1, 4, 32).bfloat16()
    assert drafter.block_hidden(block, features).shape == (1, 4, 32)
    assert json.loads((folder / "recipe.json").read_text())["steps"] == 6


@pytest.mark.parametrize("bf16", [False, True])
def test_interrupted_and_resumed_equals_uninterrupted(recipe, tmp_path, monkeypatch, bf16):
    straight = fit(recipe("straight", bf16=bf16))
    with monkeypatch.context() as patch:
        stop_at(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit) as stopped:
            fit(recipe("resumed", bf16=bf16))
    assert stopped.value.code == 130
    assert not (tmp_path / "resumed" / "drafter").exists()
    resumed = fit(recipe("resumed", bf16=bf16))
    for name in ("drafter/model.safetensors", FILE):
        expected, found = (load_file(tmp_path / run / name) for run in ("straight", "resumed"))
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected), name
    assert (straight / "config.json").read_bytes() == (resumed / "config.json").read_bytes()


def test_a_crash_loses_only_the_steps_since_the_last_save(recipe, tmp_path, monkeypatch):
    straight = load_file(fit(recipe("straight")) / "model.safetensors")

    def crash():
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        stop_at(patch, 5, crash)
        with pytest.raises(RuntimeError, match="power cut"):
            fit(recipe("crashed"))
    assert Trainer(module.read_recipe(recipe("crashed"))).step == 4
    after = load_file(fit(recipe("crashed")) / "model.safetensors")
    assert all(torch.equal(straight[name], after[name]) for name in straight)


def test_a_finished_run_started_again_changes_nothing(recipe):
    first = (fit(recipe()) / "model.safetensors").read_bytes()
    assert (fit(recipe()) / "model.safetensors").read_bytes() == first


def test_another_recipe_is_refused_with_the_differences(recipe, tmp_path):
    fit(recipe(steps=2))
    before = (tmp_path / "run" / FILE).read_bytes()
    head = RECIPE["head"] | {"factor_dim": 4}
    with pytest.raises(UserError) as caught:
        fit(recipe(steps=2, learning_rate=0.5, seed=1, head=head, save_every=9))
    text = caught.value.what
    assert "learning_rate: 0.001 there, 0.5 here" in text
    assert "seed: 42 there, 1 here" in text
    assert "'factor_dim': 4" in text
    assert "save_every" not in text
    assert "choose another `out`" in caught.value.hint
    assert (tmp_path / "run" / FILE).read_bytes() == before
    fit(recipe(steps=2, save_every=9))


def test_other_data_is_refused_and_named(recipe, tmp_path, monkeypatch):
    fit(recipe(steps=2))
    before = (tmp_path / "run" / FILE).read_bytes()
    responses = tmp_path / "responses.jsonl"
    whole = responses.read_text()
    responses.write_text("\n".join(whole.splitlines()[:4]))
    with pytest.raises(UserError) as caught:
        fit(recipe(steps=2))
    assert "holds an unfinished run on other data" in caught.value.what
    assert "training sequences: '5, sha256 " in caught.value.what
    assert " there, '4, sha256 " in caught.value.what
    assert "held-out" not in caught.value.what
    responses.write_text(whole)
    monkeypatch.setattr(trainer_module, "weights_sha256", lambda folder: "0" * 64)
    with pytest.raises(UserError, match=r"target weights: 'sha256 .*' there, 'sha256 0000000000000000' here"):
        fit(recipe(steps=2))
    assert (tmp_path / "run" / FILE).read_bytes() == before


def test_damaged_state_is_a_clear_error(recipe, tmp_path):
    fit(recipe(steps=2))
    path = tmp_path / "run" / FILE
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match="is damaged"):
        fit(recipe(steps=2))


def infinite_gradient(loss, blocks):
    """The same number, but √0 has no finite derivative."""
    return loss + (0 * blocks.hidden.sum()).abs().sqrt()


@pytest.mark.parametrize(
    ("poison", "named"),
    [(lambda loss, _: loss * float("nan"), "drafter, loss"), (infinite_gradient, "grad_norm")],
    ids=["loss", "gradient"],
)
def test_not_finite_stops_and_keeps_the_saved_state(recipe, tmp_path, monkeypatch, poison, named):
    original, calls = LiLiCorrHead.terms, []

    def poisoned(self, blocks, *rest):
        calls.append(None)
        terms, metrics = original(self, blocks, *rest)
        if len(calls) > 8:  # two sequences a step: from step 4 on
            terms["drafter"] = (1.0, poison(terms["drafter"][1], blocks))
        return terms, metrics

    monkeypatch.setattr(LiLiCorrHead, "terms", poisoned)
    with pytest.raises(UserError) as caught:
        fit(recipe(save_every=1))
    assert caught.value.what.startswith("step 4: ")
    assert named in caught.value.what
    assert "choose another `out`" in caught.value.hint
    state = load_file(tmp_path / "run" / FILE)
    assert all(tensor.isfinite().all() for tensor in state.values())
    assert Trainer(module.read_recipe(recipe(save_every=1))).step == 4
    assert not (tmp_path / "run" / "drafter").exists()


def test_nothing_left_to_train_on(recipe):
    with pytest.raises(UserError, match="all 5 sequences are held out"):
        fit(recipe(held_out=1.0))


def test_blocks_are_aligned(recipe, tiny_target):
    """Every field against its definition: context strictly before the anchor, gold and target rows one apart, supervision."""
    trainer = Trainer(module.read_recipe(recipe()))
    item = trainer.train_set[0]
    target = load_target(tiny_target)
    with torch.no_grad():
        hidden_states = target.model(torch.tensor([item.ids]), output_hidden_states=True).hidden_states
    with torch.no_grad():
        features, _ = trainer.cache.get(item)
        anchors = torch.tensor([item.answers[0][0], item.answers[0][0] + 4, len(item.ids) - 2])
        blocks = trainer.blocks(item, anchors)
    drafter, table = trainer.drafter, target.get_input_embeddings().weight
    captured = torch.cat([hidden_states[layer + 1][0] for layer in drafter.config.target_layer_ids], dim=-1)
    torch.testing.assert_close(features, captured.bfloat16())
    weights = {name: tensor.numpy() for name, tensor in drafter.state_dict().items()}
    shape = independent.DrafterShape(layers=2, heads=4, kv_heads=2, head_dim=8, rms_eps=1e-6, rope_theta=1e4)
    for row, anchor in enumerate(anchors.tolist()):
        inputs = torch.stack([table[item.ids[anchor]], *[table[3]] * 3]).numpy()
        expected = independent.block_hidden(weights, shape, inputs, features[:anchor].float().numpy())
        np.testing.assert_allclose(blocks.hidden[row].numpy(), expected[1:], atol=1e-4)
        with torch.no_grad():
            last = drafter.context(features[anchor - 1].float())
        torch.testing.assert_close(blocks.anchor_row[row], last)
        for s in range(3):
            position = anchor + 1 + s
            assert bool(blocks.supervised[row, s]) == (position < len(item.ids))
            if position < len(item.ids):
                assert blocks.gold[row, s] == item.ids[position]
                predicting = hidden_states[-1][0, position - 1].bfloat16().float()
                torch.testing.assert_close(blocks.target_hidden[row, s], predicting)


def test_features_that_are_not_kept_are_the_same(recipe, tmp_path):
    kept = fit(recipe("kept", steps=2))
    computed = fit(recipe("computed", steps=2, keep_features=False))
    one, other = (load_file(folder / "model.safetensors") for folder in (kept, computed))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [path.name[:6] for path in (tmp_path / "computed" / "features").iterdir()] == ["tokens"]


def test_no_label_at_all_gives_no_gradient(recipe):
    """Every gold token is outside the draft vocabulary: the loss is finite, the weights stay."""
    trainer = Trainer(module.read_recipe(recipe()))
    trainer.to_draft.fill_(-1)
    before = {name: tensor.clone() for name, tensor in trainer.drafter.state_dict().items()}
    loss, values = trainer.losses(trainer.train_set[0], torch.Generator().manual_seed(0))
    assert loss.item() == 0
    assert all(np.isfinite(value) for value in values.values())
    trainer.train_step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.drafter.state_dict().items())


def test_gold_outside_the_draft_vocabulary_has_no_draft_id(recipe):
    trainer = Trainer(module.read_recipe(recipe(drafter=RECIPE["drafter"] | {"draft_vocab_size": 6})))
    kept = trainer.drafter.target_ids(torch.arange(6)).tolist()
    assert trainer.to_draft[kept].tolist() == list(range(6))
    assert (trainer.to_draft >= 0).sum() == 6
    assert trainer.tables.target_ids.tolist() == kept
    _, values = trainer.losses(trainer.train_set[0], torch.Generator().manual_seed(0))
    assert all(np.isfinite(value) for value in values.values())


def test_anchors_reach_from_the_first_answer_token_to_the_last_but_one(recipe, monkeypatch):
    trainer = Trainer(module.read_recipe(recipe(anchors_per_sequence=10_000)))
    item, seen = trainer.train_set[0], []
    original = trainer.blocks
    monkeypatch.setattr(
        trainer, "blocks", lambda item, anchors: seen.extend(anchors.tolist()) or original(item, anchors)
    )
    trainer.losses(item, torch.Generator().manual_seed(0))
    assert seen == list(range(item.answers[0][0], len(item.ids) - 1))


def test_no_block_reaches_out_of_the_answer_it_starts_in(recipe, tmp_path):
    """Two answers with a question between them: slots are supervised up to the end of their anchor's answer."""
    messages = [{"role": role, "content": TEXT[:60]} for role in ("system", *("user", "assistant") * 2)]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"id": "a", "messages": messages}))
    changes = {"responses": [str(tmp_path / "chats.jsonl")], "anchors_per_sequence": 10_000}
    trainer = Trainer(module.read_recipe(recipe(**changes)))
    (item,) = trainer.train_set
    (first, middle), (second, end) = item.answers
    assert first < middle < second < end == len(item.ids)
    with torch.no_grad():
        blocks = trainer.blocks(item, torch.tensor(item.anchors))
    positions = torch.tensor(item.anchors)[:, None] + 1 + torch.arange(3)
    seen = set(positions[blocks.supervised].tolist())
    assert seen == {*range(first + 1, middle), *range(second + 1, end)}
    rows = [
        (anchor, *(anchor + 1 + s < (middle if anchor < middle else end) for s in range(3)))
        for anchor in [*range(first, middle - 1), *range(second, end - 1)]
    ]
    assert [(anchor, *row) for anchor, row in zip(item.anchors, blocks.supervised.tolist(), strict=True)] == rows
    assert blocks.gold[blocks.supervised].tolist() == [item.ids[p] for p in positions[blocks.supervised]]
    loss, _ = trainer.losses(item, torch.Generator().manual_seed(0))
    assert loss.isfinite()


def test_every_sequence_once_an_epoch(recipe):
    trainer = Trainer(module.read_recipe(recipe()))
    epoch = [item.id for step in range(5) for item in trainer._sequences(step)]  # 10 = two epochs of 5
    assert sorted(epoch[:5]) == sorted(epoch[5:]) == [f"r{i}" for i in range(5)]
    assert epoch[:5] != epoch[5:]


def test_it_learns(recipe):
    """Eighty steps on one answer: the drafter's loss falls by more than half and the walk finds tokens."""
    changes = {"steps": 80, "sequences_per_step": 1, "learning_rate": 0.02, "anchors_per_sequence": 30}
    trainer = Trainer(module.read_recipe(recipe(**changes)))
    trainer.train_set = trainer.train_set[:1]
    before = trainer.losses(trainer.train_set[0], torch.Generator().manual_seed(7))[1]
    while trainer.step < 80:
        trainer.train_step()
    after = trainer.losses(trainer.train_set[0], torch.Generator().manual_seed(7))[1]
    assert after["drafter"] < 0.5 * before["drafter"]
    assert before["selected_prefix"] < 0.3 < 0.6 < after["selected_prefix"] <= after["oracle_prefix"]


def test_plain_dflash_trains_without_head_terms(recipe):
    trainer = Trainer(module.read_recipe(recipe(head=RECIPE["head"] | {"enabled": False})))
    values = trainer.losses(trainer.train_set[0], torch.Generator().manual_seed(0))[1]
    assert values.keys() == {"drafter", "top1_prefix", "loss"}
    assert values["drafter"] == values["loss"]


HEADS = {
    "none": {"kind": "none"},
    "domino": {"kind": "domino", "gru_hidden_dim": 16, "emb_dim": 8},
    "vanilla": {"kind": "dspark", "markov_rank": 8, "markov_head_type": "vanilla"},
    "gated": {"kind": "dspark", "markov_rank": 8, "markov_head_type": "gated"},
    "domino on DFlash's rows": {"kind": "domino", "gru_hidden_dim": 16, "emb_dim": 8, "shift_label": False},
    "gated on DFlash's rows": {"kind": "dspark", "markov_rank": 8, "markov_head_type": "gated", "shift_label": False},
    "rnn": {"kind": "dspark", "markov_rank": 8, "markov_head_type": "rnn", "confidence_with_markov": False},
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("bf16", [False, True])
def test_every_head_learns_saves_and_drafts(recipe, tiny_target, head, bf16):
    """Eighty steps on one answer; its own drafts are then accepted, so labels, rows and positions agree with decoding."""
    changes = {"steps": 80, "sequences_per_step": 1, "learning_rate": 0.02, "anchors_per_sequence": 30}
    # A random target knows nothing of the text, so its distribution is not what is learnt here.
    changes |= {
        "objective": {"base_until": 0.5, "token_ce": 1.0, "token_l1": 0.0},
        "drafter": RECIPE["drafter"] | {"draft_vocab_size": 280},
    }
    trainer = Trainer(module.read_recipe(recipe(head=HEADS[head], bf16=bf16, **changes)))
    trainer.train_set = trainer.train_set[:1]
    while trainer.step < 80:
        trainer.train_step()
    item = trainer.train_set[0]
    drafter = read_drafter(finish(trainer)).float()
    assert type(drafter.config.head) is type(trainer.drafter.config.head)
    target = load_target(tiny_target)
    begin = item.answers[0][0]
    result = acceptance_on_continuation(target, drafter, item.ids[:begin], item.ids[begin:])
    assert result.acceptance_length > 2
    assert max(r.accepted for r in result.rounds) == drafter.config.slots  # up to the last slot


def test_the_target_is_frozen_and_the_loss_is_the_weighted_sum(recipe):
    weights = {"head_ce": 0.5, "head_margin": 0.25, "head_penalty": 2.0, "soft": 0.5}
    trainer = Trainer(module.read_recipe(recipe(objective=weights)))
    loss, values = trainer.losses(trainer.train_set[0], torch.Generator().manual_seed(0))
    total = values["drafter"] + 0.5 * values["ce"] + 0.25 * values["margin"] + 2.0 * values["penalty"]
    assert loss.item() == pytest.approx(total, rel=1e-6)
    loss.backward()
    assert not trainer.embeddings.requires_grad
    without = [name for name, parameter in trainer.drafter.named_parameters() if parameter.grad is None]
    assert without == []


def test_head_and_drafter_learn_at_their_own_rates(recipe):
    rates = {"learning_rate": 0.0, "head_learning_rate": 0.01}
    trainer = Trainer(module.read_recipe(recipe(head=HEADS["gated"], **rates)))
    before = {name: p.detach().clone() for name, p in trainer.drafter.named_parameters()}
    trainer.train_step()
    moved = {name for name, p in trainer.drafter.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(name.startswith("dspark.") for name in moved)


def test_schedule():
    factors = [schedule(step, 100, 0.04) for step in range(100)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == 1.0
    assert factors[52] == pytest.approx(0.5)
    assert 0 < factors[99] < 0.001
    assert schedule(0, 1, 0.0) == 1.0
