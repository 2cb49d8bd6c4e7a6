"""The manifest of a bundle as far as it is known before anything is traced: models, geometry, limits, provenance.

`plan` prints it, `build` completes it with the components and the file hashes.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from pathlib import Path

from lilicorr.export.options import BuildOptions
from lilicorr.export.pair import Pair
from lilicorr.export.quantised_config import chosen_quantisation
from lilicorr.runtime.contract import FLOATS, PLUGIN
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import SCHEMA_VERSION, Cache, Drafter, Head, Limits, Manifest, Target
from lilicorr.train.config import DFLASH, LILICORR

RECORDED = ("torch", "transformers", "onnx", "onnxscript", "onnx-ir", "onnxruntime", "tokenizers", "numpy")


def describe(pair: Pair, options: BuildOptions) -> Manifest:
    """Return the manifest of exporting `pair` with `options`, with no components and no files yet.

    Raises:
        UserError: the target's weights cannot be had as the integers that are asked.
    """
    target, config = pair.target, pair.drafter.config
    dtype = FLOATS[options.precision]
    head = config.lilicorr
    return Manifest(
        schema_version=SCHEMA_VERSION,
        lilicorr_version=importlib.metadata.version("lilicorr"),
        created=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        command=_command(pair, options),
        precision=options.precision,
        attention=options.attention,
        target=Target(
            name=target.path.resolve().name,
            architecture=target.architecture,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            max_context=target.max_context,
            stop_token_ids=target.stop_token_ids,
            bos_token=target.bos_token,
            eos_token=target.eos_token,
            cache=Cache(target.layers, target.kv_heads, target.head_dim, dtype),
            quantisation=chosen_quantisation(target.stored, target.headers, options),
        ),
        drafter=Drafter(
            name=pair.drafter.path.resolve().name,
            architecture=LILICORR if head else DFLASH,
            block_size=pair.block_size,
            trained_block_size=config.block_size,
            candidate_topk=config.candidate_topk,
            mask_token_id=config.mask_token_id,
            target_layer_ids=config.target_layer_ids,
            draft_vocab_size=config.draft_vocab_size,
            rope=config.rope,
            cache=Cache(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, dtype),
        ),
        head=Head("lilicorr", head.logit_scale, head.vector_eps) if head else None,
        limits=Limits(options.context(pair.max_context), options.max_batch, options.prefill_chunk),
        components={},
        files=(),
        plugin=PLUGIN if head else None,
        environment=_environment(),
    )


def source_folders(manifest: Manifest) -> tuple[Path, Path]:
    """Target and drafter folder that the bundle was built from, as its command line records them.

    Raises:
        UserError: the command line names none.
    """
    given = dict(zip(manifest.command, manifest.command[1:], strict=False))
    if not {"--target", "--drafter"} <= given.keys():
        raise UserError("the bundle does not record what it was built from", hint="give --target DIR and --drafter DIR")
    return Path(given["--target"]), Path(given["--drafter"])


def _command(pair: Pair, options: BuildOptions) -> tuple[str, ...]:
    """The command line that builds the same bundle, with absolute folders; only --out is left to choose."""
    folders = {"--target": pair.target.path.resolve(), "--drafter": pair.drafter.path.resolve()}
    chosen = {
        "--precision": options.precision,
        "--attention": options.attention,
        "--max-context": options.context(pair.max_context),
        "--max-batch": options.max_batch,
        "--block-size": pair.block_size,
    }
    if options.weights is not None:
        chosen |= {"--weights": options.weights, "--weights-block": options.weights_block}
    return ("lilicorr-export", "build", *(str(part) for option in (folders | chosen).items() for part in option))


def _environment() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in RECORDED:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
