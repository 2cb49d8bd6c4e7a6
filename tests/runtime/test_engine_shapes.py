"""Shapes against profiles: the right profile, and a refusal that quotes tensor, given and allowed."""

import pytest

from lilicorr.runtime.engine_set import Engine, Profile, Range
from lilicorr.runtime.engine_shapes import profile_for
from lilicorr.runtime.errors import EXIT_ENGINE, UserError

CACHE = Range((1, 2, 1, 8), (1, 2, 128, 8), (4, 2, 512, 8))
PREFILL = Profile("prefill", {"tokens": Range((1, 1), (1, 128), (4, 128)), "k_cache_0": CACHE})
VERIFY = Profile("verify", {"tokens": Range((1, 1), (1, 8), (4, 8)), "k_cache_0": CACHE})
ENGINE = Engine("target.engine", "00", 1, (PREFILL, VERIFY), {})
REBUILD = "lilicorr-export engine B --backend tensorrt"


def choose(tokens, cache=(1, 2, 128, 8)):
    return profile_for("target", ENGINE, {"tokens": tokens, "k_cache_0": cache}, REBUILD)


@pytest.mark.parametrize(("tokens", "index"), [((1, 128), 0), ((1, 9), 0), ((1, 8), 1), ((1, 1), 1), ((4, 8), 1)])
def test_the_profile_tuned_nearest_to_the_call(tokens, index):
    assert choose(tokens) == index


@pytest.mark.parametrize("tokens", [(1, 129), (5, 8), (0, 8), (1, 0), (8,)])
def test_shapes_out_of_range_are_exit_code_4(tokens):
    with pytest.raises(UserError) as caught:
        choose(tokens)
    given = "(" + ", ".join(map(str, tokens)) + ")"
    assert f"profile `prefill`: `tokens` is {given}, allowed (1, 1) to (4, 128)" in caught.value.what
    assert f"profile `verify`: `tokens` is {given}, allowed (1, 1) to (4, 8)" in caught.value.what
    assert caught.value.exit_code == EXIT_ENGINE
    assert caught.value.hint.endswith(REBUILD)


def test_only_what_is_wrong_is_quoted():
    with pytest.raises(UserError) as caught:
        choose((1, 8), (1, 2, 513, 8))
    assert "tokens" not in caught.value.what
    assert "`k_cache_0` is (1, 2, 513, 8), allowed (1, 2, 1, 8) to (4, 2, 512, 8)" in caught.value.what


def test_a_forgotten_input_is_a_defect():
    with pytest.raises(ValueError, match="k_cache_0"):
        profile_for("target", ENGINE, {"tokens": (1, 8)}, REBUILD)
