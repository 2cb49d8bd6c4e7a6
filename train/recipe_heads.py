"""The `head` section of a recipe: one dataclass per kind of head, chosen by `kind` (default lilicorr)."""

from __future__ import annotations

from dataclasses import dataclass

from lilicorr.train.config import MARKOV_TYPES, AnyHeadConfig, DominoConfig, DSparkConfig, HeadConfig


@dataclass(frozen=True)
class Head:
    """The LiLiCorr head; `enabled: false` trains plain DFlash."""

    enabled: bool
    candidate_topk: int
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_ratio: float
    factor_dim: int
    vector_eps: float
    logit_scale: float
    kind: str = "lilicorr"

    def config(self) -> AnyHeadConfig | None:
        fields = {name: value for name, value in vars(self).items() if name not in ("enabled", "kind")}
        return HeadConfig(**fields) if self.enabled else None

    def problems(self, draft_vocabulary: int) -> dict[str, bool]:
        """text → whether it applies."""
        return {
            "`head.hidden_size` must be a multiple of `head.num_heads`": self.enabled
            and (self.num_heads < 1 or self.hidden_size % self.num_heads > 0),
            f"`head.candidate_topk` {self.candidate_topk}: expected 1 to {draft_vocabulary}, the draft vocabulary": (
                self.enabled and not 1 <= self.candidate_topk <= draft_vocabulary
            ),
        }


@dataclass(frozen=True)
class NoHead:
    """Plain DFlash."""

    kind: str

    def config(self) -> AnyHeadConfig | None:
        return None

    def problems(self, draft_vocabulary: int) -> dict[str, bool]:
        return {}


@dataclass(frozen=True)
class Domino:
    kind: str
    gru_hidden_dim: int
    emb_dim: int
    pure_draft_prefix_len: int = 1
    shift_label: bool = True

    def config(self) -> AnyHeadConfig | None:
        return DominoConfig(self.gru_hidden_dim, self.emb_dim, self.pure_draft_prefix_len, self.shift_label)

    def problems(self, draft_vocabulary: int) -> dict[str, bool]:
        return {
            "`head.gru_hidden_dim` and `head.emb_dim` must be positive": min(self.gru_hidden_dim, self.emb_dim) < 1,
            "`head.pure_draft_prefix_len` must not be negative": self.pure_draft_prefix_len < 0,
        }


@dataclass(frozen=True)
class DSpark:
    kind: str
    markov_rank: int
    markov_head_type: str
    confidence: bool = True
    confidence_with_markov: bool = True
    shift_label: bool = True

    def config(self) -> AnyHeadConfig | None:
        return DSparkConfig(
            self.markov_rank,
            self.markov_head_type,
            self.confidence,
            self.confidence_with_markov,
            self.shift_label,
        )

    def problems(self, draft_vocabulary: int) -> dict[str, bool]:
        return {
            f"`head.markov_rank` {self.markov_rank}: expected at least 1": self.markov_rank < 1,
            f"`head.markov_head_type` {self.markov_head_type!r}: expected one of {MARKOV_TYPES}": (
                self.markov_head_type not in MARKOV_TYPES
            ),
        }


AnyHead = Head | NoHead | Domino | DSpark
KINDS: dict[str, type] = {"lilicorr": Head, "none": NoHead, "domino": Domino, "dspark": DSpark}
