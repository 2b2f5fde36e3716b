# Each command makes the virtual environment it needs from nothing; constraints.txt pins what goes into it.
PYTHON ?= python3
DEMO := .venv-demo
DEV := .venv
pip = $(1)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo reproduce test test-long lint format bench docs real-parts clean

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

reproduce: $(DEV)/ready  ## run an experiment of the paper: make reproduce NAME=uci PRESET=cpu
	$(DEV)/bin/python -m reproduction $(NAME) --preset $(or $(PRESET),quick)

lint: $(DEV)/ready  ## check style and types
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/basedpyright

# Pages are tested in a real browser and the store in a real PostgreSQL; where they cannot be installed, tests skip and say so.
real-parts:
	command -v chromium > /dev/null || (apt-get -qq update && apt-get -qq install -y chromium) || true
	ls /usr/lib/postgresql/*/bin/initdb > /dev/null || (apt-get -qq update && apt-get -qq install -y postgresql) || true

# One thread for each of two processes: threads of linear algebra that wait for a core cost many times what they bring.
# Some virtual machines announce the AMX tiles of their processor but do not let torch use them.
pytest = OMP_NUM_THREADS=1 ONEDNN_MAX_CPU_ISA=AVX512_CORE $(DEV)/bin/python -m pytest -n 2 --dist worksteal

test: lint real-parts  ## lint, types, tests and doctests
	$(pytest) --cov --cov-report=term-missing:skip-covered --cov-fail-under=100

test-long: $(DEV)/ready  ## all tests, with the statistical claims repeated in full and many more examples
	ONSPHERE_LONG=1 $(pytest)

format: $(DEV)/ready  ## rewrite the code in the project's style
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

bench: $(DEV)/ready  ## run every benchmark and rewrite benchmarks/results
	for script in benchmarks/[a-z]*.py; do $(DEV)/bin/python $$script || exit 1; done

docs: $(DEV)/ready  ## build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(DEV)/bin/mkdocs build --strict

clean:  ## remove the virtual environments and caches
	rm -rf $(DEMO) $(DEV) site .pytest_cache .ruff_cache .coverage .hypothesis
