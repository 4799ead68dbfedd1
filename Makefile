# Everything runs in .venv, which is set up on first use and again when the pins change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell grep '^torch==' constraints.txt)

# Two pytest workers of one thread each: faster than one worker of two threads.
PYTEST_FLAGS ?= -n 2

.DEFAULT_GOAL := help
.PHONY: help demo test lint check-report bench docs clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 15

demo: $(VENV)/.installed-cli ## train a digit classifier that finds its own ranks, into runs/demo/
	$(BIN)/rankfold demo

test: $(VENV)/.installed-dev ## run the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(VENV)/.installed-dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-report: $(VENV)/.installed-dev ## look at report pages in headless Chromium, which must be installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/reporting

bench: $(VENV)/.installed-dev ## time layers against torch.nn and tensorly-torch; more: rankfold bench --help
	$(BIN)/rankfold bench layers

docs: $(VENV)/.installed-docs ## build the documentation into site/
	$(BIN)/python tools/docs/generated.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

clean: ## remove .venv, runs/demo, site and caches
	rm -rf $(VENV) runs/demo site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; name it with: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch comes first and by exact version: a range would let pip pick another build of it.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$*]'
	@touch $@
