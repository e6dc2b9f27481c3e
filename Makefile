# Every target sets up what it needs: a virtual environment in .venv, installed once.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: attack audit test test-slow lint types tests data notebooks clean

attack: $(READY) ## rebuild private images from gradients, on embedded data
	$(BIN)/gradaudit attack --type 2

audit: $(READY) ## every place, adversary and defense: one verdict, one page
	$(BIN)/gradaudit audit

# The types are checked beside the tests, and what is found is told after them.
test: lint ## lint, types, tests
	@$(MAKE) --no-print-directory types > .venv/types.log 2>&1 & types=$$!; \
	$(MAKE) --no-print-directory tests; failed=$$?; \
	wait $$types || failed=$$?; cat .venv/types.log; exit $$failed

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(READY) ## what takes minutes: builds, downloads, long runs
	$(BIN)/python -m pytest -m slow

notebooks: $(READY) ## run every notebook
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[notebooks]'
	$(BIN)/python -m pytest -m slow tests/test_notebooks.py

data: $(READY) ## fetch MNIST, so that the tests that need it run
	$(BIN)/gradaudit data fetch mnist

# Bytecode is written for what our commands import, few of all modules, also where
# PYTHONDONTWRITEBYTECODE would make every command compile them again.
$(READY): pyproject.toml constraints.txt setup.py $(wildcard gradaudit/models/*.[ch] defenses/*.c)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gradaudit needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import pytest, matplotlib.figure, matplotlib.backends.backend_agg, gradaudit.audit.audit, gradaudit.benchmarks.contents, gradaudit.cli.app, gradaudit.report.figures'
	touch $(READY)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
