"""The comparison of gradients, small and on the CPU: the dense form is the trainer's, and a wrong one is caught."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import device_gradients

    monkeypatch.setattr(device_gradients, "SIZES", {"R": 2, "A": 6, "B": 4, "C": 50, "g": 2, "heads": 4, "D": 16})
    monkeypatch.setattr(
        device_gradients, "MASKS", {"full": (None, False), "causal": (None, True), "window, causal": (5, True)}
    )
    return device_gradients


@pytest.mark.parametrize("mask", ["full", "causal", "window, causal"])
def test_the_trainers_attention_is_the_dense_form(script, mask):
    found = script.attention_errors(mask, "float32", "cpu")
    assert found["right"]
    assert max(found["ours"].values()) < 1e-6
    assert max(found["dense"].values()) < 1e-6
    rounded = script.attention_errors(mask, "bfloat16", "cpu")
    assert rounded["right"]
    assert 1e-3 < max(rounded["ours"].values()) < 1e-2


def test_another_mask_is_caught(script, monkeypatch):
    from lilicorr.train import block_attention as module

    honest = module.block_attention
    monkeypatch.setattr(module, "block_attention", lambda *a: honest(*a[:-2], 6, a[-1]))  # a window of 6, not of 5
    assert not script.attention_errors("window, causal", "bfloat16", "cpu")["right"]


def test_a_gradient_that_is_lost_is_caught(script, monkeypatch):
    from lilicorr.train import block_attention as module

    honest = module.block_attention
    monkeypatch.setattr(
        module,
        "block_attention",
        lambda *a: lambda k_context, *rest: honest(*a)(k_context.detach() + 0 * k_context, *rest),
    )
    found = script.attention_errors("full", "float32", "cpu")
    assert not found["right"]
    assert found["ours"]["out"] < 1e-6  # its numbers alone do not show it


def test_a_step_has_the_gradients_of_the_dense_one(script):
    single, half = script.step_errors(("anchors_per_sequence=6", "max_length=60"))
    assert single["right"]
    assert single["ours"]["worst"] < 1e-5
    assert half["right"]
    assert half["ours"]["all"] > 1e-4  # bf16 was really computed in


def test_not_a_number_is_not_right(script):
    assert not script.line("x", "float32", {"all": float("nan")}, [0.0])["right"]
