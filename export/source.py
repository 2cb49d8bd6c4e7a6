"""The two Hugging Face folders an export starts from, read without a weight: configs, tokenizer files, tensor headers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilicorr.export.headers import TensorHeader, read_headers
from lilicorr.export.quantised_config import Stored, stored_integers
from lilicorr.runtime.errors import UserError
from lilicorr.train.config import DrafterConfig
from lilicorr.train.config_json import config_from_dict
from lilicorr.train.folder import read_json
from lilicorr.train.tokenizer_map import read_map


@dataclass(frozen=True)
class TargetFolder:
    """A target: its geometry, and the files beside the weights that a bundle needs."""

    path: Path
    architecture: str
    hidden_size: int
    vocab_size: int
    layers: int
    kv_heads: int
    head_dim: int
    max_context: int
    rope_theta: float
    tied: bool  # what the config says; the export compares the tensors
    stop_token_ids: tuple[int, ...]
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None
    headers: dict[str, TensorHeader]
    stored: Stored | None  # how its weights are packed, where they are integers

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"


@dataclass(frozen=True)
class DrafterFolder:
    """A drafter checkpoint: its configuration and tensor headers (names without a leading `model.`)."""

    path: Path
    config: DrafterConfig
    headers: dict[str, TensorHeader]


def read_target(folder: Path) -> TargetFolder:
    """Read a target folder.

    Raises:
        UserError: not a folder, files missing or damaged, or fields of config.json missing (all listed at once); a pre-quantised
            format that cannot be read.
    """
    config = _config(folder, "target")
    stored = stored_integers(config, str(folder / "config.json"))
    problems = [f"`{folder}` has no `tokenizer.json`"] if not (folder / "tokenizer.json").is_file() else []
    headers: dict[str, TensorHeader] = {}
    try:
        headers = read_headers(folder)
    except UserError as error:
        problems.append(error.what)
    rope = config.get("rope_parameters")
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    theta = config.get("rope_theta") if theta is None else theta
    numbers = config | {"rope_theta": theta}
    problems += [f"`{folder / 'config.json'}`: {problem}" for problem in _number_problems(numbers)]
    if problems:
        raise UserError("\n".join(problems), hint=f"download the target again into `{folder}`")
    settings = _json(folder / "tokenizer_config.json")
    heads = config["num_attention_heads"]
    eos = _token(settings.get("eos_token"))
    return TargetFolder(
        path=folder,
        architecture=next(iter(_listed(config.get("architectures"))), "unknown"),
        hidden_size=config["hidden_size"],
        vocab_size=config["vocab_size"],
        layers=config["num_hidden_layers"],
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        max_context=config["max_position_embeddings"],
        rope_theta=float(numbers["rope_theta"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        stop_token_ids=_stop_ids(folder, config, eos),
        bos_token=_token(settings.get("bos_token")),
        eos_token=eos,
        chat_template=_chat_template(folder, settings),
        headers=headers,
        stored=stored,
    )


def read_drafter_folder(folder: Path) -> DrafterFolder:
    """Read a drafter folder.

    Raises:
        UserError: not a folder, files missing or damaged, or an unusable configuration (all listed at once).
    """
    config = _config(folder, "drafter")
    problems: list[str] = []
    parsed, headers = None, {}
    try:
        parsed = config_from_dict(config, str(folder / "config.json"))
    except UserError as error:
        problems.append(error.what)
    try:
        headers = {name.removeprefix("model."): header for name, header in read_headers(folder).items()}
    except UserError as error:
        problems.append(error.what)
    if parsed is None or problems:
        raise UserError("\n".join(problems))
    return DrafterFolder(folder, parsed, headers)


def _config(folder: Path, role: str) -> dict[str, Any]:
    if not folder.is_dir():
        raise UserError(
            f"the {role} `{folder}` is not a folder; lilicorr reads local Hugging Face folders only",
            hint=f"hf download {folder} --local-dir DIR, then --{role} DIR",
        )
    if not (folder / "config.json").is_file():
        raise UserError(
            f"the {role} `{folder}` has no `config.json`: not a Hugging Face folder",
            hint=f"--{role} DIR with the folder that holds `config.json` and the safetensors files",
        )
    return _json(folder / "config.json")


def _json(path: Path) -> dict[str, Any]:
    """The object in `path`; {} when there is no such file."""
    return read_json(path) if path.is_file() else {}


def _number_problems(config: dict[str, Any]) -> list[str]:
    """What is missing or no positive number among the fields of config.json that the export reads."""
    required = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    optional = tuple(key for key in ("num_key_value_heads", "head_dim") if config.get(key) is not None)
    kinds: dict[str, tuple[type, ...]] = dict.fromkeys(required + optional, (int,)) | {"rope_theta": (int, float)}
    problems = []
    for key, kind in kinds.items():
        value = config.get(key)
        if value is None:
            problems.append(f"`{key}` is missing")
        elif type(value) not in kind or value <= 0:
            problems.append(f"`{key}`: expected a positive number, found {value!r}")
    return problems


def _listed(value: Any) -> list[Any]:
    """A field that holds one value, several or none."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _token(value: Any) -> str | None:
    """A special token of tokenizer_config.json, which is a string or an AddedToken object."""
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise UserError(f"tokenizer_config.json: expected a special token as text, found {text!r}")
    return text


def _stop_ids(folder: Path, config: dict[str, Any], eos_token: str | None) -> tuple[int, ...]:
    """Every id that ends an answer, from generation_config.json, config.json and the tokenizer's end token."""
    ids: set[int] = set()
    for source in (_json(folder / "generation_config.json"), config):
        value = source.get("eos_token_id")
        if any(type(token) is not int for token in _listed(value)):
            raise UserError(f"`{folder}`: `eos_token_id` must be token ids, found {value!r}")
        ids.update(_listed(value))
    if eos_token is not None:
        found = read_map(folder / "tokenizer.json").ids.get(eos_token)
        ids.update([] if found is None else [found])
    return tuple(sorted(ids))


def _chat_template(folder: Path, settings: dict[str, Any]) -> str | None:
    """chat_template.jinja, or the (default) template inside tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"`{path}` cannot be read: {error}", hint="download it again") from None
    value = settings.get("chat_template")
    if isinstance(value, list):  # several named templates
        named = [entry for entry in value if isinstance(entry, dict) and entry.get("name") == "default"]
        value = named[0].get("template") if named else None
    return value if isinstance(value, str) else None
