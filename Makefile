# Everything a fresh machine needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test lint bench slow clean install help

help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1|/' | column -t -s '|'

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

install: $(VENV)/.installed  ## virtual environment with everything for development

demo: install    ## the main experiment on embedded data
	$(BIN)/python examples/demo.py

lint: install    ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint       ## lint, types, tests, doctests, README snippets
	$(BIN)/python -m pytest -q -m 'not slow and not browser'

slow: install    ## the checks that take minutes
	$(BIN)/python -m pytest -q -m slow

bench: install   ## every speed figure as a ratio measured in one run
	$(PIP) install --quiet --constraint constraints.txt --editable '.[eval]'
	$(BIN)/python -m benchmarks

clean:           ## remove what make created
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
