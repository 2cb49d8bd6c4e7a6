"""The drafter's configuration as frozen dataclasses; `config_json` reads and writes it.

The published fields (arXiv 2608.20530 and DFlash exports), plus `draft_vocab_size` for a reduced vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from lilicorr.runtime.errors import UserError

DFLASH = "DFlashDraftModel"
LILICORR = "LiLiCorrDraftModel"
DOMINO = "DominoDraftModel"
DSPARK = "DSparkDraftModel"
MARKOV_TYPES = ("vanilla", "gated", "rnn")
ROPE_TYPES = ("default", "linear", "yarn", "llama3")  # scaled positions that do not depend on the text's length


@dataclass(frozen=True)
class HeadConfig:
    """The LiLiCorr head; attribute names are the checkpoint's without the `lilicorr_` prefix."""

    kind: ClassVar[str] = "lilicorr"
    first_row: ClassVar[int] = 1  # slot s is read from block row s + first_row
    drafts_from_last_row: ClassVar[bool] = True
    candidate_topk: int
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_ratio: float
    factor_dim: int
    vector_eps: float
    logit_scale: float


@dataclass(frozen=True)
class DominoConfig:
    """The Domino head (arXiv 2605.29707).

    With shifted labels, as published, row j predicts anchor + 1 + j and the last row is trained, never drafted; without, rows
    and slots are DFlash's.
    """

    kind: ClassVar[str] = "domino"
    candidate_topk: ClassVar[int] = 1

    gru_hidden_dim: int
    emb_dim: int
    pure_draft_prefix_len: int
    shift_label: bool = True

    @property
    def first_row(self) -> int:
        return 0 if self.shift_label else 1

    @property
    def drafts_from_last_row(self) -> bool:
        return not self.shift_label


@dataclass(frozen=True)
class DSparkConfig:
    """The DSpark head (arXiv 2607.05147).

    With shifted labels, as published, the anchor's row is a slot too and B rows make B drafts; without, rows and slots are those
    of DFlash.
    """

    kind: ClassVar[str] = "dspark"
    drafts_from_last_row: ClassVar[bool] = True
    candidate_topk: ClassVar[int] = 1

    markov_rank: int
    markov_head_type: str  # one of MARKOV_TYPES
    confidence: bool
    confidence_with_markov: bool  # the confidence reads the previous token's embedding too
    shift_label: bool = True

    @property
    def first_row(self) -> int:
        return 0 if self.shift_label else 1


AnyHeadConfig = HeadConfig | DominoConfig | DSparkConfig


@dataclass(frozen=True)
class DrafterConfig:
    """Geometry of the drafter. Widths in channels, ids 0-based (layer l's *output* is captured)."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    vocab_size: int
    max_position_embeddings: int
    rope: dict[str, Any]  # rope_theta, rope_type and, if scaled, the scaling fields
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    causal: bool = False
    attention_bias: bool = False
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    conv_kernel_size: int | None = None
    conv_group_size: int | None = None
    draft_vocab_size: int | None = None
    has_own_lm_head: bool = False
    initializer_range: float = 0.02
    head: AnyHeadConfig | None = None
    extra: dict[str, Any] = field(default_factory=dict)  # top-level keys we carry through unread

    @property
    def candidate_topk(self) -> int:
        """Candidates per slot; a drafter without head proposes its single best."""
        return self.head.candidate_topk if self.head else 1

    @property
    def lilicorr(self) -> HeadConfig | None:
        """The head, when it is LiLiCorr's: the only one that is exported."""
        return self.head if isinstance(self.head, HeadConfig) else None

    @property
    def first_row(self) -> int:
        """Block row that slot 0 is read from: 1 (the first mask) or, with heads that draft from the anchor's row, 0."""
        return self.head.first_row if self.head else 1

    @property
    def trained_slots(self) -> int:
        """Rows of a block that predict a token in training."""
        return self.block_size - self.first_row

    @property
    def slots(self) -> int:
        """Most drafts of one round: B-1, or B where the anchor's row drafts and so does the last."""
        last_row = self.head.drafts_from_last_row if self.head else True
        return self.trained_slots if last_row else self.trained_slots - 1

    def rows(self, slots: int) -> int:
        """Block rows (anchor included) that make `slots` drafts."""
        return slots + self.block_size - self.slots

    @property
    def output_size(self) -> int:
        """Rows of the vocabulary product."""
        return self.draft_vocab_size or self.vocab_size

    def window(self, layer: int) -> int | None:
        """Sliding window of `layer`, None for full attention."""
        sliding = bool(self.layer_types) and self.layer_types[layer] == "sliding_attention"
        return self.sliding_window if sliding else None


def default_target_layer_ids(num_layers: int, num_target_layers: int) -> tuple[int, ...]:
    """The published rule: evenly from layer 1 to T-3, rounded half to even; the middle layer for a one-layer drafter.

    Raises:
        UserError: a target with fewer layers than the drafter.
    """
    if num_target_layers < num_layers:
        raise UserError(f"the target has {num_target_layers} layers, fewer than the drafter's {num_layers}")
    if num_layers == 1:
        return (num_target_layers // 2,)
    start = min(1, num_target_layers - 1)
    end = max(start, num_target_layers - 3)
    return tuple(round(start + i * (end - start) / (num_layers - 1)) for i in range(num_layers))
