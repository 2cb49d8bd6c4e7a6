"""Results and gradients of the trainer's attention on this GPU (flex_attention) against the dense form, and of a whole step.

    python benchmarks/device_gradients.py

Attention: fp32 and bf16 against one masked softmax over all keys in fp64, for every mask. Step: every gradient of the drafter
against those of `dense_step` in fp32. Rounding differs by kernel, so a relative error may be three times that of the dense form in
the same precision, plus what products in TF32 cost. Last line of stdout: one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from device_torch import why_not

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes/smollm2-135m.yaml"
MASKS = {"full": (None, False), "causal": (None, True), "window": (200, False), "window, causal": (200, True)}
SIZES = {"R": 2, "A": 48, "B": 16, "C": 700, "g": 2, "heads": 8, "D": 64}  # as in lilicorr.train.block_attention
STEP = ("anchors_per_sequence=64", "max_length=1024")
NAMES = ("out", "k_context", "v_context", "q", "k", "v")
TIMES, TF32 = 3.0, 2e-3  # TF32 has 10 bits of mantissa: 2^-11 per factor


@click.command()
@click.option("--device", default="cuda", show_default=True)
@click.option("--set", "overrides", multiple=True, default=STEP, show_default=True, help="Values of the step's recipe.")
def main(device: str, overrides: tuple[str, ...]) -> None:
    if reason := why_not(device):
        click.echo(json.dumps({"skipped": reason}))
        return
    import torch

    found = [attention_errors(mask, dtype, device) for dtype in ("float32", "bfloat16") for mask in MASKS]
    found += step_errors(overrides)
    name = torch.cuda.get_device_name() if device == "cuda" else device
    click.echo(json.dumps({"device": name, "torch": torch.__version__, "compared": found}))
    if wrong := [f"{line['what']} ({line['precision']})" for line in found if not line["right"]]:
        sys.exit(f"error: gradients are not those of the dense form: {', '.join(wrong)}")


def attention_errors(mask: str, dtype: str, device: str) -> dict[str, Any]:
    """Relative error of the attention's output and of its five gradients, the trainer's form and the dense one."""
    import torch

    from lilicorr.train.block_attention import block_attention

    torch.compiler.reset()  # every mask is compiled anew, and torch allows few versions of one function
    generator = torch.Generator().manual_seed(0)
    R, A, B, C, g, heads, D = SIZES.values()
    anchors = torch.stack([torch.randperm(C + 1, generator=generator)[:A].sort().values for _ in range(R)]).to(device)
    anchors[0, 0] = 0  # no context
    shapes = ((R, g, C, D), (R, g, C, D), (R, A, heads, B, D), (R, A, g, B, D), (R, A, g, B, D))
    inputs = [torch.randn(shape, generator=generator).to(getattr(torch, dtype)).to(device) for shape in shapes]
    weight = torch.randn(shapes[2], generator=generator).to(device)
    arguments = (anchors, B, C, *MASKS[mask])

    def results(attention: Callable[..., Any], precision: torch.dtype) -> list[torch.Tensor]:
        leaves = [t.to(precision, copy=True).requires_grad_() for t in inputs]
        out = attention(*leaves)
        (out.double() * weight.double()).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    wanted = results(dense_attention(*arguments), torch.float64)
    ours, dense = (
        relative_errors(results(form(*arguments), getattr(torch, dtype)), wanted)
        for form in (block_attention, dense_attention)
    )
    return line(f"attention, {mask}", dtype, dict(zip(NAMES, ours, strict=True)), dense)


def dense_attention(anchors: Any, block: int, context: int, window: int | None, causal: bool) -> Callable[..., Any]:
    """What `block_attention` computes, with the whole mask (R, A·B, C + A·B) and one softmax."""
    import torch

    row = torch.arange(anchors.shape[1] * block, device=anchors.device)
    key = torch.arange(context, device=anchors.device)
    anchor = anchors[:, row // block][..., None]  # (R, A·B, 1)
    before = key < anchor
    if window is not None:
        before = before & (key > anchor + (row % block)[:, None] - window)
    own = row[:, None] // block == row // block
    if causal:
        own = own & (row <= row[:, None])
    seen = torch.cat([before, own.expand(len(anchors), -1, -1)], dim=2)[:, None]

    def attend(k_context: Any, v_context: Any, q: Any, k: Any, v: Any) -> Any:
        q, k, v = (t.transpose(1, 2).flatten(2, 3) for t in (q, k, v))  # (R, heads, A·B, D)
        pairs = ((k_context, k), (v_context, v))
        k, v = (torch.cat(pair, dim=2).repeat_interleave(q.shape[1] // k.shape[1], dim=1) for pair in pairs)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(~seen, float("-inf"))
        return (scores.softmax(-1).to(v.dtype) @ v).unflatten(2, (-1, block)).transpose(1, 2)

    return attend


def step_errors(overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Relative error of a step's gradients, all of them as one vector and the worst alone, in fp32 and under bf16."""
    import torch
    from train_throughput import random_trainer

    from benchmarks.dense_step import dense_loss
    from lilicorr.train.recipe import read_recipe

    def gradients(ours: bool, bf16: bool) -> dict[str, torch.Tensor]:
        torch.compiler.reset()
        trainer, item, lm_head = random_trainer(read_recipe(RECIPE, (*overrides, f"bf16={str(bf16).lower()}")))
        generator = torch.Generator().manual_seed(1)
        loss = trainer.losses(item, generator)[0] if ours else dense_loss(trainer, lm_head, item, generator)
        loss.backward()
        return {n: p.grad for n, p in trainer.drafter.named_parameters() if p.grad is not None and p.grad.any()}

    wanted = gradients(ours=False, bf16=False)
    found = []
    for bf16 in (False, True):
        parts = {}
        for ours in (True, False):
            grads = gradients(ours, bf16)
            whole = [torch.cat([g[name].flatten() for name in wanted]) for g in (grads, wanted)]
            worst = max(relative_errors([grads[name] for name in wanted], list(wanted.values())))
            parts[ours] = {"all": relative_errors(*([w] for w in whole))[0], "worst": worst}
        found.append(line("step", "bfloat16" if bf16 else "float32", parts[True], list(parts[False].values())))
    return found


def relative_errors(found: Sequence[Any], wanted: Sequence[Any]) -> list[float]:
    """‖found - wanted‖ / ‖wanted‖ of each pair, in fp64."""
    return [
        float((one.double() - other.double()).norm() / other.double().norm())
        for one, other in zip(found, wanted, strict=True)
    ]


def line(what: str, precision: str, ours: dict[str, float], dense: Sequence[float]) -> dict[str, Any]:
    """Errors by name beside those of the dense form, and whether all are small enough; NaN is not."""
    right = all(error <= TIMES * other + TF32 for error, other in zip(ours.values(), dense, strict=True))
    return {
        "what": what,
        "precision": precision,
        "ours": ours,
        "dense": dict(zip(ours, dense, strict=True)),
        "right": right,
    }


if __name__ == "__main__":
    main()
