"""Bundle-level properties of the graphs: one copy of shared tables, precision with fp32 islands, names, the real target."""

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from lilicorr.export.graphs import trace_drafter, trace_scorer, trace_target, write_graphs
from lilicorr.export.target_graph import TargetGraph
from lilicorr.runtime.manifest import Component
from tests.export.onnx_run import empty_caches, run
from tests.export.tiny import FEATURES, random_drafter, random_table

SMOLLM2 = Path(__file__).parents[2] / "build" / "smollm2-135m-hf"
PRECISIONS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
ISLANDS = {"Softmax", "ReduceMean", "Sqrt", "Exp", "Log", "TopK", "ReduceL2", "GreedyWalk"}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[torch.dtype, tuple[Path, dict[str, Component]]]:
    """Drafter and scorer of one random pair in every precision: folder and components by dtype."""
    found = {}
    for dtype in PRECISIONS:
        drafter, table = random_drafter(num_hidden_layers=1), random_table()
        models = {
            "drafter": trace_drafter(drafter, table, table, dtype, 5, 4),
            "scorer": trace_scorer(drafter.head, table, dtype, 5, 4),
        }
        folder = tmp_path_factory.mktemp(PRECISIONS[dtype])
        found[dtype] = folder, write_graphs(models, folder, threshold=256)
    return found


def test_embedding_and_lm_head_exist_once_on_disk(written):
    folder, components = written[torch.float32]
    assert (folder / "weights/embedding.bin").stat().st_size == random_table().numel() * 4
    assert components["drafter"].weights == ("weights/drafter.bin", "weights/embedding.bin")
    assert components["scorer"].weights == ("weights/embedding.bin", "weights/scorer.bin")
    assert components["scorer"].opset == 18


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_fp32_islands(dtype, written):
    folder, components = written[dtype]
    dtypes = {t.name: t.dtype for c in components.values() for t in (*c.inputs, *c.outputs)}
    half = {dtypes[name] for name in ("features", "k_cache_0", "new_v_0", "hidden", "anchor_row")}
    assert half == {PRECISIONS[dtype]}
    assert {dtypes[name] for name in ("log_probs", "start", "pair")} == {"float32"}
    for name in components:
        proto = onnx.shape_inference.infer_shapes(onnx.load(folder / f"{name}.onnx"))
        known = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
        types = {value.name: value.type.tensor_type.elem_type for value in known}
        found = {(node.op_type, types[node.input[0]]) for node in proto.graph.node if node.op_type in ISLANDS}
        assert {"Softmax", "ReduceMean"} <= {op for op, _ in found}
        assert {kind for _, kind in found} == {onnx.TensorProto.FLOAT}, found


def test_half_precision_numbers_stay_close(written):
    features = np.random.default_rng(0).standard_normal((1, 3, FEATURES)).astype(np.float32)
    hidden = {}
    for dtype in (np.float32, np.float16):
        caches = empty_caches(1, 1, 2, 1, 8, dtype)
        feeds = {name: np.array([value], np.int32) for name, value in (("anchor", 4), ("count", 3), ("lengths", 0))}
        folder, _ = written[torch.float32 if dtype is np.float32 else torch.float16]
        out = run(folder / "drafter.onnx", {**feeds, "features": features.astype(dtype), **caches})
        assert out["hidden"].dtype == dtype
        hidden[dtype] = out["hidden"].astype(np.float32)
    error = np.abs(hidden[np.float16] - hidden[np.float32]).max()
    assert 0 < error < 0.02 * np.abs(hidden[np.float32]).max()


@pytest.mark.smollm2
@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="needs build/smollm2-135m-hf (make target)")
def test_the_real_target_agrees_with_transformers(tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32).eval()
    tokens = torch.arange(100, 116)[None]
    with torch.no_grad():
        expected = model(tokens).logits.numpy()
    assert TargetGraph(model, [1]).tied
    graph = trace_target(model, [1, 14, 27], torch.float32)
    assert len(list(graph.graph)) < 2000  # 63 nodes a layer; 132 before simplification
    write_graphs({"target": graph}, tmp_path)
    del model, graph
    gc.collect()
    feeds = {f"{k}_cache_{i}": np.zeros((1, 3, 1, 64), np.float32) for k in "kv" for i in range(30)}
    out = run(
        tmp_path / "target.onnx",
        {"tokens": tokens.numpy().astype(np.int32), "lengths": np.zeros(1, np.int32), **feeds},
    )
    np.testing.assert_allclose(out["logits"], expected, atol=5e-4, rtol=1e-3)
    np.testing.assert_array_equal(out["next_ids"], expected.argmax(-1))
    assert out["features"].shape == (1, 16, 3 * 576)
    for file in (tmp_path / "weights").iterdir():
        file.unlink()  # pytest would keep half a gigabyte for three runs
