"""Bundle-level properties of the graphs: one copy of shared tables, precision with fp32 islands, names, the real target."""

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from lilicorr.export.graphs import trace_drafter, trace_scorer, trace_target, write_graphs
from lilicorr.export.target_graph import TargetGraph
from tests.export.onnx_run import run
from tests.export.tiny import FEATURES, random_drafter, random_table

SMOLLM2 = Path(__file__).parents[2] / "build" / "smollm2-135m-hf"
HALF = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def test_embedding_and_lm_head_exist_once_on_disk(tmp_path):
    drafter, table = random_drafter(), random_table()
    models = {
        "drafter": trace_drafter(drafter, table, table, torch.float32, 5, 4),
        "scorer": trace_scorer(drafter.head, table, torch.float32, 5, 4),
    }
    components = write_graphs(models, tmp_path, threshold=256)
    assert (tmp_path / "weights/embedding.bin").stat().st_size == table.numel() * 4
    assert components["drafter"].weights == ("weights/drafter.bin", "weights/embedding.bin")
    assert components["scorer"].weights == ("weights/embedding.bin", "weights/scorer.bin")
    assert components["scorer"].opset == 18


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_keeps_its_fp32_islands(dtype, tmp_path):
    drafter, table = random_drafter(), random_table()
    models = {
        "drafter": trace_drafter(drafter, table, table, dtype, 5, 4),
        "scorer": trace_scorer(drafter.head, table, dtype, 5, 4),
    }
    components = write_graphs(models, tmp_path)
    dtypes = {t.name: t.dtype for c in components.values() for t in (*c.inputs, *c.outputs)}
    assert {dtypes[n] for n in ("features", "k_cache_0", "new_v_1", "hidden", "anchor_row")} == {HALF[dtype]}
    assert {dtypes[n] for n in ("log_probs", "start", "pair")} == {"float32"}
    for name in models:
        proto = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / f"{name}.onnx"), data_prop=True)
        types = {v.name: v.type.tensor_type.elem_type for v in (*proto.graph.value_info, *proto.graph.input)}
        islands = {"Softmax", "ReduceMean", "Sqrt", "Exp", "Log", "TopK", "ReduceL2", "GreedyWalk"}
        found = {
            n.op_type: types.get(n.input[0], onnx.TensorProto.FLOAT) for n in proto.graph.node if n.op_type in islands
        }
        assert set(found.values()) == {onnx.TensorProto.FLOAT}, found


def test_half_precision_numbers_stay_close(tmp_path):
    features = np.random.default_rng(0).standard_normal((1, 3, FEATURES)).astype(np.float32)
    hidden = {}
    for dtype, numpy_type in ((torch.float32, np.float32), (torch.float16, np.float16)):
        folder = tmp_path / numpy_type.__name__
        table = random_table()
        write_graphs({"drafter": trace_drafter(random_drafter(), table, table, dtype, 5, 4)}, folder)
        caches = {f"{k}_cache_{i}": np.zeros((1, 2, 1, 8), numpy_type) for k in "kv" for i in range(2)}
        integers = {"anchor": [4], "count": [3], "lengths": [0]}
        feeds = {name: np.array(value, np.int32) for name, value in integers.items()}
        hidden[dtype] = run(folder / "drafter.onnx", {**feeds, "features": features.astype(numpy_type), **caches})[
            "hidden"
        ]
    assert hidden[torch.float16].dtype == np.float16
    error = np.abs(hidden[torch.float16].astype(np.float32) - hidden[torch.float32]).max()
    assert 0 < error < 0.05 * np.abs(hidden[torch.float32]).max()


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
