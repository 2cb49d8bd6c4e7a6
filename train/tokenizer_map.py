"""The token-to-id map of a tokenizer.json: what must be equal for two models to speak of the same tokens."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from lilicorr.runtime.errors import UserError


@dataclass(frozen=True)
class TokenMap:
    """Every token with its id, and the ids that never stand for ordinary text."""

    ids: dict[str, int]
    special: frozenset[int]


def read_map(path: Path) -> TokenMap:
    """Read the map of `path`, added tokens included.

    Raises:
        UserError: the file is no tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises plain Exception
        raise UserError(f"`{path}` cannot be read as a tokenizer: {error}", hint="download it again") from None
    special = frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    return TokenMap(tokenizer.get_vocab(with_added_tokens=True), special)


def map_sha256(tokens: TokenMap) -> str:
    """The hash that a checkpoint records as `lilicorr_provenance.tokenizer_sha256`: of the (id, token) pairs in id order."""
    pairs = sorted((i, token) for token, i in tokens.ids.items())
    return hashlib.sha256(json.dumps(pairs, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()
