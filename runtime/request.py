"""Whether the loop can serve a request: how many prompts, of which tokens, how long. Knows limits, no engine."""

from __future__ import annotations

from collections.abc import Sequence

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Limits


def check_request(prompts: Sequence[Sequence[int]], max_new_tokens: int, limits: Limits, vocab_size: int) -> None:
    """Refuse what cannot be answered.

    Args:
        prompts: Token ids per lane.
        max_new_tokens: Most tokens per answer.
        limits: Of the bundle.
        vocab_size: Rows of the target's embedding.

    Raises:
        UserError: too many prompts, no token to emit, an empty prompt, one with an unknown token or one that leaves no room.
    """
    if not 1 <= len(prompts) <= limits.max_batch:
        raise UserError(
            f"{len(prompts)} prompts in one batch, the bundle serves 1 to {limits.max_batch}",
            hint=f"lilicorr-export build … --max-batch {max(1, len(prompts))}",
        )
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens}, expected at least 1", hint="--max-new-tokens 256")
    for prompt in prompts:
        if not prompt:
            raise UserError("the prompt is empty", hint="give at least one word")
        if max(prompt) >= vocab_size:  # some tokenizers know more tokens than their model has rows
            raise UserError(
                f"the prompt holds token {max(prompt)}, the target has 0 to {vocab_size - 1}",
                hint="leave out the special token the target was not trained with",
            )
        if len(prompt) + 1 > limits.max_context:
            raise UserError(
                f"the prompt has {len(prompt)} tokens and an answer needs 1 more, the bundle's context is {limits.max_context}",
                hint=f"shorten the prompt, or lilicorr-export build … --max-context {len(prompt) + 256}",
            )


def check_block(block: int, served: int) -> int:
    """`block` itself, if a bundle that serves blocks of `served` tokens can verify as many.

    Raises:
        UserError: it cannot.
    """
    if not 1 <= block <= served:
        longer = f", or lilicorr-export build … --block-size {block} where the drafter was trained for it"
        raise UserError(
            f"block size {block}, the bundle serves 1 to {served}",
            hint=f"--block-size {served}{longer if block > served else ''}",
        )
    return block
