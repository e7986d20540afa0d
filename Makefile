# The two commands of the README, and those of a developer. Everything is set up on the way; nothing outside
# .venv, build and the cache directory is touched.

PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
TEST_WORKERS := 2
STAMP := $(VENV)/.synced

.DEFAULT_GOAL := help
.PHONY: help setup demo test explore bench soak experiments lint format lock generate clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the locked dependencies

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), 3.11 or newer is needed: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || \
		{ echo "make: $(PYTHON) cannot make a virtual environment: install its venv package" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip sync --quiet --require-hashes requirements.lock
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP) ## five 8-card jobs on a busy fleet: the stock scheduler, then wholenode
	@$(BIN)/python -m kwok.demo

test: $(STAMP) lint ## everything, on a real control plane
	@$(BIN)/wholenode lab build --kueue
	@$(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

explore: $(STAMP) ## the tests without a control plane, with examples that no run has drawn before
	@$(BIN)/python -m pytest -m "not cluster" --numprocesses $(TEST_WORKERS) --hypothesis-profile explore $(PYTEST_ARGS)

bench: $(STAMP) ## how long whole-node jobs wait, beside kube-scheduler's own preemption
	@$(BIN)/python -m kwok.bench

soak: $(STAMP) ## the controller killed at each of its writes, and 1,000 landings under a flood of small pods
	@$(BIN)/python -m kwok.soak $(SOAK_ARGS)

experiments: $(STAMP) ## NAME=defaults: settings that fail; sidebyside: beside Kueue alone; outages: killed in turn
	@$(BIN)/python -m kwok.experiments $(NAME) $(EXPERIMENT_ARGS)

lint: $(STAMP) ## style, types, import rules, generated files
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/wholenode crds --check deploy/chart/crds
	@$(BIN)/wholenode manifests --check

format: $(STAMP) ## rewrite the sources in the project's style
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

generate: $(STAMP) ## rewrite the CRDs and the plain manifests
	@$(BIN)/wholenode crds --write deploy/chart/crds
	@$(BIN)/wholenode manifests --write

lock: ## resolve the dependencies anew (needs uv on the path or .venv)
	@PATH="$(abspath $(BIN)):$$PATH" sh -c '\
		uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --upgrade --group dev \
			--custom-compile-command "make lock" pyproject.toml -o requirements.lock && \
		uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --constraint requirements.lock \
			--custom-compile-command "make lock" pyproject.toml -o requirements-runtime.lock'

clean: ## remove .venv and build (not the cache of built binaries)
	@rm -rf $(VENV) build dist
