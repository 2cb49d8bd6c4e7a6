"""The target graph of every proven family against transformers' own forward, through ONNX Runtime, in ragged chunks."""

import numpy as np
import pytest
import torch
import transformers

from lilicorr.export.architectures import PROVEN
from lilicorr.export.graphs import trace_target, write_graphs
from lilicorr.export.target_graph import TargetGraph
from lilicorr.runtime.errors import UserError
from tests.export.onnx_run import commit, empty_caches, run

LAYERS, VOCAB, HIDDEN, CAPTURED = 2, 61, 32, (0, 1)
SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
SLIDING = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}
MIXED = {"layer_types": ["full_attention", "sliding_attention"]}
FAMILIES = [
    ("Llama", {"tie_word_embeddings": False, "attention_bias": True}),
    ("Qwen2", SLIDING | MIXED),
    ("Qwen3", SLIDING | MIXED | {"tie_word_embeddings": True}),
    ("SmolLM3", {"no_rope_layers": [1, 0]}),
    ("Mistral", {"sliding_window": 4}),
]


def _model(family: str, changes: dict) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize(("family", "changes"), FAMILIES, ids=[family for family, _ in FAMILIES])
def test_graph_equals_transformers_over_ragged_chunks(family, changes, tmp_path):
    model = _model(family, changes)
    tokens = torch.randint(0, VOCAB, (2, 14), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True)
    logits = states.logits.numpy()
    first_feature = states.hidden_states[
        CAPTURED[0] + 1
    ].numpy()  # the last layer's entry is normed, so compare the first
    components = write_graphs({"target": trace_target(model, CAPTURED, torch.float32)}, tmp_path, threshold=256)
    assert [t.shape for t in components["target"].outputs[:3]] == [
        ("N", "T", VOCAB),
        ("N", "T"),
        ("N", "T", len(CAPTURED) * HIDDEN),
    ]

    caches, lengths = empty_caches(LAYERS, 2, 2, 16, 8), [0, 0]
    for counts in ([8, 5], [1, 4], [4, 4]):  # lanes drift apart; the shorter lane's extra rows are padding
        chunk = np.zeros((2, max(counts)), np.int32)
        for lane in range(2):
            chunk[lane, : counts[lane]] = tokens[lane, lengths[lane] : lengths[lane] + counts[lane]]
        out = run(tmp_path / "target.onnx", {"tokens": chunk, "lengths": np.array(lengths, np.int32), **caches})
        for lane in range(2):
            rows, place = slice(counts[lane]), slice(lengths[lane], lengths[lane] + counts[lane])
            np.testing.assert_allclose(out["logits"][lane, rows], logits[lane, place], atol=2e-4, rtol=1e-4)
            np.testing.assert_array_equal(out["next_ids"][lane, rows], logits[lane, place].argmax(-1))
            np.testing.assert_allclose(
                out["features"][lane, rows, :HIDDEN], first_feature[lane, place], atol=2e-4, rtol=1e-4
            )
        commit(caches, out, lengths, counts)
        lengths = [length + count for length, count in zip(lengths, counts, strict=True)]


def test_every_proven_architecture_is_tested():
    assert {f"{family}ForCausalLM" for family, _ in FAMILIES} == set(PROVEN)


def test_features_of_the_last_layer_are_its_output_before_the_final_norm():
    model = _model("Llama", {"tie_word_embeddings": True})
    captured = []
    hook = model.model.layers[-1].register_forward_hook(lambda _m, _a, out: captured.append(out))
    caches = [[torch.zeros(1, 2, 4, 8)] * LAYERS for _ in "kv"]
    with torch.no_grad():
        tokens, lengths = torch.tensor([[3, 4]], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        features = TargetGraph(model, [LAYERS - 1])(tokens, lengths, *caches)[2]
    hook.remove()
    assert torch.equal(features, captured[0])


def test_the_model_keeps_its_own_attention_afterwards():
    model = _model("Llama", {})
    tokens = torch.tensor([[3, 4, 5]])
    caches = [[torch.zeros(1, 2, 4, 8)] * LAYERS for _ in "kv"]
    with torch.no_grad():
        before = model(tokens).logits
        ours = TargetGraph(model, [0])(tokens.int(), torch.zeros(1, dtype=torch.int32), *caches)[0]
        assert torch.equal(model(tokens).logits, before)
    torch.testing.assert_close(ours, before, rtol=1e-4, atol=1e-4)


def test_tie_is_decided_by_the_numbers_not_by_the_config():
    untied_by_value = _model("Llama", {"tie_word_embeddings": False})
    assert not TargetGraph(untied_by_value, [0]).tied
    with torch.no_grad():
        untied_by_value.lm_head.weight.copy_(untied_by_value.model.embed_tokens.weight)
    assert TargetGraph(untied_by_value, [0]).tied


def test_unsupported_architectures_are_refused_by_name_with_the_reason():
    small = {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "head_dim", "intermediate_size")}
    model = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**small, intermediate_size=48))
    with pytest.raises(
        UserError, match=r"`GPTNeoXForCausalLM` is not supported.*attention interface.*LlamaForCausalLM"
    ):
        TargetGraph(model, [0])


@pytest.mark.parametrize("ids", [[], [2], [-1]])
def test_layer_ids_outside_the_target_are_refused(ids):
    with pytest.raises(UserError, match="target of 2 layers"):
        TargetGraph(_model("Llama", {}), ids)


def test_a_layer_that_bypasses_the_attention_interface_is_refused():
    model = _model("Llama", {})
    plain = torch.nn.Identity()
    plain.forward = lambda hidden_states, **_: (hidden_states, None)
    model.model.layers[1].self_attn = plain
    caches = [[torch.zeros(1, 2, 4, 8)] * LAYERS for _ in "kv"]
    with torch.no_grad(), pytest.raises(UserError, match="1 of 2 layers"):
        TargetGraph(model, [0])(torch.ones(1, 2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), *caches)


def test_attention_with_extra_terms_is_refused():
    model = _model("Llama", {})
    original = model.model.forward
    model.model.forward = lambda **kwargs: original(**kwargs, softcap=30.0)
    caches = [[torch.zeros(1, 2, 4, 8)] * LAYERS for _ in "kv"]
    with torch.no_grad(), pytest.raises(UserError, match="softcap"):
        TargetGraph(model, [0])(torch.ones(1, 2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), *caches)
