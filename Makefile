# Slipstream: `make demo` and `make test` set everything up by themselves; `make help` lists the rest.
#
# What you may override, as in `make test PYTHON=python3.13`:
#   PYTHON       interpreter for the environment, 3.11 to 3.14 (default: the first suitable one on PATH)
#   VENV         folder of the environment (default: .venv)
#   TORCH        what pip installs where the environment has no torch yet (default: torch==2.13.0)
#   PROMPT       what `make demo` asks
#   WORKERS      processes that run the tests (default: 2)
#   PYTEST_ARGS  more arguments for pytest; BENCH_ARGS likewise for the benchmark, FUZZ_ARGS for the fuzz
#                (default: 2000 seeds over WORKERS processes)
#   PEERS        PEERS=1 has `make bench` install the other runtimes first (llama.cpp is built from source: minutes)

VENV ?= .venv
TORCH ?= torch==2.13.0
PROMPT ?= Turn this list into a numbered list, and keep every word: check the oil and the tyres; fill up the tank and \
	clean the windows; pack the tent, the stove and the sleeping bags; put the map and the passports into the glove box; \
	lock the front door and give the key to the neighbour.
WORKERS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
PEERS ?=
FUZZ_ARGS ?= --seeds 2000 --workers $(WORKERS)

SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14 python
PYTHON ?= $(shell for candidate in $(CANDIDATES); do \
	"$$candidate" -c '$(SUITABLE)' >/dev/null 2>&1 && { echo "$$candidate"; break; }; done)

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SAY := @printf '\n==> %s\n'

.DEFAULT_GOAL := help
.PHONY: help setup weights demo test fuzz bench lint format clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '  make %-8s %s\n' "$$name" "$$text"; done

setup: $(INSTALLED) ## Create the environment and install Slipstream with all it needs into it

$(INSTALLED): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "Slipstream needs Python 3.11 to 3.14, and none is on PATH: install one, or name it with PYTHON=..." >&2; exit 1; fi
	@"$(PYTHON)" -c '$(SUITABLE)' || { \
		echo "Slipstream needs Python 3.11 to 3.14, and $(PYTHON) is not one of these or does not start" >&2; exit 1; }
	$(SAY) "Environment in $(VENV), with $$("$(PYTHON)" --version)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo "$(PYTHON) cannot create environments: install its venv package (on Debian: python3-venv)" >&2; exit 1; }
	@$(BIN)/python -c 'import torch' 2>/dev/null || { \
		printf '\n==> %s\n' "Installing $(TORCH) (the largest download; skipped when it is there)"; \
		$(BIN)/python -m pip install --disable-pip-version-check $(TORCH); }
	$(SAY) "Installing Slipstream and its other dependencies"
	@$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]'
	@touch $@

weights: $(INSTALLED) ## Fetch the demo weights (98 MB, once for each user)
	$(SAY) "Demo weights"
	@$(BIN)/python -m models.demo

demo: weights ## Answer a prompt with and without speculation, streamed, and compare the two
	$(SAY) "Asking: $(PROMPT)"
	@$(BIN)/python -m runtime --compare "$(PROMPT)"

test: weights ## Run every test
	$(SAY) "Tests"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

fuzz: $(INSTALLED) ## Play the pipeline in many thousand orders (about an hour; Ctrl-C stops it)
	$(SAY) "Interleaving fuzz"
	@$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

bench: weights ## Measure on this machine, beside those other runtimes that are there; PEERS=1 installs them
	@test -z "$(filter-out 0 no,$(PEERS))" || { \
		printf '\n==> %s\n' "Installing the other runtimes"; \
		$(BIN)/python -m pip install --disable-pip-version-check --editable '.[bench]'; }
	$(SAY) "Benchmark"
	@$(BIN)/python -m profiling.bench $(BENCH_ARGS)

lint: $(INSTALLED) ## Check style, layout of the code and types
	$(SAY) "Style and types"
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy

format: $(INSTALLED) ## Lay the code out and mend what can be mended
	@$(BIN)/python -m ruff check --fix .
	@$(BIN)/python -m ruff format .

clean: ## Remove the environment, caches and build outputs; the weights stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
