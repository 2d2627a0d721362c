# All set-up is done by the first target that needs it, in a virtual environment of its own.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
BIN = $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# What stands when a step of the set-up is done: an environment, the demonstrations' needs, everything.
MADE = $(VENV)/.made
DEMO = $(VENV)/.demo
READY = $(VENV)/.ready

# An environment serves the clone it was made for: its package is this folder, until it is installed anew.
OWNER := $(shell cat $(MADE) 2>/dev/null)
ifneq ($(OWNER),)
ifneq ($(OWNER),$(CURDIR))
$(error $(VENV) serves the clone in $(OWNER); name another one, as in: make VENV=.venv)
endif
endif

# Tests and their some hundred processes import the package: it is compiled once.
unexport PYTHONDONTWRITEBYTECODE
# The tests' databases wait for a disk at every commit, and none of them has to outlive the machine.
MEMORY := $(shell [ -w /dev/shm ] && echo TMPDIR=/dev/shm)

CHECKS = format style types types-again contracts

.PHONY: help demo demo-plan web test quick slow-tests lint $(CHECKS) check versions oldest house docs bench fuzz crash attack soak fleet incidents clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

$(MADE): constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "triage needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "Set-up, once: a virtual environment in $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --upgrade pip
	@echo "$(CURDIR)" > $(MADE)

$(DEMO): $(MADE) pyproject.toml
	@echo "Set-up, once: triage and what its demonstrations need, some 10 s …"
	@$(INSTALL) --group demo --editable .
	@touch $(DEMO)

$(READY): $(MADE) pyproject.toml
	@echo "Set-up, once: triage, every framework it adapts and the tools of its tests, some 40 s …"
	@$(INSTALL) --group dev --group demo --editable .
	@touch $(READY) $(DEMO)

demo: $(DEMO) ## a real agent against a failing service: bare, under blind retry, under triage
	@$(BIN)/python -m examples.demo $(if $(VERBOSE),--verbose)

demo-plan: $(DEMO) ## an analyst that plans first, over a database and files
	@$(BIN)/python -m examples.plan

web: $(READY) ## a store with runs of every kind, one of them at work, and the page of it
	@$(BIN)/python -m examples.page

test: $(READY) ## every test, on asyncio and trio, in three processes, as many wait: JOBS=3
	$(MEMORY) $(BIN)/python -m pytest -n $(or $(JOBS),3) --dist worksteal

quick: $(READY) ## the tests that take under 30 ms each, on asyncio: run it all the time
	$(BIN)/python -m pytest -n $(or $(JOBS),2) --quick

slow-tests: $(READY) ## measure all tests, and list anew those that `make quick` leaves out
	$(BIN)/python -m pytest -n $(or $(JOBS),2) --list-slow-tests

lint: $(CHECKS) ## format, lint, types twice, import contracts; with -j2 -Otarget two at a time

format: $(READY)
	$(BIN)/ruff format --check .

style: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

types-again: $(READY)
	$(BIN)/pyright --pythonpath $(BIN)/python

contracts: $(READY)
	$(BIN)/lint-imports

check: lint test ## all of it: the same as continuous integration

house: $(READY) ## how far the package is from the shape that it is to have
	$(BIN)/python -m bench.house

versions: ## the quick tests on each Python that is installed, with the newest dependencies
	@for version in 3.11 3.12 3.13 3.14; do \
		python$$version -c '' 2>/dev/null || { echo "Python $$version is not here"; continue; }; \
		echo "Python $$version"; env=$(VENV)-$$version; \
		python$$version -m venv $$env && \
		$$env/bin/python -m pip install --quiet --upgrade pip && \
		$$env/bin/python -m pip install --quiet --upgrade --group dev --group demo --editable . && \
		$$env/bin/python -m pytest -n $(or $(JOBS),2) --quick || exit 1; \
	done

oldest: ## the same on one Python, with the oldest dependencies that are allowed
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet uv
	$(VENV)-oldest/bin/python -m uv pip install --quiet --python $(VENV)-oldest/bin/python \
		--resolution lowest-direct --group dev --group demo --editable .
	$(VENV)-oldest/bin/python -m pytest -n $(or $(JOBS),2) --quick

docs: $(READY) ## the pages as a site, searchable without a network: site/index.html
	$(BIN)/python docs/build_site.py

bench: $(READY) ## figures side by side with other packages and how good diagnoses are
	$(BIN)/python -m bench
	$(BIN)/python -m bench.diagnosis

fuzz: $(READY) ## every harness that draws what it plays, with new seeds: MINUTES=60 SEED=1 ONLY=programs
	$(BIN)/python -m bench.fuzz --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY))

crash: $(READY) ## runs killed at every point and recovered: KILLS=2000 (the long form: 10000) STORES="sqlite postgres"
	PYTHONPATH=tests $(BIN)/python -m engine.crash_matrix $(if $(STORES),--stores $(STORES)) --kills $(or $(KILLS),2000)

attack: $(READY) ## flipped bits of a file, two processes that recover one run, words that soothe: FLIPS=2000 ROUNDS=200
	$(BIN)/python -m bench.flips --flips $(or $(FLIPS),2000)
	$(BIN)/python -m bench.flips --flips $(or $(FLIPS),2000) --as-large
	$(BIN)/python -m bench.races --rounds $(or $(ROUNDS),200)
	$(BIN)/python -m bench.hostile

soak: $(READY) ## ten thousand runs at once, failing in every way: RUNS=10000 ROUNDS=3 BACKEND=asyncio
	$(BIN)/python -m bench.soak --runs $(or $(RUNS),10000) --rounds $(or $(ROUNDS),3) --backend $(or $(BACKEND),asyncio)

fleet: $(READY) ## a fleet on DBOS in a storm: RUNS=200 KILLS=50 WORKERS=4 (the long form: RUNS=10000 KILLS=500 WORKERS=8)
	$(BIN)/python -m bench.fleet --runs $(or $(RUNS),200) --kills $(or $(KILLS),50) --workers $(or $(WORKERS),4)
	$(BIN)/python -m bench.fleet.limits
	$(BIN)/python -m bench.fleet.speed

incidents: $(READY) ## supervisors killed in the middle of their work: INCIDENTS=10000 KILLS=25 STORES="sqlite postgres"
	@for store in $(or $(STORES),sqlite postgres); do for doubt in escalate rerun; do \
		$(BIN)/python -m bench.supervisors --store $$store --in-doubt $$doubt \
			--incidents $(or $(INCIDENTS),10000) --kills $(or $(KILLS),25) || exit 1; \
	done; done

clean: ## forget the virtual environments and caches
	rm -rf $(VENV) $(VENV)-* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
