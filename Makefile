# `make demo` and `make test` need nothing but Python 3.11 or later, gcc, git and a package index: they set up .venv
# themselves. The second call finds it ready; a changed pyproject.toml updates it.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# The tests start hundreds of commands: without bytecode each of them would compile plait anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all fidelity conformance check lint types imports architecture claims site format docs \
	pictures bench evidence lower-bounds lock news clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

$(READY): pyproject.toml $(wildcard packages/*/pyproject.toml) scripts/setup.sh
	@VENV="$(VENV)" scripts/setup.sh && touch "$@"

setup: $(READY) ## Make the virtual environment (PYTHON=…, EXTRA=cpu|gpu|none to choose)

demo: $(READY) ## Solve a few puzzles serially, by a vote and by reasoning threads, on a real engine
	@$(BIN)/plait demo $(ARGS)

# Two parts at the same time. What needs no engine runs in a process for each core, file by file, since a file's tests
# share its fixtures. What starts engines and Ray runs one test after another beside it: such a test mostly waits for a
# process to start. It collects only the files that have such tests, for to collect all takes half a minute of CPU, and
# its summary stands last. The chat model is fetched once and kept.
define run-tests
	@failed=0; mkdir -p build; trap 'kill $$engines 2> /dev/null' INT TERM; \
	$(BIN)/plait model get smollm2 || failed=1; \
	$(BIN)/python -m pytest -m "engine and not gpu$(1)" \
		$$(grep -rl --include='test_*.py' 'mark\.engine' tests) > build/engine-tests.txt 2>&1 & engines=$$!; \
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not engine and not gpu$(1)" || failed=1; \
	wait $$engines || failed=1; \
	cat build/engine-tests.txt; \
	exit $$failed
endef

test: $(READY) ## Run the tests but the slow ones and those for a GPU (ARGS="tests/core -x" to choose)
ifeq ($(strip $(ARGS)),)
	$(call run-tests, and not slow)
else
	@$(BIN)/python -m pytest $(ARGS)
endif

test-all: $(READY) ## Run the slow tests too (HYPOTHESIS_PROFILE=nightly for 1,000 examples of each property)
	$(call run-tests,)

fidelity: $(READY) ## Run methods beside their authors' own functions (clones in CLONES=FOLDER; ARGS=--clone makes them)
	@$(BIN)/python -m tests.oracles $(CLONES) $(ARGS)

# Each environment has the releases that its file pins. `conformance ARGS="--upstream URL --model NAME"` asks a real server.
conformance: $(READY) ## Run other people's clients against an upstream and through plait serve (ARGS=--write keeps the table)
	@for each in newest openai2 frameworks frameworks2; do folder=build/conformance/$$each; \
		test -d $$folder || $(BIN)/python -m venv $$folder; \
		$$folder/bin/pip install --quiet --disable-pip-version-check -r tests/conformance/requirements-$$each.txt || exit 1; \
	done
	@test -d build/conformance/guidellm || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--target build/conformance/guidellm -r tests/conformance/requirements-guidellm.txt
	@if command -v npm > /dev/null; then mkdir -p build/conformance/node && cp tests/conformance/node/package*.json build/conformance/node/ \
		&& cd build/conformance/node && npm ci --silent; fi
	@for each in mini aider; do folder=build/conformance/agents/$$each; \
		test -d $$folder || $(BIN)/python -m venv $$folder; \
		$$folder/bin/pip install --quiet --disable-pip-version-check -r tests/conformance/requirements-$$each.txt || exit 1; \
	done
	@if command -v npm > /dev/null; then mkdir -p build/conformance/agents/node && cp tests/conformance/agents/package*.json \
		build/conformance/agents/node/ && cd build/conformance/agents/node && npm ci --silent; fi
	@$(BIN)/python -m tests.conformance --environments build/conformance $(ARGS)

check: lint types imports architecture claims site ## Run every check of the code and the documents themselves

lint: $(READY)
	@echo "── ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@echo "── pyright"
	@$(BIN)/pyright --pythonpath $(BIN)/python

# The linter finds the modules of a package in one folder only, so the four roots are joined first, and the side
# distributions are put beside them. `orchestrator` comes
# last: its `__init__.py` is the package's.
imports: $(READY)
	@echo "── import-linter"
	@rm -rf build/imports && mkdir -p build/imports
	@for root in planners policies workers orchestrator; do cp -r $$root/plait build/imports/; done
	@cp -r packages/*/plait_* experiments training build/imports/
	@cd build/imports && $(abspath $(BIN))/lint-imports --no-cache --config ../../pyproject.toml

architecture: $(READY)
	@echo "── architecture tests"
	@$(BIN)/python -m pytest tests/test_architecture.py tests/test_language.py

claims: $(READY)
	@echo "── claims"
	@$(BIN)/python -m scripts.claims --check

site: $(READY) ## Build the documentation as a site, into build/site
	@echo "── site"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(READY) ## Format the code and mend what ruff can
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

docs: $(READY) ## Write docs/reference, docs/evidence.md, the states into docs/architecture.md, experiments/README.md
	@$(BIN)/python scripts/reference.py
	@$(BIN)/python scripts/states.py
	@$(BIN)/python scripts/glossary.py
	@$(BIN)/python scripts/experiments.py
	@$(BIN)/python -m scripts.claims

pictures: $(READY) ## Take the pictures of docs/images anew that the pages show (needs chromium)
	@$(BIN)/python -m scripts.pictures

bench: $(READY) ## List the experiments, or run one: make bench ARGS=overhead
	@$(BIN)/python -m experiments $(ARGS)

evidence: $(READY) ## Remake the quick pages of experiments and compare them with what is committed (ARGS=NAME for one)
	@$(BIN)/python -m scripts.evidence $(ARGS)

lower-bounds: $(READY) ## Run the tests without engines on the lowest versions that pyproject.toml allows
	@$(BIN)/python scripts/lower_bounds.py $(ARGS)

# A version for each package and Python; no index is named in it, so it works with any.
lock: $(READY) ## Write requirements-dev.lock anew: the newest versions that the developer's tools and the tests take
	@$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --no-annotate --no-header --upgrade --extra dev \
		--no-emit-package plait-bench --no-emit-package plait-models --no-emit-package plait-research \
		--no-emit-package plait-router --no-emit-package plait-server --no-emit-package plait --output-file requirements-dev.lock pyproject.toml
	@sed -i '1i # Made by `make lock`. Install with: pip install -r requirements-dev.lock && pip install --no-deps -e . $$(printf -- "-e %s " packages/*)' requirements-dev.lock

news: $(READY) ## Show what the fragments in changes/ add to the changelog
	@$(BIN)/towncrier build --draft --version next

clean: ## Remove the virtual environment and everything made
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .import_linter_cache
