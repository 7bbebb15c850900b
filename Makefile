# Everything a fresh machine needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
PYTHONS ?= 3.11 3.12 3.13

.PHONY: demo test lint docs gallery release matrix bench slow browser models clean install help

help:            ## this list
	@grep -hE '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1|/' | column -t -s '|'

$(VENV)/.torch: constraints.txt
	@echo 'installing PyTorch: on Linux pip may fetch several gigabytes, see docs/install.md'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	@touch $@

$(VENV)/.command: pyproject.toml $(VENV)/.torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[cli]'
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(VENV)/.command $@

install: $(VENV)/.installed  ## virtual environment with everything for development

demo: $(VENV)/.command  ## the paper's headline experiment on embedded data, with a report to open
	$(BIN)/saddlepoint demo

lint: install    ## ruff, mypy, and the limits of CONTRIBUTING
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/limits.py

test: lint       ## lint, types, tests, doctests, README snippets
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow and not browser'

slow: install    ## the checks that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow

browser: install ## the report in a real Chromium (Debian's package, installed when missing)
	$(PIP) install --quiet --constraint constraints.txt playwright
	command -v chromium >/dev/null || { S=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$S apt-get update -qq && $$S apt-get install -y -qq chromium; }
	$(BIN)/python -m pytest -q -m browser

# Their own environment: torchvision, which they need, does not fit every build of torch.
$(VENV)-models/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-models
	$(VENV)-models/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt torch
	$(VENV)-models/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --editable '.[cli,zoo]' pytest hypothesis
	@touch $@

models: $(VENV)-models/.installed  ## networks of timm, torchvision and transformers, and ONNX files
	OMP_NUM_THREADS=1 $(VENV)-models/bin/python -m pytest -q -m zoo tests/models

# Its own environment: the notebooks use transformers, whose presence the tests would notice.
$(VENV)-docs/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-docs
	$(VENV)-docs/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt torch
	$(VENV)-docs/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
	  --editable '.[docs]'
	@touch $@

docs: $(VENV)-docs/.installed  ## the documentation site in build/site, built strictly, links inside it followed, hosts of others compared
	OMP_NUM_THREADS=1 $(VENV)-docs/bin/python tools/website.py

gallery: install ## the reports of docs/gallery and the pictures of README again, by the commands of docs/gallery.md
	$(PIP) install --quiet --constraint constraints.txt playwright
	$(BIN)/python tools/gallery.py

release: install ## source distribution and wheel in dist, built twice, checked, and tried outside the checkout
	$(PIP) install --quiet --constraint constraints.txt --editable '.[release]'
	$(BIN)/python tools/release.py --limit 16

matrix:          ## the tests in every Python of PYTHONS that is there, and which is not: docs/install.md
	OMP_NUM_THREADS=1 $(PYTHON) tools/matrix.py $(PYTHONS) --prefix $(abspath $(VENV)) --tests='$(TESTS)'

bench: install   ## every speed figure as a ratio measured in one run
	$(BIN)/python -m benchmarks

clean:           ## remove what make created
	rm -rf $(VENV) $(VENV)-models $(VENV)-docs $(VENV)-3.* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
