# Everything happens in .venv, which every target sets up by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported. If pip compiled all of them, setting up would
# take two minutes longer, for thousands of modules that are never imported.
PIP_INSTALL := $(BIN)/pip --quiet --disable-pip-version-check install --no-compile --constraint constraints.txt

# Many containers set this. Then every process would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint docs setup wheel clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "make %-8s %s\n", $$1, $$2 }'

demo: setup  ## train FedAvg and CAFedCL on the embedded digits and compare them
	@$(BIN)/cafedcl demo

test: setup  ## run all tests
	$(BIN)/pytest

lint: setup  ## linter, formatter and type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=docs $(BIN)/mypy --package site_generator
	$(BIN)/python tools/architecture.py --check

# `make docs NOTEBOOKS=off` leaves the tutorials without outputs.
NOTEBOOKS ?= force
docs: $(VENV)/.docs  ## build the website into build/docs
	$(BIN)/python -m sphinx --jobs auto --quiet --fail-on-warning --keep-going --fresh-env -D nb_execution_mode=$(NOTEBOOKS) --doctree-dir build/doctrees docs build/docs
	@echo "open build/docs/index.html"

wheel: setup  ## build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

setup: $(VENV)/.done  ## install into .venv

# torch first and alone: pip then takes the build that the constraints name, and not another one
# that a dependency prefers.
$(VENV)/.done: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed; set PYTHON=…" >&2; exit 2; }
	@echo "setting up $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) torch
	@$(PIP_INSTALL) setuptools wheel
	@$(PIP_INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

# Not part of the setup: whoever tests need not wait for it.
$(VENV)/.docs: $(VENV)/.done
	@echo "adding what the website needs to $(VENV) …"
	@$(PIP_INSTALL) --no-build-isolation --editable '.[docs]'
	@touch $@

clean:  ## remove everything that was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
