"""The head's part of config.json: which head a checkpoint has, its fields, and how they are written.

Both stacks' field names are read. Which head it is follows from `architectures` and `dflash_config.projector_type`: Domino and
DSpark are also published as a plain `DFlashDraftModel` whose projector type says so.
"""

from __future__ import annotations

from typing import Any, Protocol

from lilicorr.train.config import (
    DFLASH,
    DOMINO,
    DSPARK,
    LILICORR,
    MARKOV_TYPES,
    AnyHeadConfig,
    DominoConfig,
    DSparkConfig,
    HeadConfig,
)

ARCHITECTURES = {DFLASH: "dflash", LILICORR: "lilicorr", DOMINO: "domino", DSPARK: "dspark"}
_WRITTEN = {kind: architecture for architecture, kind in ARCHITECTURES.items()}


class Fields(Protocol):
    """Typed access to a config.json that collects problems (`config_json`)."""

    problems: list[str]

    def get(self, key: str, kind: type, default: Any = ...) -> Any: ...


def read_head(r: Fields, architecture: str) -> AnyHeadConfig | None:
    """The head of an architecture of ARCHITECTURES, None for plain DFlash; what is wrong goes to `r.problems`."""
    kind = ARCHITECTURES[architecture]
    projector = r.get("dflash_config.projector_type", str, kind)
    if kind == "dflash" and projector in ("domino", "dspark"):
        kind = projector
    if projector != kind:
        r.problems.append(f"`dflash_config.projector_type` = {projector!r} is not supported, expected {kind!r}")
    if kind == "lilicorr":
        return _lilicorr(r)
    if kind == "domino":
        return _domino(r)
    return _dspark(r) if kind == "dspark" else None


def head_to_dict(head: AnyHeadConfig | None) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """(architecture, fields of `dflash_config`, fields of the top level) as they are written."""
    if head is None:
        return DFLASH, {}, {}
    fields: dict[str, Any] = {"projector_type": head.kind}
    top: dict[str, Any] = {}
    if isinstance(head, HeadConfig):
        fields |= {"lilicorr_enabled": True, **{f"lilicorr_{name}": value for name, value in vars(head).items()}}
    elif isinstance(head, DominoConfig):
        fields |= vars(head)
        top = {"emb_dim": head.emb_dim}
    else:
        fields |= {
            "markov_rank": head.markov_rank,
            "markov_head_type": head.markov_head_type,
            "enable_confidence_head": head.confidence,
            "confidence_head_with_markov": head.confidence_with_markov,
            "shift_label": head.shift_label,
        }
    return _WRITTEN[head.kind], fields, top


def _lilicorr(r: Fields) -> HeadConfig:
    prefix = "dflash_config.lilicorr_"
    width = r.get(prefix + "hidden_size", int)
    return HeadConfig(
        candidate_topk=r.get(prefix + "candidate_topk", int),
        hidden_size=r.get("hidden_size", int) if width == 0 else width,  # 0 means the model's own width
        num_layers=r.get(prefix + "num_layers", int),
        num_heads=r.get(prefix + "num_heads", int),
        mlp_ratio=r.get(prefix + "mlp_ratio", float),
        factor_dim=r.get(prefix + "factor_dim", int),
        vector_eps=r.get(prefix + "vector_eps", float),
        logit_scale=r.get(prefix + "logit_scale", float),
    )


def _domino(r: Fields) -> DominoConfig:
    r.get("emb_dim", int, None)  # repeated at the top level
    return DominoConfig(
        gru_hidden_dim=r.get("dflash_config.gru_hidden_dim", int),
        emb_dim=r.get("dflash_config.emb_dim", int),
        pure_draft_prefix_len=r.get("dflash_config.pure_draft_prefix_len", int),
        shift_label=r.get("dflash_config.shift_label", bool),
    )


def _dspark(r: Fields) -> DSparkConfig:
    kind = r.get("dflash_config.markov_head_type", str)
    if kind is not None and kind not in MARKOV_TYPES:
        r.problems.append(f"`dflash_config.markov_head_type` = {kind!r}, expected one of {MARKOV_TYPES}")
    rank = r.get("dflash_config.markov_rank", int)
    if rank is not None and rank < 1:
        r.problems.append(f"`dflash_config.markov_rank` = {rank}: a checkpoint without Markov head is not supported")
    modelopt = r.get("dflash_config.use_confidence_head", bool, None)
    specforge = r.get("dflash_config.enable_confidence_head", bool, None)
    if modelopt is None and specforge is None:
        r.problems.append("`dflash_config.enable_confidence_head` (or `use_confidence_head`) is missing")
    # ModelOpt's confidence always reads the previous token; SpecForge's says whether it does.
    with_markov = r.get("dflash_config.confidence_head_with_markov", bool, modelopt is not None)
    shifted = r.get("dflash_config.shift_label", bool, True)  # SpecForge has no such field
    return DSparkConfig(rank, kind, bool(modelopt or specforge), with_markov, shifted)
