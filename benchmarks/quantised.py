"""What integer weights cost a target: its logits and the drafter's acceptance length, against the target of an fp16 bundle.

    python benchmarks/quantised.py --target build/smollm2-135m-hf --drafter checkpoints/smollm2-135m

Weights, scales and the drafter are rounded to fp16, as an fp16 bundle holds them; the row "fp32" alone keeps the target's weights.
PyTorch then computes in fp32, so that nothing but the weights differs: neither fp16's own arithmetic nor ONNX Runtime's rounding of
activations is in these numbers. Logits are compared on the fp16 target's greedy answers (teacher forced, answers only). The
acceptance length of a row is measured on its own answers, and, to leave out what another text makes of it, with the row's features
on the fp16 target's answers. The row "lm_head" also quantises the product with the vocabulary, which the export leaves a float. The
last line of stdout is one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import click
import numpy as np
import torch

from lilicorr.export.block_weights import round_to_nearest
from lilicorr.export.quantised_config import linear_widths
from lilicorr.export.quantised_target import load_with_integers
from lilicorr.export.source import read_target
from lilicorr.export.tables import table
from lilicorr.export.tensor_metrics import agree, merge_agreement
from lilicorr.runtime.manifest import Quantisation
from lilicorr.runtime.prompts import read_prompts
from lilicorr.runtime.tokenizer import ChatTokenizer
from lilicorr.train.checkpoint import read_drafter
from lilicorr.train.generate import greedy_batch
from lilicorr.train.replay import acceptance_on_continuation
from lilicorr.train.target import load_target

PROMPTS = Path(__file__).parents[1] / "examples" / "prompts.jsonl"
VARIANTS = ("fp32", "int8-128", "int8-64", "int8-32", "int4-128", "int4-64", "int4-32", "int8-64-lm_head")


@click.command()
@click.option("--target", "target_dir", type=click.Path(path_type=Path), required=True)
@click.option("--drafter", "drafter_dir", type=click.Path(path_type=Path), required=True)
@click.option("--prompts", type=click.Path(path_type=Path), default=PROMPTS)
@click.option("--limit", type=int, default=None, help="Use the first prompts only.")
@click.option("--max-new-tokens", type=int, default=64, show_default=True)
@click.option(
    "--variants", default=",".join(VARIANTS), show_default=True, help="fp32, or BITS-BLOCK, with -lm_head at will."
)
def main(
    target_dir: Path, drafter_dir: Path, prompts: Path, limit: int | None, max_new_tokens: int, variants: str
) -> None:
    folder, drafter = read_target(target_dir), in_fp16(read_drafter(drafter_dir).float())
    tokenizer = ChatTokenizer(target_dir, folder.bos_token, folder.eos_token)
    encoded = [tokenizer.encode(tokenizer.as_prompt(prompt.conversation())) for prompt in read_prompts(prompts, limit)]
    stops = frozenset(folder.stop_token_ids)

    def answers(model: Any) -> list[list[int]]:
        return greedy_batch(model, encoded, max_new_tokens=max_new_tokens, stop_ids=stops)

    def acceptance(model: Any, texts: Sequence[Sequence[int]]) -> float:
        replays = [
            acceptance_on_continuation(model, drafter, ids, text) for ids, text in zip(encoded, texts, strict=True)
        ]
        return mean(replay.acceptance_length for replay in replays if replay.rounds)

    model = in_fp16(load_target(target_dir))
    texts = answers(model)
    reference = [answer_logits(model, ids, text) for ids, text in zip(encoded, texts, strict=True)]
    found = [{"weights": "fp16", "acceptance_length": acceptance(model, texts)}]
    for variant in variants.split(","):
        model = variant_of(folder, variant)
        if model is None:
            continue
        own = answers(model)
        agreement = merge_agreement(
            [
                agree(wanted, answer_logits(model, ids, text))
                for wanted, ids, text in zip(reference, encoded, texts, strict=True)
            ]
        )
        found.append(
            {
                "weights": variant,
                "acceptance_length": acceptance(model, own),
                "on_fp16_answers": acceptance(model, texts),
                "mean_kl": agreement.mean_kl,
                "max_kl": agreement.max_kl,
                "same_argmax": agreement.argmax,
                "same_answers": mean(ours == theirs for ours, theirs in zip(own, texts, strict=True)),
            }
        )
        click.echo(json.dumps(found[-1]), err=True)
    columns = list(found[-1])
    click.echo(table(columns, [[_text(row.get(column, "")) for column in columns] for row in found]))
    tokens = sum(map(len, texts))
    click.echo(
        json.dumps({"prompts": len(encoded), "max_new_tokens": max_new_tokens, "tokens": tokens, "variants": found})
    )


def variant_of(folder: Any, variant: str) -> Any:
    """The model with its weights rounded as `variant` says; None where a width is no multiple of its block."""
    if variant == "fp32":
        return load_target(folder.path)
    kind, block, *more = variant.split("-")
    bits, size = int(kind.removeprefix("int")), int(block)
    if any(width % size for width in linear_widths(folder.headers).values()):
        click.echo(f"{variant}: a width is no multiple of {size}, left out", err=True)
        return None
    model = in_fp16(load_with_integers(folder, Quantisation(bits, size, ""), torch.float16)[0])
    if more:
        table_rows = model.get_output_embeddings().weight
        rounded = round_to_nearest(table_rows, bits, size, torch.float16).dequantised(torch.float16).float()
        model.get_output_embeddings().weight = torch.nn.Parameter(rounded, requires_grad=False)  # unties it
    return model


@torch.no_grad()
def in_fp16(module: Any) -> Any:
    """`module` with its parameters rounded to fp16; buffers, such as the frequencies of positions, stay."""
    for parameter in module.parameters():
        parameter.copy_(parameter.half())
    return module


@torch.inference_mode()
def answer_logits(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
    """(tokens of the answer, V) the logits that chose each token."""
    logits = model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return np.asarray(logits.float().numpy())


def _text(value: str | float) -> str:
    return f"{value:.4g}" if isinstance(value, float | int) else value


if __name__ == "__main__":
    main()
