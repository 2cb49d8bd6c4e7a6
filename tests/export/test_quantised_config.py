"""The choice of integers, refused before a weight is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from lilicorr.export.describe import describe
from lilicorr.export.headers import TensorHeader
from lilicorr.export.options import BuildOptions
from lilicorr.export.pair import check_pair
from lilicorr.export.plan import make_plan
from lilicorr.export.quantised_config import Stored, chosen_quantisation
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Quantisation
from tests.export.packed import write_packed_target

INT4 = BuildOptions(weights="int4", weights_block=32)


def headers(**widths: int) -> dict[str, TensorHeader]:
    layers = {f"model.layers.0.{n}.weight": TensorHeader("F32", (8, w), "m") for n, w in widths.items()}
    return layers | {"model.embed_tokens.weight": TensorHeader("F32", (9, 100), "m")}


def test_no_integers_unless_asked_or_stored():
    assert chosen_quantisation(None, headers(up=100), BuildOptions()) is None
    stored = Stored("awq", 4, 128, symmetric=False)
    assert chosen_quantisation(stored, {}, BuildOptions()) == Quantisation(8, 128, "awq")
    assert chosen_quantisation(None, headers(up=64), INT4) == Quantisation(4, 32, "round-to-nearest")


def test_a_width_that_the_block_does_not_divide():
    with pytest.raises(
        UserError, match=r"`model\.layers\.0\.up\.weight` has an input width of 576, which blocks of 128 do not"
    ):
        chosen_quantisation(None, headers(down=1536, up=576), BuildOptions(weights="int4", weights_block=128))
    with pytest.raises(UserError, match="as in 1 more") as caught:
        chosen_quantisation(None, headers(q=96, k=96, v=128), BuildOptions(weights="int8", weights_block=64))
    assert caught.value.hint == "--weights-block 32"
    with pytest.raises(UserError) as caught:
        chosen_quantisation(None, headers(q=100), BuildOptions(weights="int8", weights_block=64))
    assert caught.value.hint == "no block size fits this target: leave --weights out"


def test_integers_are_not_quantised_again():
    with pytest.raises(UserError, match=r"integers already \(gptq, 4 bits, blocks of 64\); --weights int4") as caught:
        chosen_quantisation(Stored("gptq", 4, 64, symmetric=True), {}, INT4)
    assert "leave --weights out" in caught.value.hint


def test_the_manifest_and_the_plan_know(tiny_target: Path, tiny_drafter: Path, tmp_path: Path):
    pair = check_pair(tiny_target, tiny_drafter)
    manifest = describe(pair, INT4)
    assert manifest.target.quantisation == Quantisation(4, 32, "round-to-nearest")
    assert manifest.command[-4:] == ("--weights", "int4", "--weights-block", "32")
    whole = make_plan(pair, BuildOptions()).files["weights/target.bin"]
    int4, int8 = (
        make_plan(pair, BuildOptions(weights=w, weights_block=32)).files["weights/target.bin"] for w in ("int4", "int8")
    )
    layers = 4 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32)  # values: q and o, k and v, the three of the MLP
    assert int8 - int4 == layers // 2
    assert whole - int8 == layers * 4 - layers - layers // 32 * 4
    write_packed_target(tmp_path / "t", tiny_target, "gptq")
    packed = make_plan(check_pair(tmp_path / "t", tiny_drafter), BuildOptions())
    assert packed.files["weights/target.bin"] == int4
