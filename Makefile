# Everything runs in .venv, which the first target that needs it makes; it is renewed only when pyproject.toml,
# constraints.txt or requirements.lock change.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# uv and pip-audit, for `lock` and `audit` only.
TOOLS := .venv-tools
SLURM_DIR ?= .slurm
# Folders under type checking and the tests of `check`; one that does not exist is left out.
TYPED := $(wildcard sweep trainer analysis tools)
UNIT := not slurm and not torchrun and not slow

.PHONY: help venv demo test check lint ruff mypy imports unit cov fmt lock audit slurm-up slurm-down bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Make .venv with the project and all its extras, editable

# ensurepip is what Debian leaves out of python3; the package that brings it is named after the interpreter's version.
$(STAMP): pyproject.toml constraints.txt requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) is missing or older than Python 3.11; name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$$package"; \
	  else \
	    echo "make: $(PYTHON) cannot make virtual environments; on Debian: sudo apt-get install $$package" >&2; exit 1; \
	  fi; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install -c constraints.txt torch
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Run the weak-scaling sweep on this machine, without Slurm
	$(BIN)/python -m sweep +grid=weak_scaling cluster=local

test: lint ## Lint, then every test; those that need Slurm bring up a private one
	$(BIN)/python -m tools.run_tests

check: lint unit ## Lint, types, import contracts and unit tests: under two minutes

lint: ruff mypy imports

ruff: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

mypy: $(STAMP)
	$(BIN)/mypy $(TYPED)

imports: $(STAMP)
	$(BIN)/lint-imports --no-logo

unit: $(STAMP)
	$(BIN)/python -m pytest -m "$(UNIT)"

cov: $(STAMP) ## Branch coverage of the unit tests
	$(BIN)/python -m pytest -m "$(UNIT)" --cov --cov-report=term-missing

fmt: $(STAMP) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

$(TOOLS)/.installed:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip --quiet --disable-pip-version-check install uv pip-audit
	@touch $@

lock: $(STAMP) $(TOOLS)/.installed ## Rewrite constraints.txt and requirements.lock from what .venv holds
	@grep '^#' constraints.txt > constraints.tmp
	@$(PIP) freeze --all --exclude pip --exclude-editable | sed -E 's/^(torch==[^+]*)\+.*/\1/' \
	  | grep -Ev '^(nvidia-[^m]|nvidia_|triton==)|@ file' >> constraints.tmp || { rm -f constraints.tmp; exit 1; }
	@mv constraints.tmp constraints.txt
	@grep '^#' requirements.lock > lock.tmp
	@$(TOOLS)/bin/uv pip compile --quiet constraints.txt --python-version 3.11 --no-deps --no-emit-package torch \
	  --generate-hashes --no-annotate --no-header >> lock.tmp || { rm -f lock.tmp; exit 1; }
	@mv lock.tmp requirements.lock

audit: $(TOOLS)/.installed ## Ask for known vulnerabilities of what constraints.txt pins (by hand: it needs the network)
	$(TOOLS)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

slurm-up: ## Start a private Slurm on this machine
	$(PYTHON) tools/private_slurm.py up --dir $(SLURM_DIR)

slurm-down: ## Stop the private Slurm
	$(PYTHON) tools/private_slurm.py down --dir $(SLURM_DIR)

bench: $(STAMP) ## Run the scripts in benchmarks/
	@scripts=($(sort $(wildcard benchmarks/*.py))); \
	[ $${#scripts[@]} -gt 0 ] || { echo "make: no scripts in benchmarks/" >&2; exit 1; }; \
	for script in "$${scripts[@]}"; do echo "== $$script"; $(BIN)/python "$$script"; done

clean: ## Remove caches and build products; runs/, .slurm/ and .venv stay
	rm -rf build dist htmlcov .coverage .coverage.* .benchmarks .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . \( -path ./$(VENV) -o -path ./runs -o -path ./.git \) -prune -o -name __pycache__ -type d -exec rm -rf {} +
