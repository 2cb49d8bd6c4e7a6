"""The targets that can be exported. Imports neither torch nor transformers, so that a pair is refused within a second."""

from __future__ import annotations

from lilicorr.runtime.errors import UserError

PROVEN = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "SmolLM3ForCausalLM", "MistralForCausalLM")
"""Architectures whose graph is compared with transformers' own forward in our tests."""


def check_architecture(name: str) -> None:
    """Refuse an architecture that is not PROVEN.

    Raises:
        UserError: names it and the reason.
    """
    if name not in PROVEN:
        raise UserError(
            f"target architecture `{name}` is not supported: its attention has not been proven to go through the "
            f"transformers attention interface with a plain K/V cache; supported are {', '.join(PROVEN)}"
        )
