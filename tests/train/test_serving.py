"""Evaluation predicts serving: `evaluate`'s rounds are those of the runtime's loop on an exported bundle, to the last one."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoTokenizer

from lilicorr.export.bundle import build_bundle
from lilicorr.export.options import BuildOptions
from lilicorr.export.progress import Progress
from lilicorr.runtime.bench import run_bench
from lilicorr.runtime.prompts import read_prompts
from lilicorr.runtime.session import load
from lilicorr.runtime.tokenizer import user_message
from lilicorr.train.checkpoint import read_drafter, write_drafter
from lilicorr.train.continuations import cache_file, continuations
from lilicorr.train.conversation import Conversation
from lilicorr.train.evaluate import evaluate, rounds_of
from lilicorr.train.recipe import read_recipe
from lilicorr.train.target import load_target, target_features
from lilicorr.train.trainer import Trainer
from tests.train.test_fit import _signals_restored, recipe  # noqa: F401 (fixtures)

TOKENS = 24
QUESTIONS = ["the quick fox", "who?"]


@pytest.mark.slow
def test_rounds_equal_those_of_the_runtime(recipe, tiny_target, tmp_path):  # noqa: F811
    """The drafter has learnt half of the first answer, so that rounds of all lengths occur."""
    prompts = tmp_path / "set.jsonl"
    lines = [{"id": f"{i}", "category": "ab"[i], "turns": [text]} for i, text in enumerate(QUESTIONS)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    target, tokenizer = load_target(tiny_target), AutoTokenizer.from_pretrained(tiny_target)
    file = cache_file(tmp_path, "set", target, TOKENS, 0.0)
    items = continuations(target, tokenizer, read_prompts(prompts), file, max_new_tokens=TOKENS)

    options = {"steps": 40, "sequences_per_step": 1, "learning_rate": 0.02, "anchors_per_sequence": 24}
    trainer = Trainer(read_recipe(recipe(**options)))
    first = items[0]
    learnt = first.prompt_ids + first.tokens[: TOKENS // 2]
    trainer.train_set = [Conversation(first.id, learnt, ((len(first.prompt_ids), len(learnt)),))]
    while trainer.step < 40:
        trainer.train_step()
    write_drafter(trainer.drafter, tmp_path / "drafter")
    build_bundle(tiny_target, tmp_path / "drafter", tmp_path / "bundle", BuildOptions(), Progress(None))

    drafter, lengths = read_drafter(tmp_path / "drafter"), set()
    with load(tmp_path / "bundle", backend="ort", threads=1) as session:
        block = session.manifest.drafter.block_size
        for item, text in zip(items, QUESTIONS, strict=True):
            served = session.generate([user_message(text)], max_new_tokens=TOKENS, block_size=block)
            assert served.token_ids == item.tokens
            ids = torch.tensor([[*item.prompt_ids, *item.tokens]])
            features, _ = target_features(target, ids, drafter.config.target_layer_ids)
            rounds, _ = rounds_of(target, drafter, item, features, TOKENS)
            assert rounds.emitted == served.stats.acceptance
            assert rounds.accepted == served.stats.accepted
            assert rounds.offered == served.stats.offered
            lengths |= set(rounds.accepted)
        report = run_bench(session, read_prompts(prompts), TOKENS, block_size=block)
    assert {0, 3} < lengths
    (result,) = evaluate([tmp_path / "drafter"], tiny_target, [prompts], max_new_tokens=TOKENS)
    assert result["rounds"] == report["rounds"]
    assert result["acceptance_length"] == pytest.approx(report["acceptance_length"], abs=1e-12)
    assert result["slot_acceptance"] == pytest.approx(report["slot_acceptance"], abs=1e-12)
    for name, category in result["categories"].items():
        assert category["acceptance_length"] == pytest.approx(
            report["by_category"][name]["acceptance_length"], abs=1e-12
        )
