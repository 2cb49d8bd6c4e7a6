"""Each rewrite removes what it promises and changes no result; graphs are written in ONNX's own text form."""

import numpy as np
import onnx_ir as ir

from tests.export.rewriting import simplified, weights, x


def test_weight_transposes_are_done_at_export_and_stay_lazy():
    text = """g (float[N,4] x) => (float[N,6] y) {
        t = Transpose <perm = [1, 0]> (w)
        y = MatMul (x, t)
    }"""
    ops, model = simplified(text, weights(w=(6, 4)), x(2, 4))
    assert ops == {"MatMul": 1}
    assert list(model.graph.initializers) == ["w.transposed"]
    assert isinstance(model.graph.initializers["w.transposed"].const_value, ir.LazyTensor)


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
    ops, _ = simplified(text, {}, x(3, 4))
    assert (ops["Reciprocal"], ops["Mul"], ops["Div"]) == (0, 0, 1)


def test_reshapes_to_computed_shapes_become_constant():
    text = """g (float[N,T,8] x) => (float[N,2,T,4] y) <float[N,T,2,4] split> {
        n = Shape <start = 0, end = 2> (x)
        heads = Constant <value = int64[2] {2, 4}> ()
        shape = Concat <axis = 0> (n, heads)
        split = Reshape <allowzero = 1> (x, shape)
        y = Transpose <perm = [0, 2, 1, 3]> (split)
    }"""
    ops, _ = simplified(text, {}, x(2, 3, 8))
    assert ops == {"Reshape": 1, "Transpose": 1, "Constant": 1}


def test_sequences_become_a_split():
    text = """g (float[N,5] x, int64[2] sizes) => (float[N,A] a, float[N,B] b) {
        parts = SplitToSequence <axis = -1, keepdims = 1> (x, sizes)
        zero = Constant <value = int64 {0}> ()
        one = Constant <value = int64 {1}> ()
        b = SequenceAt (parts, one)
        a = SequenceAt (parts, zero)
    }"""
    ops, _ = simplified(text, {}, {**x(2, 5), "sizes": np.array([2, 3])})
    assert ops == {"Split": 1}
