"""The frozen target: loading it, its features, and the two tables the drafter borrows (input embedding, lm_head)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lilicorr.runtime.errors import UserError


def load_target(folder: Path | str, dtype: torch.dtype = torch.float32) -> Any:
    """A transformers causal LM in eval mode without gradients.

    Raises:
        UserError: not a model folder, an architecture transformers does not know, or weights missing or of the wrong shape
            (transformers would fill those with random numbers).
    """
    from transformers import AutoModelForCausalLM

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"`{folder}` is not a Hugging Face model folder: it has no `config.json`",
            hint=f"hf download ORGANISATION/MODEL --local-dir {folder} (SmolLM2-135M-Instruct: make target)",
        )
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (ValueError, OSError) as error:
        raise UserError(
            f"`{folder}` cannot be loaded as a language model: {error}", hint="copy the model's whole folder again"
        ) from error
    problems = [f"missing: {name}" for name in sorted(info["missing_keys"])]
    problems += [
        f"shape: {name} is {list(found)}, expected {list(expected)}"
        for name, found, expected in sorted(info["mismatched_keys"])
    ]
    if problems:
        raise UserError(
            f"the weights in `{folder}` do not fit its config.json:\n  " + "\n  ".join(problems),
            hint="copy the model's whole folder again",
        )
    return model.eval().requires_grad_(False)


def target_features(model: Any, ids: Tensor, layer_ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One forward over whole texts.

    Args:
        ids: (N, T) token ids.
        layer_ids: captured decoder layers, 0-based; transformers' hidden_states[l + 1] is the output of layer l.

    Returns:
        features (N, T, F*H) of the captured layers, and the final normed hidden rows (N, T, H) the lm_head reads.
    """
    with torch.no_grad():
        out = model.model(input_ids=ids, output_hidden_states=True, use_cache=False)
    return torch.cat([out.hidden_states[layer + 1] for layer in layer_ids], dim=-1), out.last_hidden_state


def embedding_table(model: Any) -> Tensor:
    """(V, H) input embedding."""
    return model.get_input_embeddings().weight


def lm_head_table(model: Any) -> Tensor:
    """(V, H) output embedding; the same tensor as the input's when tied."""
    return model.get_output_embeddings().weight


def stop_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer: those of the generation config and the tokenizer's end-of-sequence token."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(id for id in [*ids, tokenizer.eos_token_id] if id is not None)
