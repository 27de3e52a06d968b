# Gesso: `make help` lists what there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PROTOS := $(sort $(wildcard protos/gesso/*/v1/*.proto protos/externalscaler/*.proto))
# Generated code goes here; `make check` points it elsewhere and compares.
STUBS  ?= stubs

.DEFAULT_GOAL := help
.PHONY: help setup up test check bench generate lock clean

help: ## Say what each target does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY) ## Make .venv with everything in it, and the command .venv/bin/gesso

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"Gesso needs Python 3.11 or newer; {sys.executable} is {v.major}.{v.minor}. Name one: make setup PYTHON=python3.12")'
	@$(PYTHON) -m venv $(VENV) >/dev/null || { \
		echo "python3 -m venv does not work here; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

up: $(READY) ## Set up and run the whole suite on http://127.0.0.1:8080
	@exec $(BIN)/gesso up

test: $(READY) ## Run every test
	$(BIN)/pytest

check: $(READY) ## Format, lint, types, import rules, contracts, stale stubs
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/buf format protos --diff --exit-code
	$(BIN)/buf lint protos
	$(BIN)/buf breaking protos --against protos/baseline.binpb
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT \
		&& $(MAKE) --no-print-directory generate STUBS="$$fresh" \
		&& diff -r --exclude=__pycache__ --exclude=baseline.binpb "$$fresh" stubs >/dev/null \
		&& cmp -s "$$fresh/baseline.binpb" protos/baseline.binpb \
		|| { echo "The stubs or protos/baseline.binpb are older than protos/: run make generate" >&2; exit 1; }

generate: $(READY) ## Make stubs/ and protos/baseline.binpb from protos/
	@$(BIN)/buf breaking protos --against protos/baseline.binpb
	@rm -rf $(STUBS)/gesso $(STUBS)/externalscaler && mkdir -p $(STUBS)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos \
		--python_out=$(STUBS) --grpc_python_out=$(STUBS) --mypy_out=quiet:$(STUBS) --mypy_grpc_out=quiet:$(STUBS) \
		$(PROTOS)
	@$(BIN)/buf build protos --exclude-source-info --output $(if $(filter stubs,$(STUBS)),protos,$(STUBS))/baseline.binpb

bench: $(READY) ## Measure the hot paths and print the table
	$(BIN)/python -m bench

lock: $(READY) ## Resolve requirements.lock anew from pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--all-extras --group dev --custom-compile-command 'make lock' --output-file requirements.lock pyproject.toml

clean: ## Remove .venv and caches; ./var, your data, stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
