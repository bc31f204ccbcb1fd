# `make demo`, `make test` and `make test-frameworks` are the commands of the README; the first two install all that they need into
# .venv, the last one into .venv-frameworks: other training frameworks are heavy, and want older versions of what `make test` has.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-frameworks lint style types suite outputs pictures site clean

demo: .venv/installed
	mkdir -p build
	$(BIN)/schedc compile examples/m70-2dc/job.toml -o build/m70-2dc.plan.json
	$(BIN)/schedc show build/m70-2dc.plan.json

test: .venv/installed-test style
	# The type check beside the tests: where nothing is cached it takes half a minute of one core, and tests wait much.
	@$(MAKE) --no-print-directory --jobs=2 suite types

test-frameworks: .venv-frameworks/installed
	.venv-frameworks/bin/python -m pytest -q tests/frameworks

suite: .venv/installed-test
	# With compiled modules kept, whatever the environment says: every process that a test starts would compile them again.
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q

outputs: .venv/installed-test     # what README and docs show of the tool's output
	$(BIN)/python tests/support/repository/doc_outputs.py

pictures: .venv/installed-test    # of docs/; needs Chromium
	for each in tools/pictures/*.py; do $(BIN)/python $$each || exit 1; done

site: .venv/installed-docs        # the documentation, in build/site: open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build

lint: style types

style: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-test
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/installed-test: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	touch $@ .venv/installed

.venv-frameworks/installed: pyproject.toml constraints-frameworks.txt
	test -x .venv-frameworks/bin/python || $(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-frameworks.txt \
		--editable '.[test-frameworks]'
	touch $@

.venv/installed-docs: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@ .venv/installed

clean:
	rm -rf .venv .venv-frameworks build
