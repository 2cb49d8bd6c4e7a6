"""The pair check: do this drafter and this target belong together? Seconds, no weights, all mismatches at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lilicorr.export.architectures import check_architecture
from lilicorr.export.source import DrafterFolder, TargetFolder, read_drafter_folder, read_target
from lilicorr.runtime.errors import UserError
from lilicorr.train.tokenizer_map import map_sha256, read_map


@dataclass(frozen=True)
class Pair:
    """A target and a drafter that fit, what is served of them, and what is odd but not wrong."""

    target: TargetFolder
    drafter: DrafterFolder
    block_size: int  # served: anchor + slots
    warnings: tuple[str, ...]

    @property
    def max_context(self) -> int:
        """Positions both models were made for."""
        return min(self.target.max_context, self.drafter.config.max_position_embeddings)


def check_pair(
    target_dir: Path, drafter_dir: Path, *, block_size: int | None = None, max_context: int | None = None
) -> Pair:
    """Read both folders and compare everything that must agree.

    Args:
        block_size: The block to serve, None for the trained one.
        max_context: Tokens to serve, checked against the target's own limit.

    Raises:
        UserError: every mismatch and every unreadable file, in one message.
    """
    problems: list[str] = []
    target = drafter = None
    try:
        target = read_target(target_dir)
    except UserError as error:
        problems.append(str(error))
    try:
        drafter = read_drafter_folder(drafter_dir)
    except UserError as error:
        problems.append(str(error))
    if target is not None:
        problems += _target_problems(target)
    if drafter is not None:
        problems += _drafter_problems(drafter, block_size)
    warnings: list[str] = []
    if target is not None and drafter is not None:
        problems += _geometry_problems(target, drafter)
        problems += _context_problems(target, drafter, max_context)
        try:
            tokenizer_problems, warnings = _compare_tokenizers(target, drafter)
            problems += tokenizer_problems
        except UserError as error:
            problems.append(str(error))
    if problems or target is None or drafter is None:
        listed = "\n".join("- " + problem.replace("\n", "\n  ") for problem in problems)
        only_options = all(problem.startswith("--") for problem in problems)
        raise UserError(
            f"drafter `{drafter_dir}` and target `{target_dir}` cannot be exported together:\n{listed}",
            hint="give the option a value in its range"
            if only_options
            else "use the target this drafter was trained for, or train one: lilicorr-train fit --help",
        )
    if target.chat_template is None:
        warnings.append("the target has no chat template: prompts are served as plain text")
    return Pair(target, drafter, block_size or drafter.config.block_size, tuple(warnings))


def _target_problems(target: TargetFolder) -> Iterator[str]:
    try:
        check_architecture(target.architecture)
    except UserError as error:
        yield error.what
    name = next((key for key in target.headers if key.endswith("embed_tokens.weight")), None)
    expected = (target.vocab_size, target.hidden_size)
    if name is None:
        yield "the target's files hold no tensor `embed_tokens.weight`"
    elif target.headers[name].shape != expected:
        yield f"target tensor `{name}`: found {target.headers[name].shape}, its config.json says {expected}"


def _drafter_problems(drafter: DrafterFolder, block_size: int | None) -> Iterator[str]:
    config = drafter.config
    if config.head is not None and config.lilicorr is None:
        yield (
            f"the drafter's head is `{config.head.kind}`, whose tokens depend on each other one by one: "
            "only plain DFlash drafters and LiLiCorr heads can be exported"
        )
    if config.block_size < 2:
        yield f"`block_size` {config.block_size}: a block is an anchor and at least one slot"
    if block_size is not None and not 2 <= block_size <= config.block_size:
        yield f"--block-size {block_size}: expected 2 to {config.block_size}, the size the drafter was trained with"
    if not 1 <= config.candidate_topk <= config.output_size:
        yield f"`lilicorr_candidate_topk` {config.candidate_topk}: expected 1 to {config.output_size}, the drafter's vocabulary"
    if config.draft_vocab_size is not None and "d2t" not in drafter.headers:
        yield f"`draft_vocab_size` is {config.draft_vocab_size} but the files hold no tensor `d2t`"
    if config.draft_vocab_size is None and "d2t" in drafter.headers:
        yield "the files hold `d2t` but `draft_vocab_size` is missing in config.json"
    fused = (config.hidden_size, len(config.target_layer_ids) * config.hidden_size)
    found = drafter.headers.get("fc.weight")
    if found is None:
        yield "the drafter's files hold no tensor `fc.weight`"
    elif found.shape != fused:
        yield f"drafter tensor `fc.weight`: found {found.shape}, config.json says {fused}"


def _geometry_problems(target: TargetFolder, drafter: DrafterFolder) -> Iterator[str]:
    config = drafter.config
    for key, drafters, targets in (
        ("hidden_size", config.hidden_size, target.hidden_size),
        ("vocab_size", config.vocab_size, target.vocab_size),
        ("num_target_layers", config.num_target_layers, target.layers),
        ("rope_theta", float(config.rope["rope_theta"]), target.rope_theta),
    ):
        if drafters != targets:
            yield f"`{key}`: the drafter expects {drafters:g}, the target has {targets:g}"
    outside = [i for i in config.target_layer_ids if not 0 <= i < target.layers]
    if outside:
        yield f"`target_layer_ids` {outside}: the target has layers 0 to {target.layers - 1}"
    if not 0 <= config.mask_token_id < target.vocab_size:
        yield f"`mask_token_id` {config.mask_token_id}: the target's embedding has rows 0 to {target.vocab_size - 1}"


def _context_problems(target: TargetFolder, drafter: DrafterFolder, max_context: int | None) -> Iterator[str]:
    for role, limit in (("target", target.max_context), ("drafter", drafter.config.max_position_embeddings)):
        if max_context is not None and max_context > limit:
            yield f"--max-context {max_context} exceeds the {role}'s max_position_embeddings {limit}"


def _compare_tokenizers(target: TargetFolder, drafter: DrafterFolder) -> tuple[list[str], list[str]]:
    """Return (problems, warnings) of the token maps and of the mask token."""
    problems, warnings = [], []
    ours = read_map(target.tokenizer)
    shipped = drafter.path / "tokenizer.json"
    provenance = drafter.config.extra.get("lilicorr_provenance")
    recorded = provenance.get("tokenizer_sha256") if isinstance(provenance, dict) else None
    if shipped.is_file():
        theirs = read_map(shipped)
        different = sorted(
            token for token in ours.ids.keys() | theirs.ids.keys() if ours.ids.get(token) != theirs.ids.get(token)
        )
        if different:
            first = different[0]
            problems.append(
                f"tokenizers differ in {len(different)} tokens, first {first!r}: "
                f"id {theirs.ids.get(first)} for the drafter, {ours.ids.get(first)} for the target"
            )
    elif recorded is None:
        warnings.append("the drafter records no tokenizer: token maps were not compared")
    elif recorded != map_sha256(ours):
        problems.append(
            f"the drafter was trained with another tokenizer (map {recorded[:12]}, found {map_sha256(ours)[:12]})"
        )
    mask = drafter.config.mask_token_id
    name = next((token for token, i in ours.ids.items() if i == mask), None)
    if name is not None and mask not in ours.special:
        warnings.append(f"mask token {mask} is the ordinary text token {name!r} of the target")
    return problems, warnings
