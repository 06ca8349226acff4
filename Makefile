# One command each: `make check` for daily work, `make test` before a merge, `make reproduce` for the paper's results.

PYTHON ?= python3
VENV ?= .venv
OUT ?= results
WHAT ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Workers with several BLAS threads each fight over the cores; the third works while another waits for its processes.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST := $(ONE_THREAD) $(BIN)/python -m pytest -n 3 --max-worker-restart 0
FRAME := pyproject.toml constraints.txt
# Extras of `make lowest`: without torch, whose old versions come with gigabytes of CUDA packages.
EXTRAS ?= jax,explore,study,fast

.DEFAULT_GOAL := help
.PHONY: help check test reproduce lint docs bench portable wheel lowest newest versions clean
.NOTPARALLEL:

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

check: lint  ## Check format, lint and types, and run the fast tests: two minutes
	$(PYTEST) -m "not slow" tests

test: $(VENV)/.checks $(VENV)/.chromium  ## Check everything: lint, types, docs, all tests
	$(MAKE) docs & docs=$$!; $(MAKE) lint; lint=$$?; wait $$docs && exit $$lint
	$(BIN)/python tools/portable.py --quick
	$(PYTEST) --durations=10

reproduce: $(VENV)/.reproduce  ## Rebuild the paper's results into results/index.html
	$(ONE_THREAD) $(BIN)/lossnav reproduce $(WHAT) --out $(OUT)

lint: $(VENV)/.checks  ## Check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(VENV)/.checks  ## Build the documentation; any warning is an error
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html

portable: $(VENV)/.checks  ## Run the numerical tests as on other kinds of processor
	$(BIN)/python tools/portable.py

wheel: $(VENV)/.checks  ## Build the wheel, and use it in an empty environment
	$(BIN)/python tools/try_wheel.py

# Old versions may warn about the new versions of their own dependencies.
lowest:  ## Run the numerical tests with the lowest versions in pyproject.toml
	$(MAKE) versions VENV=.venv-lowest PYTHON=python3.11 KIND=lowest LENIENT="-W default::DeprecationWarning"

newest:  ## Run the numerical tests with the newest versions there are
	$(MAKE) versions VENV=.venv-newest KIND=newest EXTRAS=torch,$(EXTRAS) PEERS=pytorch_optimizer

versions: | $(BIN)/pip
	$(BIN)/python tools/bounds.py $(KIND) > $(VENV)/bounds.txt
	$(BIN)/python -m pip install --quiet --upgrade --upgrade-strategy eager -c $(VENV)/bounds.txt \
	  -e ".[$(EXTRAS)]" expecttest hypothesis pytest pytest-xdist $(PEERS)
	$(PYTEST) $(LENIENT) -m "blas or tensors or compiled or not slow" tests

bench: $(VENV)/.checks  ## Run the benchmarks, one after the other
	set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean:  ## Remove the environment and everything made
	rm -rf $(VENV) .venv-lowest .venv-newest docs/_build results build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Each stamp is remade when the project's requirements change, and only then.
$(VENV)/.checks: $(FRAME) | $(BIN)/pip
	$(PIP) -e ".[torch,jax,explore,study,ray,tensorboard,mlflow,wandb,fast,examples,test,docs]"
	@touch $@ $(VENV)/.reproduce

$(VENV)/.reproduce: $(FRAME) | $(BIN)/pip
	$(PIP) -e ".[study]"
	@touch $@

# Where no Chromium can be had, the browser tests are skipped and counted.
$(VENV)/.chromium: | $(VENV)/.checks
	@tools/chromium.sh $(BIN)/python && touch $@ || true

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
