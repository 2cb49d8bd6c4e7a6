"""A training run as one YAML file: what it trains on, the drafter's geometry, the objective, the schedule."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.train.config import DrafterConfig, default_target_layer_ids
from lilicorr.train.objective import Weights
from lilicorr.train.recipe_heads import KINDS, AnyHead, Head


@dataclass(frozen=True)
class Geometry:
    """The drafter; what is not here (width, vocabulary, rope, …) comes from the target."""

    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: list[int] | None = None  # None: the published rule
    draft_vocab_size: int | None = None  # None: the target's whole vocabulary


@dataclass(frozen=True)
class Recipe:
    """One run. Paths are relative to the working directory."""

    target: str
    responses: list[str]
    out: str
    drafter: Geometry
    head: AnyHead
    objective: Weights = dataclasses.field(default_factory=Weights)
    steps: int = 1000
    sequences_per_step: int = 4  # of all processes together; their gradients are accumulated one after the other
    anchors_per_sequence: int = 48
    max_length: int = 512
    learning_rate: float = 1e-3
    head_learning_rate: float | None = None  # of the head alone, where it is younger than its drafter; None: the same
    warmup: float = 0.04  # share of the steps
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    held_out: float = 0.03  # share of the sequences kept for development
    seed: int = 42
    bf16: bool = True  # bf16 compute under fp32 master weights
    save_every: int = 200
    threads: int | None = None
    logit_rows: int = 2048  # rows of vocabulary logits that exist at a time: bounds the memory of a step
    keep_states: int = 1  # unfinished states kept in `out`, the newest included
    tensorboard: bool = False
    keep_features: bool = True  # False computes them in every step, where they would not fit the disk
    features: str | None = None  # folder of the target's features, which runs can share; None: `out`/features
    warm_start: str | None = None  # checkpoint to begin with; one without this head gives the drafter alone
    head_only: bool = False  # train the head on the drafter as it is

    def _check(self, target: Any) -> None:
        """What only shows against the target. Raises UserError with every problem."""
        d, layers, vocab = self.drafter, target.num_hidden_layers, target.vocab_size
        kept = vocab if d.draft_vocab_size is None else d.draft_vocab_size
        problems = {
            f"`drafter.mask_token_id` {d.mask_token_id}: the target's embedding has rows 0 to {vocab - 1}": not (
                0 <= d.mask_token_id < vocab
            ),
            f"`drafter.target_layer_ids` {d.target_layer_ids}: the target has layers 0 to {layers - 1}": any(
                not 0 <= i < layers for i in d.target_layer_ids or ()
            ),
            f"`drafter.draft_vocab_size` {kept}: the target's vocabulary has {vocab}": not 0 < kept <= vocab,
            f"`drafter.block_size` {d.block_size}: expected at least 2, an anchor and one slot": d.block_size < 2,
            "`drafter.num_attention_heads` must be a multiple of `drafter.num_key_value_heads`": (
                d.num_key_value_heads < 1 or d.num_attention_heads % d.num_key_value_heads > 0
            ),
            **self.head.problems(kept),
        }
        wrong = [text for text, holds in problems.items() if holds]
        if wrong:
            raise UserError("the recipe does not fit its target:\n  " + "\n  ".join(wrong))

    def drafter_config(self, target: Any, sequences_vocab: list[int] | None) -> DrafterConfig:
        """The configuration of a new drafter for a loaded target (a transformers config).

        Raises:
            UserError: ids or sizes that do not fit the target (all at once).
        """
        rope = dict(target.rope_parameters)
        self._check(target)
        ids = self.drafter.target_layer_ids
        geometry = dataclasses.asdict(self.drafter) | {
            "target_layer_ids": tuple(ids)
            if ids is not None
            else default_target_layer_ids(self.drafter.num_hidden_layers, target.num_hidden_layers),
            "draft_vocab_size": None if sequences_vocab is None else len(sequences_vocab),
        }
        return DrafterConfig(
            **geometry,
            hidden_size=target.hidden_size,
            rms_norm_eps=target.rms_norm_eps,
            vocab_size=target.vocab_size,
            max_position_embeddings=target.max_position_embeddings,
            rope=rope,
            num_target_layers=target.num_hidden_layers,
            head=self.head.config(),
        )


def read_recipe(path: Path | str, overrides: typing.Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply `key.sub=value` overrides (values in YAML).

    Raises:
        UserError: unreadable YAML, or fields missing, unknown or of the wrong type (all at once).
    """
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        for override in overrides:
            key, _, value = override.partition("=")
            *parents, leaf = key.split(".")
            node = data
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = yaml.safe_load(value)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, TypeError) as error:
        raise UserError(f"recipe `{path}` cannot be read: {error}") from None
    recipe, problems = recipe_from_dict(data)
    if recipe and isinstance(recipe.head, Head) and recipe.head.enabled and not any(recipe.objective.head_weights):
        problems.append("`head.enabled` is true and every `objective.head_…` weight is 0: the head would stay random")
    if problems:
        raise UserError(f"recipe `{path}` is not valid:\n  " + "\n  ".join(problems))
    assert recipe is not None
    return recipe


def recipe_from_dict(data: Any) -> tuple[Recipe | None, list[str]]:
    """The recipe that a mapping describes, or None and everything that is wrong with it."""
    problems: list[str] = []
    recipe = _build(Recipe, data, "", problems)
    for name in ("steps", "sequences_per_step", "anchors_per_sequence", "save_every", "logit_rows", "keep_states"):
        if recipe and getattr(recipe, name) < 1:
            problems.append(f"`{name}` {getattr(recipe, name)}: expected at least 1")
    return recipe, problems


def _build(kind: Any, data: Any, prefix: str, problems: list[str]) -> Any:
    if not isinstance(data, dict):
        problems.append(f"`{prefix or '(top level)'}`: expected a mapping, found {type(data).__name__}")
        return None
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in data.items():
        if name not in hints:
            problems.append(f"`{prefix}{name}` is unknown")
        elif hints[name] == AnyHead:
            values[name] = _build_head(value, problems)
        elif dataclasses.is_dataclass(hints[name]):
            values[name] = _build(hints[name], value, f"{prefix}{name}.", problems)
        else:
            values[name] = _typed(hints[name], value, prefix + name, problems)
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in data:
            problems.append(f"`{prefix}{field.name}` is missing")
    return None if problems else kind(**values)


def _build_head(data: Any, problems: list[str]) -> Any:
    kind = data.get("kind", "lilicorr") if isinstance(data, dict) else "lilicorr"
    if kind not in KINDS:
        problems.append(f"`head.kind`: expected one of {[*KINDS]}, found {kind!r}")
        return None
    return _build(KINDS[kind], data, "head.", problems)


def _typed(hint: Any, value: Any, name: str, problems: list[str]) -> Any:
    options = typing.get_args(hint) if typing.get_origin(hint) not in (list, None) else (hint,)
    for option in options:
        plain = typing.get_origin(option) or option
        if plain is float and isinstance(value, (int, str)) and not isinstance(value, bool):
            with contextlib.suppress(ValueError):
                return float(value)  # YAML 1.1 reads 1e-3, without a point, as text
        elif plain is list and isinstance(value, list):
            return [_typed(typing.get_args(option)[0], item, f"{name}[{i}]", problems) for i, item in enumerate(value)]
        elif isinstance(value, plain) and not (isinstance(value, bool) and plain is not bool):
            return value
    problems.append(f"`{name}`: expected {hint}, found {value!r}")
    return None
