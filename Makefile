# One command each: `make test` checks everything, `make reproduce` rebuilds the paper's results.

PYTHON ?= python3
VENV ?= .venv
OUT ?= results
WHAT ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Two test workers with several BLAS threads each fight over the cores: twice as slow on two of them.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
FRAME := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help test reproduce lint docs bench clean
.NOTPARALLEL:

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

test: $(VENV)/.checks  ## Set up, lint, type-check, run the tests, build the docs
	$(MAKE) lint
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2
	$(MAKE) docs

reproduce: $(VENV)/.reproduce  ## Rebuild the paper's results into results/index.html
	$(ONE_THREAD) $(BIN)/lossnav reproduce $(WHAT) --out $(OUT)

lint: $(VENV)/.checks  ## Check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.checks  ## Build the documentation; any warning is an error
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html

bench: $(VENV)/.checks  ## Run the benchmarks, one after the other
	set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean:  ## Remove the environment and everything made
	rm -rf $(VENV) docs/_build results build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Each stamp is remade when the project's requirements change, and only then.
$(VENV)/.checks: $(FRAME) | $(BIN)/pip
	$(PIP) -e ".[torch,jax,explore,study,ray,tensorboard,mlflow,wandb,fast,examples,test,docs]"
	@touch $@ $(VENV)/.reproduce

$(VENV)/.reproduce: $(FRAME) | $(BIN)/pip
	$(PIP) -e ".[study]"
	@touch $@

# Debian's python3 may come without ensurepip; virtualenv brings its own pip.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than 3.11: install Python 3.11, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 \
	  || $(PYTHON) -m virtualenv --quiet $(VENV) 2>/dev/null \
	  || { { $(PYTHON) -m pip install --quiet --user virtualenv 2>/dev/null \
	      || $(PYTHON) -m pip install --quiet --user --break-system-packages virtualenv; } \
	    && $(PYTHON) -m virtualenv --quiet $(VENV); } \
	  || { echo "$(PYTHON) cannot make a virtual environment: run 'apt install python3-venv', then make again." >&2; exit 1; }
