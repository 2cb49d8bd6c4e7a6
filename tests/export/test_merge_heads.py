"""q, k and v of a layer in one product, one reshape and one transpose; what is no such layer stays as it was."""

import pytest

from tests.export.rewriting import simplified, weights, x

HEADS = """{
    a = MatMul (x, q)
    b = MatMul (x, k)
    c = MatMul (x, v)
    queries = Constant <value = int64[4] {0, 0, 4, 2}> ()
    keys = Constant <value = int64[4] {0, 0, KEYS}> ()
    values = Constant <value = int64[4] {0, 0, 1, 2}> ()
    a4 = Reshape (a, queries)
    b4 = Reshape (b, keys)
    c4 = Reshape (c, values)
    qh = Transpose <perm = [0, 2, 1, 3]> (a4)
    kh = Transpose <perm = PERM> (b4)
    vh = Transpose <perm = [0, 2, 1, 3]> (c4)
}"""


def _heads(outputs: str, keys: str = "1, 2", perm: str = "[0, 2, 1, 3]") -> str:
    return f"g (float[N,T,6] x) => ({outputs}) " + HEADS.replace("KEYS", keys).replace("PERM", perm)


def test_three_products_of_one_input_become_one():
    text = """g (float[N,4] x) => (float[N,6] a, float[N,2] b, float[N,3] c) {
        a = MatMul (x, q)
        b = MatMul (x, k)
        c = MatMul (x, v)
    }"""
    ops, model = simplified(text, weights(q=(4, 6), k=(4, 2), v=(4, 3)), x(2, 4))
    assert (ops["MatMul"], ops["Split"]) == (1, 1)
    assert list(model.graph.initializers) == ["q.merged"]


BIASED = """g (float[N,4] x) => (float[N,6] a, float[N,2] b, float[N,3] c) {
    a0 = MatMul (x, q)
    b0 = MatMul (x, k)
    c0 = MatMul (x, v)
    a = Add (a0, qb)
    b = Add (b0, kb)
    c = Add (VALUE)
}"""


def test_biases_are_merged_with_their_products():
    initializers = weights(q=(4, 6), k=(4, 2), v=(4, 3), qb=(6,), kb=(2,), vb=(3,))
    ops, model = simplified(BIASED.replace("VALUE", "c0, vb"), initializers, x(2, 4))
    assert ops == {"MatMul": 1, "Add": 1, "Split": 1, "Constant": 1}
    assert list(model.graph.initializers) == ["q.merged", "qb.merged"]


def test_a_bias_that_is_computed_stays_behind_the_split():
    initializers = weights(q=(4, 6), k=(4, 2), v=(4, 3), qb=(6,), kb=(2,))
    ops, _ = simplified(BIASED.replace("VALUE", "c0, c0"), initializers, x(2, 4))
    assert (ops["MatMul"], ops["Add"], ops["Split"]) == (1, 3, 1)


def test_pairs_and_weights_with_another_use_are_left_alone():
    text = """g (float[N,4] x) => (float[N,2] a, float[N,2] b, float[N,2] c, float[N,2] d) {
        a = MatMul (x, q)
        b = MatMul (x, k)
        c = MatMul (x, v)
        z = Neg (x)
        d = MatMul (z, v)
    }"""
    ops, _ = simplified(text, weights(q=(4, 2), k=(4, 2), v=(4, 2)), x(2, 4))
    assert (ops["MatMul"], ops["Split"]) == (4, 0)


def test_heads_are_laid_out_once():
    text = _heads("float[N,4,T,2] qh, float[N,1,T,2] kh, float[N,1,T,2] vh")
    ops, _ = simplified(text, weights(q=(6, 8), k=(6, 2), v=(6, 2)), x(2, 3, 6), exact=True)
    assert ops == {"MatMul": 1, "Reshape": 1, "Transpose": 1, "Split": 1, "Constant": 2}


@pytest.mark.parametrize(
    ("outputs", "keys", "perm"),
    [
        ("float[N,4,T,2] qh, float[N,2,T,1] kh, float[N,1,T,2] vh", "2, 1", "[0, 2, 1, 3]"),
        ("float[N,4,T,2] qh, float[N,1,2,T] kh, float[N,1,T,2] vh", "1, 2", "[0, 2, 3, 1]"),
        ("float[N,4,T,2] qh, float[N,1,T,2] kh, float[N,1,T,2] vh, float[N,T,1,2] b4", "1, 2", "[0, 2, 1, 3]"),
        ("float[N,4,T,2] qh, float[N,1,T,2] kh, float[N,1,T,2] vh, float[N,T,2] b", "1, 2", "[0, 2, 1, 3]"),
    ],
    ids=["heads of another width", "another order", "rows read before the transpose", "rows read before the reshape"],
)
def test_other_layouts_stay(outputs, keys, perm):
    ops, _ = simplified(_heads(outputs, keys, perm), weights(q=(6, 8), k=(6, 2), v=(6, 2)), x(2, 3, 6))
    assert (ops["MatMul"], ops["Reshape"], ops["Transpose"]) == (1, 3, 3)
