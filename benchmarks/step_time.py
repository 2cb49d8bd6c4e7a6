"""Milliseconds per target step of a bundle, by tokens per step, against a reference graph in one run.

The reference is what onnxruntime-genai's model builder makes of the same Hugging Face folder (fused grouped-query attention with a
shared cache buffer), so that plain decoding here is no straw man:

    python -m onnxruntime_genai.models.builder -m build/smollm2-135m-hf -o build/genai -p fp32 -e cpu
    python benchmarks/step_time.py build/smollm2-135m --reference build/genai/model.onnx

Both run bound to fixed buffers, in turns of ten steps; the table gives medians over the turns and the median of the paired ratios.
The last line of stdout is one JSON object.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import onnxruntime as ort

DTYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}


def bound_step(
    session: ort.InferenceSession, sizes: dict[str, int], values: dict[str, np.ndarray]
) -> Callable[[], None]:
    """A call of `session` on fixed buffers: `values` by input name, zeros for the rest; a `present` output shares its past's."""
    binding, keep = session.io_binding(), {}

    def array(port: ort.NodeArg) -> np.ndarray:
        shape = [sizes.get(d, d) if isinstance(d, str) else d for d in port.shape]
        return np.zeros([d if isinstance(d, int) else 1 for d in shape], DTYPES[port.type])

    for port in session.get_inputs():
        keep[port.name] = np.ascontiguousarray(values.get(port.name, array(port)))
        bind(binding.bind_input, port.name, keep[port.name])
    for port in session.get_outputs():
        past = port.name.replace("present", "past_key_values")
        keep.setdefault(port.name, keep[past] if past in keep else array(port))
        bind(binding.bind_output, port.name, keep[port.name])
    return lambda keep=keep: session.run_with_iobinding(binding)


def block_median(step: Callable[[], None]) -> float:
    """Median milliseconds of eight steps in a row, as decoding runs them, after two that fill the caches again."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def bind(method: Callable[..., None], name: str, array: np.ndarray) -> None:
    method(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


@click.command()
@click.argument("bundle", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--reference", type=click.Path(exists=True, path_type=Path), help="model.onnx of onnxruntime-genai's builder"
)
@click.option("--context", default=256, show_default=True, help="committed rows in the cache")
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default=True)
@click.option("--repeat", default=12, show_default=True, help="turns of ten steps per graph")
def main(bundle: Path, reference: Path | None, context: int, threads: int, repeat: int) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    # Without this the threads of the session that just ran spin on and steal a core from the other one.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    paths = {"lilicorr": bundle / "target.onnx"} | ({"reference": reference} if reference else {})
    sessions = {
        name: ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]) for name, path in paths.items()
    }
    rng = np.random.default_rng(0)
    head_dim = next(port.shape[3] for port in sessions["lilicorr"].get_inputs() if port.name == "k_cache_0")
    report: dict[str, dict[str, float]] = {}
    for width in (1, 2, 4, 6, 8, 16):
        tokens = rng.integers(0, 1000, (1, width))
        steps = {
            "lilicorr": bound_step(
                sessions["lilicorr"],
                {"N": 1, "T": width, "C": context},
                {"tokens": tokens.astype(np.int32), "lengths": np.array([context], np.int32)},
            )
        }
        if reference:
            steps["reference"] = bound_step(
                sessions["reference"],
                {
                    "past_sequence_length": context + width,
                    "total_sequence_length": context + width,
                    "sequence_length": width,
                    "kv_cache_dim": head_dim,
                },
                {
                    "input_ids": tokens,
                    "attention_mask": np.ones((1, context + width), np.int64),
                    "position_ids": np.arange(context, context + width)[None],
                },
            )
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(repeat):
            for name, step in steps.items():
                times[name].append(block_median(step))
        row = {name: statistics.median(values) for name, values in times.items()}
        if reference:
            ratios = [a / b for a, b in zip(times["lilicorr"], times["reference"], strict=True)]
            row["ratio"] = statistics.median(ratios)
        report[str(width)] = {name: round(value, 3) for name, value in row.items()}
        click.echo(f"{width:3d} tokens: " + "  ".join(f"{name} {value:.2f}" for name, value in row.items()), err=True)
    click.echo(json.dumps({"threads": threads, "context": context, "onnxruntime": ort.__version__, "step_ms": report}))


if __name__ == "__main__":
    main()
