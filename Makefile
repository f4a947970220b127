# Each command makes its own virtual environment when there is none, and again when pyproject.toml changes.
#   make test ARGS=--whole          hands ARGS to the tool
#   make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
EXTRAS ?= anthropic,mcp,openai,pydantic-ai
READY := $(VENV)/.ready

.PHONY: demo proof test lint types bench clean

# What a real model is asked with is installed only where there is one to ask: a name, a key or an address is set.
ASKED := $(foreach name,AGENTLANE_MODEL OPENAI_API_KEY OPENAI_BASE_URL ANTHROPIC_API_KEY ANTHROPIC_AUTH_TOKEN \
	ANTHROPIC_BASE_URL,$(value $(name)))$(findstring --model,$(ARGS))
SCRIPT := $(findstring --model script,$(ARGS))$(filter script,$(value AGENTLANE_MODEL))
MODELS := $(if $(strip $(SCRIPT)),,$(if $(strip $(ASKED)),$(VENV)/.extras))

demo: $(READY) $(MODELS)
	$(VENV)/bin/python examples/crash_and_resume.py $(ARGS)

proof: $(READY)
	$(VENV)/bin/python -m agentlane.testing.matrix $(ARGS)

test: $(READY) $(VENV)/.extras
	$(VENV)/bin/python tests/side_by_side.py $(ARGS)

lint: $(READY)
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check

types: $(READY)
	$(VENV)/bin/mypy --strict

bench: $(READY)
	$(VENV)/bin/python -m benchmarks $(ARGS)

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is updated first: the one that comes with Python 3.11 does not know dependency groups.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "agentlane needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(VENV)/bin/python -m pip install --quiet --editable . --group dev
	@touch $@

# The extras: without one the tests that are about it are skipped.
$(VENV)/.extras: $(READY)
	$(VENV)/bin/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@
