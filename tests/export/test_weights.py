"""Weight files: each tensor once, aligned, streamed; the graphs read back what was put in."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from lilicorr.export.weights import PAGE, is_table, move_weights

RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((50, 40)).astype(np.float32)
PROJECTION = RNG.standard_normal((40, 30)).astype(np.float32)


def _model(projection: np.ndarray | ir.TensorProtocol, table: np.ndarray = TABLE) -> ir.Model:
    """ids → table rows → product."""

    def weight(name: str, array: np.ndarray | ir.TensorProtocol) -> ir.Value:
        tensor = ir.tensor(array.copy(), name=name) if isinstance(array, np.ndarray) else array
        return ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)

    ids = ir.Value(name="ids", shape=ir.Shape(["N"]), type=ir.TensorType(ir.DataType.INT32))
    weights = [weight("table", table), weight("projection", projection)]
    rows = ir.node("Gather", [weights[0], ids], {"axis": 0})
    product = ir.node("MatMul", [rows.outputs[0], weights[1]])
    out = product.outputs[0]
    out.name, out.shape, out.type = "out", ir.Shape(["N", weights[1].shape[1]]), ir.TensorType(weights[1].dtype)
    graph = ir.Graph([ids], [out], nodes=[rows, product], initializers=weights, opset_imports={"": 18}, name="g")
    return ir.Model(graph, ir_version=10)


def _run(path, ids):
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": np.array(ids, np.int32)})[0]


def test_a_shared_table_is_written_once_and_graphs_run_from_disk(tmp_path):
    other = RNG.standard_normal((40, 20)).astype(np.float32)
    models = {"target": _model(PROJECTION), "drafter": _model(other)}
    files = move_weights(models, tmp_path, threshold=64)
    assert files == {
        "target": ("weights/embedding.bin", "weights/target.bin"),
        "drafter": ("weights/drafter.bin", "weights/embedding.bin"),
    }
    assert (tmp_path / "weights/embedding.bin").stat().st_size == TABLE.nbytes
    for name, model in models.items():
        ir.save(model, tmp_path / f"{name}.onnx")
    np.testing.assert_allclose(_run(tmp_path / "target.onnx", [3, 49]), TABLE[[3, 49]] @ PROJECTION, rtol=1e-4)
    np.testing.assert_allclose(_run(tmp_path / "drafter.onnx", [0]), TABLE[[0]] @ other, rtol=1e-4)


def test_a_matrix_two_graphs_share_is_written_once_but_a_changed_one_is_not(tmp_path):
    changed = PROJECTION.copy()
    changed[0, 0] += 1
    files = move_weights(
        {"target": _model(PROJECTION), "same": _model(PROJECTION), "other": _model(changed)}, tmp_path, threshold=64
    )
    assert files["same"] == files["target"]
    assert "weights/other.bin" in files["other"]


def test_equal_bytes_of_another_shape_are_not_merged(tmp_path):
    square = np.zeros((40, 40), np.float32)
    models = {"a": _model(square, table=np.zeros((20, 40), np.float32)), "b": _model(square[:, :20].copy())}
    move_weights(models, tmp_path, threshold=64)
    places = {
        (v.const_value.location, v.const_value.offset) for m in models.values() for v in m.graph.initializers.values()
    }
    assert len(places) == 4


def test_offsets_are_page_aligned_and_small_tensors_stay_inside(tmp_path):
    models = {"target": _model(PROJECTION), "drafter": _model(PROJECTION + 1)}
    move_weights(
        {**models, "third": _model(PROJECTION + 2, table=TABLE + 1)}, tmp_path, threshold=PROJECTION.nbytes + 1
    )
    for model in models.values():
        assert not isinstance(model.graph.initializers["projection"].const_value, ir.ExternalTensor)
        table = model.graph.initializers["table"].const_value
        assert table.offset % PAGE == 0
    assert (
        tmp_path / "weights/embedding.bin"
    ).stat().st_size == 2 * PAGE + TABLE.nbytes  # 8000 bytes end in the second page


def test_a_second_run_starts_the_files_anew(tmp_path):
    move_weights({"target": _model(PROJECTION)}, tmp_path, threshold=64)
    move_weights({"target": _model(PROJECTION)}, tmp_path, threshold=64)
    assert (tmp_path / "weights/target.bin").stat().st_size == PROJECTION.nbytes


def test_lookups_on_another_axis_are_not_tables():
    model = _model(PROJECTION)
    gather = next(node for node in model.graph if node.op_type == "Gather")
    assert is_table(model.graph.initializers["table"])
    assert not is_table(model.graph.initializers["projection"])
    gather.attributes["axis"] = ir.AttrInt64("axis", 1)
    assert not is_table(model.graph.initializers["table"])


@pytest.mark.slow
def test_more_than_two_gigabytes_without_holding_them(tmp_path):
    """33 lazy tensors of 64 MiB: past protobuf's 2 GB limit, written one at a time, checked by path."""
    rows, columns, count = 4096, 4096, 33
    ids = ir.Value(name="x", shape=ir.Shape(["N", rows]), type=ir.TensorType(ir.DataType.FLOAT))
    nodes, weights, value = [], [], ids
    for i in range(count):
        lazy = ir.LazyTensor(
            lambda i=i: ir.tensor(np.full((rows, columns), i, np.float32)),
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape([rows, columns]),
            name=f"w{i}",
        )
        weights.append(ir.Value(name=f"w{i}", shape=lazy.shape, type=ir.TensorType(lazy.dtype), const_value=lazy))
        nodes.append(ir.node("MatMul", [value, weights[-1]]))
        value = nodes[-1].outputs[0]
    value.name, value.shape, value.type = "y", ir.Shape(["N", columns]), ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([ids], [value], nodes=nodes, initializers=weights, opset_imports={"": 18}, name="big")
    model = ir.Model(graph, ir_version=10)
    move_weights({"big": model}, tmp_path)
    ir.save(model, tmp_path / "big.onnx")
    assert (tmp_path / "weights/big.bin").stat().st_size == count * rows * columns * 4 > 2**31
    onnx.checker.check_model(str(tmp_path / "big.onnx"), full_check=True)
    (tmp_path / "weights/big.bin").unlink()  # pytest would keep it for three runs
