"""Each rewrite removes what it promises and changes no result; graphs are written in ONNX's own text form."""

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from lilicorr.export.simplify import simplify

RNG = np.random.default_rng(0)


def _weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def _simplified(text: str, weights: dict[str, np.ndarray], feeds: dict[str, np.ndarray]) -> tuple[Counter, ir.Model]:
    """Parse, simplify, compare all outputs; return the operator counts and the model."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    expected = _run(proto, feeds)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    simplify(model)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    assert [output.name for output in after.graph.output] == [output.name for output in proto.graph.output]
    for found, wanted in zip(_run(after, feeds), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    return Counter(node.op_type for node in model.graph), model


def _x(*shape: int) -> dict[str, np.ndarray]:
    return {"x": RNG.standard_normal(shape).astype(np.float32)}


def test_weight_transposes_are_done_at_export_and_stay_lazy():
    text = """g (float[N,4] x) => (float[N,6] y) {
        t = Transpose <perm = [1, 0]> (w)
        y = MatMul (x, t)
    }"""
    ops, model = _simplified(text, _weights(w=(6, 4)), _x(2, 4))
    assert ops == {"MatMul": 1}
    assert list(model.graph.initializers) == ["w.transposed"]
    assert isinstance(model.graph.initializers["w.transposed"].const_value, ir.LazyTensor)


def test_three_products_of_one_input_become_one():
    text = """g (float[N,4] x) => (float[N,6] a, float[N,2] b, float[N,3] c) {
        a = MatMul (x, q)
        b = MatMul (x, k)
        c = MatMul (x, v)
    }"""
    ops, model = _simplified(text, _weights(q=(4, 6), k=(4, 2), v=(4, 3)), _x(2, 4))
    assert (ops["MatMul"], ops["Split"]) == (1, 1)
    assert list(model.graph.initializers) == ["q.merged"]


def test_pairs_and_weights_with_another_use_are_left_alone():
    text = """g (float[N,4] x) => (float[N,2] a, float[N,2] b, float[N,2] c, float[N,2] d) {
        a = MatMul (x, q)
        b = MatMul (x, k)
        c = MatMul (x, v)
        z = Neg (x)
        d = MatMul (z, v)
    }"""
    ops, _ = _simplified(text, _weights(q=(4, 2), k=(4, 2), v=(4, 2)), _x(2, 4))
    assert (ops["MatMul"], ops["Split"]) == (4, 0)


def test_rms_norm_divides_by_the_root():
    text = """g (float[N,4] x) => (float[N,4] y) {
        two = Constant <value = float {2.0}> ()
        axes = Constant <value = int64[1] {-1}> ()
        squares = Pow (x, two)
        mean = ReduceMean <keepdims = 1> (squares, axes)
        root = Sqrt (mean)
        inverse = Reciprocal (root)
        y = Mul (x, inverse)
    }"""
    ops, _ = _simplified(text, {}, _x(3, 4))
    assert (ops["Reciprocal"], ops["Mul"], ops["Div"]) == (0, 0, 1)


def test_reshapes_to_computed_shapes_become_constant():
    text = """g (float[N,T,8] x) => (float[N,2,T,4] y) <float[N,T,2,4] split> {
        n = Shape <start = 0, end = 2> (x)
        heads = Constant <value = int64[2] {2, 4}> ()
        shape = Concat <axis = 0> (n, heads)
        split = Reshape <allowzero = 1> (x, shape)
        y = Transpose <perm = [0, 2, 1, 3]> (split)
    }"""
    ops, _ = _simplified(text, {}, _x(2, 3, 8))
    assert ops == {"Reshape": 1, "Transpose": 1, "Constant": 1}


def test_sequences_become_a_split():
    text = """g (float[N,5] x, int64[2] sizes) => (float[N,A] a, float[N,B] b) {
        parts = SplitToSequence <axis = -1, keepdims = 1> (x, sizes)
        zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> ()
        b = SequenceAt (parts, one)
        a = SequenceAt (parts, zero)
    }"""
    ops, _ = _simplified(text, {}, {**_x(2, 5), "sizes": np.array([2, 3])})
    assert ops == {"Split": 1}
