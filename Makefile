# Each command makes the virtual environment it needs from nothing; constraints.txt pins what goes into it.
PYTHON ?= python3
DEMO := .venv-demo
DEV := .venv
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-long lint format bench clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1	\2/' | expand -t 20

$(DEMO)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEMO)
	$(call pip,$(DEMO)) -e . rich
	touch $@

$(DEV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEV)
	$(call pip,$(DEV)) -e '.[dev]'
	touch $@

demo: $(DEMO)/ready  ## fit on two bundled data sets and show how far to trust each prediction (no torch)
	$(DEMO)/bin/python -m onsphere.demo

lint: $(DEV)/ready  ## check style and types
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/basedpyright

test: lint  ## lint, types, tests and doctests
	$(DEV)/bin/python -m pytest -n 2 --cov --cov-report=term-missing:skip-covered --cov-fail-under=100

test-long: $(DEV)/ready  ## the statistical claims, repeated in full
	ONSPHERE_LONG=1 $(DEV)/bin/python -m pytest -n 2 tests/long

format: $(DEV)/ready  ## rewrite the code in the project's style
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

bench: $(DEV)/ready  ## run every benchmark and rewrite benchmarks/results
	for script in benchmarks/[a-z]*.py; do $(DEV)/bin/python $$script || exit 1; done

clean:  ## remove the virtual environments and caches
	rm -rf $(DEMO) $(DEV) .pytest_cache .ruff_cache .coverage .hypothesis
