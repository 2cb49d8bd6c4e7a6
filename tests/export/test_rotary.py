"""Rotations of q and k: equal bit for bit in fewer nodes, whatever is rotated together; other formulas stay as they are."""

import numpy as np
import pytest

from tests.export.rewriting import RNG, simplified

TABLES = "float[N,1,T,4] cos, float[N,1,T,4] sin"
SLICES = """zero = Constant <value = int64[1] {0}> ()
    two = Constant <value = int64[1] {2}> ()
    last = Constant <value = int64[1] {3}> ()
    step = Constant <value = int64[1] {1}> ()
    end = Constant <value = int64[1] {9223372036854775807}> ()
"""


def _rotated(x: str, y: str, halves: str = "slices") -> str:
    """Text of y = x·cos + [-x₂ ; x₁]·sin."""
    if halves == "slices":
        cut = f"{x}1 = Slice ({x}, zero, two, last, step)\n {x}2 = Slice ({x}, two, end, last, step)"
    else:
        cut = f"{x}1, {x}2 = Split <axis = 3, num_outputs = 2> ({x})"
    return f"""{cut}
    {x}n = Neg ({x}2)
    {x}r = Concat <axis = -1> ({x}n, {x}1)
    {x}c = Mul ({x}, cos)
    {x}s = Mul ({x}r, sin)
    {y} = Add ({x}c, {x}s)
"""


def _feeds(*names: str, heads: int = 6, table_heads: int = 1, width: int = 4) -> dict[str, np.ndarray]:
    def normal(h: int) -> np.ndarray:
        return RNG.standard_normal((2, h, 3, width)).astype(np.float32)

    return {name: normal(heads) for name in names} | {"cos": normal(table_heads), "sin": normal(table_heads)}


@pytest.mark.parametrize("halves", ["slices", "split"])
def test_the_sign_moves_into_the_table(halves):
    text = f"g (float[N,6,T,4] x, {TABLES}) => (float[N,6,T,4] y) {{ {SLICES} {_rotated('x', 'y', halves)} }}"
    ops, _ = simplified(text, {}, _feeds("x"), exact=True)
    assert {op: count for op, count in ops.items() if op != "Constant"} == {"Split": 1, "Concat": 1, "Mul": 3, "Add": 1}


def test_neighbours_of_one_split_are_rotated_together():
    text = f"""g (float[N,6,T,4] x, {TABLES}) => (float[N,3,T,4] y, float[N,2,T,4] z, float[N,1,T,4] v) {{
        {SLICES} heads = Constant <value = int64[3] {{3, 2, 1}}> ()
        q, k, v = Split <axis = 1> (x, heads)
        {_rotated("q", "y")} {_rotated("k", "z")}
    }}"""
    ops, _ = simplified(text, {}, _feeds("x"), exact=True)
    assert (ops["Split"], ops["Concat"], ops["Mul"], ops["Add"], ops["Neg"]) == (3, 1, 3, 1, 0)


def test_layers_that_reshape_the_same_tables_share_the_signed_one():
    layer = """sin{i} = Unsqueeze (sines, step)
    cos{i} = Unsqueeze (cosines, step)
""" + _rotated("INPUT", "y{i}").replace("cos)", "cos{i})").replace("sin)", "sin{i})")
    layers = "".join(layer.replace("INPUT", f"x{i}").replace("{i}", str(i)) for i in range(3))
    text = f"""g (float[N,6,T,64] x0, float[N,6,T,64] x1, float[N,6,T,64] x2, float[N,T,64] cosines, float[N,T,64] sines)
        => (float[N,6,T,64] y0, float[N,6,T,64] y1, float[N,6,T,64] y2) {{ {SLICES.replace("{2}", "{32}")} {layers} }}"""
    feeds = _feeds("x0", "x1", "x2", width=64)
    tables = {"cosines": feeds.pop("cos")[:, 0], "sines": feeds.pop("sin")[:, 0]}
    ops, _ = simplified(text, {}, feeds | tables, exact=True)
    assert (ops["Mul"], ops["Unsqueeze"]) == (2 * 3 + 1, 2)


def test_all_parts_of_a_split_are_rotated_as_its_input():
    text = f"""g (float[N,6,T,4] x, {TABLES}) => (float[N,4,T,4] y, float[N,2,T,4] z) {{
        {SLICES} heads = Constant <value = int64[2] {{4, 2}}> ()
        q, k = Split <axis = 1> (x, heads)
        {_rotated("q", "y")} {_rotated("k", "z")}
    }}"""
    ops, _ = simplified(text, {}, _feeds("x"), exact=True)
    assert (ops["Split"], ops["Concat"], ops["Mul"]) == (2, 1, 3)


def test_parts_that_are_no_neighbours_are_rotated_apart():
    text = f"""g (float[N,6,T,4] x, {TABLES}) => (float[N,3,T,4] y, float[N,2,T,4] v, float[N,1,T,4] z) {{
        {SLICES} heads = Constant <value = int64[3] {{3, 2, 1}}> ()
        q, v, k = Split <axis = 1> (x, heads)
        {_rotated("q", "y")} {_rotated("k", "z")}
    }}"""
    ops, _ = simplified(text, {}, _feeds("x"), exact=True)
    assert (ops["Split"], ops["Concat"], ops["Mul"], ops["Neg"]) == (3, 2, 5, 0)


@pytest.mark.parametrize(
    ("find", "put"),
    [
        ("Concat <axis = -1> (xn, x1)", "Concat <axis = -1> (x1, xn)"),
        ("Neg (x2)", "Neg (x1)"),
        ("Slice (x, zero, two", "Slice (x, step, two"),
        ("Mul (x, cos)", "Mul (xr, cos)"),
        ("Neg (x2)", "Abs (x2)"),
    ],
    ids=["halves not swapped", "one half twice", "unequal halves", "no straight term", "no negation"],
)
def test_other_formulas_stay(find, put):
    rotated = _rotated("x", "y")
    if "step, two" in put:  # x[1:2] and x[2:] give three columns, so x[0:1] joins to four again
        rotated = rotated.replace("Concat <axis = -1> (xn, x1)", "Concat <axis = -1> (xn, x1, x0)")
        rotated = "x0 = Slice (x, zero, step, last, step)\n" + rotated
    assert find in rotated
    text = f"g (float[N,6,T,4] x, {TABLES}) => (float[N,6,T,4] y) {{ {SLICES} {rotated.replace(find, put)} }}"
    ops, _ = simplified(text, {}, _feeds("x"), exact=True)
    assert (ops["Split"], ops["Mul"]) == (0, 2)


def test_tables_with_a_row_per_head_stay():
    text = f"""g (float[N,6,T,4] x, float[N,6,T,4] cos, float[N,6,T,4] sin) => (float[N,6,T,4] y) {{
        {SLICES} {_rotated("x", "y")}
    }}"""
    ops, _ = simplified(text, {}, _feeds("x", table_heads=6), exact=True)
    assert (ops["Split"], ops["Neg"]) == (0, 1)
