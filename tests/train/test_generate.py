"""greedy_batch against one-sequence decoding without cache, padding or compaction."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lilicorr.train.generate import greedy_batch


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=61,
        max_position_embeddings=64,
        initializer_range=0.5,  # peaked logits: no ties between batch shapes
    )
    return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def alone(model, prompt, max_new_tokens, stop_ids):
    ids = list(prompt)
    for _ in range(max_new_tokens):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in stop_ids:
            break
    return ids[len(prompt) :]


PROMPTS = [[5], [7, 8, 9], [11, 2, 33, 4, 25, 16, 7], [3, 3], [60, 1, 2, 3]]


def test_ragged_batch_equals_each_prompt_alone(model):
    expected = [alone(model, prompt, 12, frozenset()) for prompt in PROMPTS]
    assert greedy_batch(model, PROMPTS, max_new_tokens=12, stop_ids=frozenset()) == expected
    assert len({tuple(answer) for answer in expected}) > 1


def test_lanes_that_end_leave_and_the_rest_is_unchanged(model):
    free = [alone(model, prompt, 12, frozenset()) for prompt in PROMPTS]
    stop_ids = frozenset({free[0][1], free[2][4]})  # two lanes end early, at different steps
    expected = [alone(model, prompt, 12, stop_ids) for prompt in PROMPTS]
    assert {len(answer) for answer in expected} != {12}
    assert greedy_batch(model, PROMPTS, max_new_tokens=12, stop_ids=stop_ids) == expected


def test_stops_when_every_lane_has_ended(model):
    first = [alone(model, prompt, 1, frozenset()) for prompt in PROMPTS]
    assert greedy_batch(model, PROMPTS, max_new_tokens=12, stop_ids=frozenset(t for [t] in first)) == first
