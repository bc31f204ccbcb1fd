# `make demo` and `make test` are the two commands of the README; each installs all that it needs into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint outputs clean

demo: .venv/installed
	mkdir -p build
	$(BIN)/schedc compile examples/m70-2dc/job.toml -o build/m70-2dc.plan.json
	$(BIN)/schedc show build/m70-2dc.plan.json

test: .venv/installed-test lint
	# With compiled modules kept, whatever the environment says: every process that a test starts would compile them again.
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q

outputs: .venv/installed-test     # what README and docs show of the tool's output
	$(BIN)/python tests/support/doc_outputs.py

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/installed-test: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@ .venv/installed

clean:
	rm -rf .venv build
