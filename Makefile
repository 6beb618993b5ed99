# The two first commands of README: `make demo` scores the example, `make test` checks everything.
# Both need Python 3.11, git and make, create the environment themselves, and repeat no work that stands.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3.11
VENV ?= .venv
# Where `make demo` writes.
BUILD ?= build
# Where pip's own configuration has no CPU build of torch, PyTorch's public index has one.
TORCH_INDEX := https://download.pytorch.org/whl/cpu

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Stamps carry their inputs' hash: neither a fresh checkout's file times nor a new branch installs anything twice.
LOCKED := $(VENV)/.locked-$(shell git hash-object requirements/cpu.txt)
PACKAGE := $(VENV)/.package-$(shell cat pyproject.toml requirements/cpu.txt | git hash-object --stdin)
DEMO := $(BUILD)/demo.parquet

.PHONY: help
help:
	@echo "make demo    create the environment, get the model, score examples/pairs.parquet"
	@echo "make test    linter, formatter, type checker and every test"
	@echo "make check   linter, formatter and type checker only"
	@echo "make format  let the formatter and the linter correct what they can"
	@echo "make fuzz    fuzz everything that reads foreign text, SECONDS=300 for each target"
	@echo "make soak    long runs, ROWS=5000000 rows and REQUESTS=20000 real requests; watches memory, files, speed"
	@echo "make lock    resolve requirements/cpu.txt again"
	@echo "make clean   remove environment, caches and demo output; the model cache stays"

.PHONY: demo
demo: $(DEMO)
	@$(BIN)/python examples/show.py $(DEMO)
	@echo "All columns are in $(DEMO); remove it to score the example again"

# An interrupted run is continued by the next `make demo`: its finished rows lie in the journal beside the output.
$(DEMO): | $(PACKAGE)
	@mkdir -p $(BUILD)
	$(BIN)/batchfact models pull smollm2-135m-factual
	$(BIN)/batchfact run examples/pairs.parquet $(DEMO)

.PHONY: test
test: check
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

.PHONY: check
check: $(PACKAGE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.PHONY: format
format: $(PACKAGE)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: packages venv
packages: $(LOCKED)
venv: $(PACKAGE)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "batchfact needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# Byte code is left to the first import: compiling all of torch and transformers takes longer than installing them.
$(LOCKED): | $(BIN)/python
	@echo "Installing the pinned packages into $(VENV); this takes a few minutes, once"
	$(PIP) install --quiet --no-compile --no-deps -r requirements/cpu.txt 2>$(VENV)/pip.log \
	|| $(PIP) install --quiet --no-compile --no-deps --extra-index-url $(TORCH_INDEX) -r requirements/cpu.txt
	@rm -f $(VENV)/.locked-* && touch $@

$(PACKAGE): $(LOCKED)
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.package-* && touch $@

# Not part of `make test`: it takes SECONDS for each of six targets, and needs atheris, which no user does.
SECONDS ?= 300
.PHONY: fuzz
fuzz: $(PACKAGE)
	$(PIP) install --quiet --no-deps atheris==3.0.0
	$(BIN)/python -m fuzz all --seconds $(SECONDS)

# Hours: ROWS through the fake engine, then REQUESTS through the real one. Results go to bench/results.
ROWS ?= 5000000
REQUESTS ?= 20000
.PHONY: soak
soak: $(PACKAGE)
	$(BIN)/python -m bench soak --rows $(ROWS)
	$(BIN)/python -m bench soak --rows $(REQUESTS) --engine vllm

.PHONY: lock
lock: | $(BIN)/python
	$(BIN)/python requirements/lock.py

.PHONY: clean
clean:
	rm -rf $(VENV) $(BUILD) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
