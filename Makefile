# Everything a checkout needs: Python 3.11 and make. `make help` lists the targets.

PYTHON ?= python3
JOB ?= specs/jobs/llama3-8b-8x-a100.yaml

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FRAMEWORKS := $(VENV)/.frameworks
BROWSER := $(VENV)/.browser
# Frameworks whose own requirements exclude each other, or need kernels: tests import from their wheels what they need.
# Those of megatron-core have Megatron-LM's megatron.training: its newest release and the one before.
WHEELS := axolotl==0.19.0 llamafactory==0.9.5 trl==1.16.0 torchtune==0.6.1 unsloth==2026.10.9 skypilot==0.14.1 \
	megatron-bridge==0.6.2 megatron-core==0.19.2 megatron-core==0.18.0 sglang==0.5.23 vllm==0.33.0 \
	litgpt==0.5.13 lightning==2.6.1 lightning-utilities==0.15.3 torchmetrics==1.9.0 jsonargparse==4.53.0 \
	docstring-parser==0.18.0

.DEFAULT_GOAL := help
.PHONY: help plan test test-slow test-frameworks test-browser mutants check lint types floors docs bench clean compiled

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile

plan: $(READY) compiled ## set up, then plan a shipped job (make plan JOB=my.yaml plans yours)
	@$(BIN)/autoplan plan $(JOB)

test: check compiled ## set up, then run every check and every test that is not slow
	@$(BIN)/python -m pytest --no-header -n auto --dist loadfile -m "not slow and not frameworks and not browser"

test-slow: $(READY) compiled ## tests that take long, and all but a few of each large family
	@$(BIN)/python -m pytest --no-header -n auto --dist worksteal -m "slow and not frameworks and not browser"

test-frameworks: $(FRAMEWORKS) compiled ## tests against real frameworks, which it installs first
	@$(BIN)/python -m pytest --no-header -n 0 -m frameworks

test-browser: $(BROWSER) compiled ## tests of pages in Debian's Chromium; skipped where /usr/bin/chromium is not installed
	@$(BIN)/python -m pytest --no-header -n 0 -rs -m browser tests/browser

mutants: $(READY) compiled ## plant faults one at a time: do quick tests notice a wrong second? (a quarter of an hour)
	@$(BIN)/python -m tests.mutants $(FAULTS)

check: lint types floors ## everything but the tests

lint: $(READY) ## style and formatting
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(READY) ## static types
	@$(BIN)/mypy

floors: $(READY) ## who may import whom
	@$(BIN)/lint-imports --no-logo

docs: $(READY) ## write the reference pages anew from the code, and build the book into build/book
	@$(BIN)/python -m docs.generate_reference
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict # --quiet would not count warnings

bench: $(READY) ## speed, error of memory and of step time; fails where a recorded error is worse
	-@$(BIN)/python -m benchmarks.speed --plot docs/speed.svg
	@$(BIN)/python -m benchmarks.memory
	@$(BIN)/python -m benchmarks.serving --check
	@$(BIN)/python -m benchmarks.accuracy --check --plot docs/accuracy.svg

clean: ## remove the environment and every cache
	@rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	@find autoplan benchmarks tests -type d -name __pycache__ -prune -exec rm -rf {} +

# Where PYTHONDONTWRITEBYTECODE is set, every process would compile all modules of the checkout anew.
compiled: $(READY)
	@$(BIN)/python -m compileall -q autoplan benchmarks tests

# Older than pyproject.toml means: something was declared since, install again. An environment that
# is missing or half made is made afresh.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("autoplan needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; name another: make PYTHON=python3.11")'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing autoplan and its tools into $(VENV) (once; a minute or two)" >&2
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

# What the tests of frameworks need is large, so only these tests install it.
$(FRAMEWORKS): $(READY)
	@echo "installing the frameworks that tests run against into $(VENV) (once)" >&2
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[frameworks]'
	@for wheel in $(WHEELS); do \
		$(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps --only-binary :all: --python-version 3.12 \
			--dest $(VENV)/framework-wheels $$wheel || echo "$$wheel was not found: tests that need it are skipped" >&2; done
	@touch $@

$(BROWSER): $(READY)
	@echo "installing what tests of pages need into $(VENV) (once)" >&2
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[browser]'
	@touch $@
