# The front door. Everything is set up on first use, inside this folder: .venv for work, .cache for the rest.

SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The interpreter to work with: make PYTHON=python3.13 test
PYTHON ?=
export PYTHON

# Tests start many processes; each would compile everything anew where bytecode is not written.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/bytecode

DEV := .venv
DEMO := .cache/envs/demo
DOCS := .cache/envs/docs
# What two libraries bring for tests of their users hooks into each of ours, and none of ours needs it.
PYTEST := $(DEV)/bin/python -m pytest --numprocesses 4 -p no:anyio -p no:schemathesis
COMPILE := tools/uv pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header --generate-hashes

# $(call environment,folder,pins): a fresh environment with exactly the pinned packages and this project.
define environment
	@echo "setting up $(1) ..."
	@python=$$(sh tools/find-python) && tools/uv venv --quiet --clear --python "$$python" $(1)
	@tools/uv pip install --quiet --python $(1) --require-hashes --requirement $(2)
	@tools/uv pip install --quiet --python $(1) --no-deps --build-constraints requirements/build.txt --editable .
	@touch $(1)/.ready
endef

##@ Use

.PHONY: help
help: ## show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(DEMO)/.ready ## watch tasks, processes and a support chat at work, under 30 seconds; KEEP=1 serves on, with a dashboard
	@$(DEMO)/bin/python examples/demo.py $(if $(KEEP),--serve)

##@ Work

.PHONY: test
test: $(DEV)/.ready fetch-services ## run the tests, servers included, in a few minutes; ARGS="-k keys" narrows them down
	@$(PYTEST) --dist worksteal -m "not thorough and not exhaustive" $(ARGS)

.PHONY: test-thorough
test-thorough: $(DEV)/.ready fetch-services ## run what make test leaves out: kills, faults, failovers, the whole of every contract on every server
	@$(PYTEST) --dist worksteal -m thorough $(ARGS)

.PHONY: test-exhaustive
test-exhaustive: $(DEV)/.ready fetch-services ## run what both leave out: every way to lose a primary, and contracts behind a pooler
	@$(PYTEST) --dist worksteal -m exhaustive $(ARGS)

.PHONY: test-newest
test-newest: $(DEV)/.ready # the tests that need no server on the newest other Python found
	@$(DEV)/bin/python tools/matrix.py --newest $(ARGS)

.PHONY: test-matrix
test-matrix: $(DEV)/.ready ## run the tests that need no server on every Python found on this machine
	@$(DEV)/bin/python tools/matrix.py $(ARGS)

.PHONY: prove
prove: $(DEV)/.ready fetch-services ## run all tests at full size: 1,000 seeds, 200 kills, 1,000,000 pairs of keys
	@STANDFAST_PROVE=1 $(DEV)/bin/python -m pytest $(ARGS)

.PHONY: failover
failover: $(DEV)/.ready fetch-services ## lose the primary of each replicated set-up in up to seven ways, and write the table of the docs; ARGS=MongoDB writes those rows alone
	@$(DEV)/bin/python -m tests.integration.failover.storm $(ARGS)

.PHONY: check
check: $(DEV)/.ready ## ruff, format, mypy, pyright, import-linter, the rules and the words of the house
	@$(MAKE) --keep-going lint types imports rules words

.PHONY: lint types imports rules words
lint: $(DEV)/.ready
	@$(DEV)/bin/ruff check --quiet
	@$(DEV)/bin/ruff format --check --quiet || { $(DEV)/bin/ruff format --diff --quiet; exit 1; }
types: $(DEV)/.ready
	@$(DEV)/bin/mypy src tests benchmarks tools
	@MYPYPATH=examples $(DEV)/bin/mypy examples
	@$(DEV)/bin/pyright --pythonpath $(DEV)/bin/python
imports: $(DEV)/.ready
	@$(DEV)/bin/lint-imports --no-logo --cache-dir .cache/import-linter
rules: $(DEV)/.ready
	@$(DEV)/bin/python tools/rules.py
	@$(DEV)/bin/python tools/house.py --check
	@$(DEV)/bin/python tools/generate_blocking.py --check
words: $(DEV)/.ready
	@$(DEV)/bin/python tools/words.py

.PHONY: format
format: $(DEV)/.ready ## format the code and fix what ruff can fix
	@$(DEV)/bin/ruff check --fix
	@$(DEV)/bin/ruff format

.PHONY: coverage
coverage: $(DEV)/.ready fetch-services ## run the tests with branch coverage, without the heavy ones
	@mkdir -p .cache
	@$(DEV)/bin/python -m coverage run -m pytest -m "not heavy" $(ARGS)
	@$(DEV)/bin/python -m coverage report

.PHONY: services
services: fetch-services ## start the servers that the tests use and print their URLs; SERVICE=postgresql picks one
	@$(DEV)/bin/python -m tests.services start $(SERVICE)

.PHONY: fetch-services
fetch-services: $(DEV)/.ready # fetch the servers into .cache/services, once; one that cannot be had is named
	@$(DEV)/bin/python -m tests.services fetch

.PHONY: bench
bench: $(DEV)/.ready ## measure against peers and bare limits; SUBJECT=local picks one
	@$(DEV)/bin/python -m benchmarks $(SUBJECT)

.PHONY: house
house: $(DEV)/.ready ## print how easily the way in the package is found, beside the goals; ARGS=--files lists the walks, ARGS=--helpers what is used once
	@$(DEV)/bin/python tools/house.py $(ARGS)

.PHONY: promises
promises: $(DEV)/.ready fetch-services ## measure what the promises come to on each store, and write the page about it
	@$(DEV)/bin/python -m benchmarks.promises

.PHONY: docs
docs: $(DOCS)/.ready ## build the site in docs/_build/html; broken links fail
	@$(DOCS)/bin/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky --builder html docs docs/_build/html
	@echo "docs/_build/html/index.html"

##@ House

.PHONY: newest-python
newest-python: ## fetch the newest CPython from Debian unstable for make test-matrix, without installing it
	@tools/newest-python

.PHONY: lock
lock: ## compile the pins anew, to the newest versions
	@$(COMPILE) --upgrade requirements/uv.in --output-file requirements/uv.txt
	@$(COMPILE) --upgrade requirements/build.in --output-file requirements/build.txt
	@$(COMPILE) --upgrade pyproject.toml --output-file requirements/run.txt
	@$(COMPILE) --upgrade pyproject.toml --extra serve --extra dashboard --constraint requirements/run.txt --output-file requirements/demo.txt
	@$(COMPILE) --upgrade pyproject.toml --group test --constraint requirements/demo.txt --output-file requirements/test.txt
	@$(COMPILE) --upgrade pyproject.toml --all-extras --constraint requirements/test.txt --output-file requirements/extras.txt
	@$(COMPILE) --upgrade pyproject.toml --group dev --constraint requirements/test.txt --output-file requirements/dev.txt
	@$(COMPILE) --upgrade pyproject.toml --group docs --constraint requirements/test.txt --output-file requirements/docs.txt
	@$(COMPILE) --upgrade requirements/peers.in --output-file requirements/peers.txt
	@$(COMPILE) --upgrade --no-deps requirements/services.in --output-file requirements/services.txt

.PHONY: dist
dist: $(DEV)/.ready ## build the sdist, the wheel and the bill of materials, the same bytes from the same tree
	@$(DEV)/bin/python -m hatchling build -d dist
	@$(DEV)/bin/python tools/sbom.py > dist/standfast.cdx.json

.PHONY: clean
clean: ## remove everything that make has made
	rm -rf .venv .cache .hypothesis dist docs/_build docs/reference/api/*.rst
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(DEV)/.ready: requirements/dev.txt pyproject.toml
	$(call environment,$(DEV),requirements/dev.txt)
$(DEMO)/.ready: requirements/demo.txt pyproject.toml
	$(call environment,$(DEMO),requirements/demo.txt)
$(DOCS)/.ready: requirements/docs.txt pyproject.toml
	$(call environment,$(DOCS),requirements/docs.txt)
