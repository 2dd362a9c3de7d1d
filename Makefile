# make demo     train a small language model with two replicas on this machine, and sample from it
# make test     lint, types, import rules and the test suite
# make long     the tests that take long; with those of make test they are all
# make chaos    tear its files, kill the sync service at random instants, and look what it makes of that
# make fuzz     send the sync service malformed pushes, and look what it makes of them
# make simulate misfortunes at every instant of a round, and two thousand schedules of them
# make help     every target
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests at a time, for two processors: many wait most of their time. Of the long ones, most start
# several processes that do not.
WORKERS ?= 3
LONG_WORKERS ?= 2
# Of each mode, by make simulate.
SCHEDULES ?= 400
INSTALLED := $(VENV)/.installed
SCHEMA := proto/syncline_proto/schema/syncline/sync/v1

.PHONY: help install demo test lint types unit long chaos fuzz simulate generate clean benchmarks

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# An older pip shows nothing for the minute in which it installs what it has collected.
$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or newer is needed: set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, this is $$($(PYTHON) -V): set PYTHON=..."; exit 1; }
	@echo 'Installing into $(VENV): about 2 GB, a few minutes.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $@

install: $(INSTALLED)  ## Make .venv with everything in it

demo: $(INSTALLED)  ## Train a small language model with two replicas, then sample from it
	$(BIN)/syncline demo

test: lint types unit  ## Lint, types, import rules and the suite

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd proto && ../$(BIN)/buf lint

types: $(INSTALLED)
	$(BIN)/pyright

unit: $(INSTALLED)
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not long"

long: $(INSTALLED)  ## The tests that the suite leaves out since they take long
	$(BIN)/pytest -n $(LONG_WORKERS) --dist worksteal -m long

# CHAOS="--durability async --shards 2 --kills 30" is another storm; --help names all there is.
chaos: $(INSTALLED)  ## Tear files, and kill the sync service 60 times: nothing is lost or counts twice
	$(BIN)/pytest tests/chaos/test_torn*.py
	PYTHONPATH=tests $(BIN)/python -m chaos $(CHAOS)

fuzz: $(INSTALLED)  ## Send the sync service malformed pushes for minutes: nothing changes, nothing grows
	PYTHONPATH=tests $(BIN)/python -m fuzz

# SCHEDULES=5000 draws more of them, of each mode.
simulate: $(INSTALLED)  ## Simulate all misfortunes at every instant of a round, and two thousand schedules
	SYNCLINE_SCHEDULES=$(SCHEDULES) $(BIN)/pytest -n $(LONG_WORKERS) --dist worksteal -m long \
	  tests/unit/test_instants.py tests/unit/test_swarm.py

generate: $(INSTALLED)  ## Generate the gRPC stubs from the schema
	PATH=$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -Isyncline_proto/v1=$(SCHEMA) \
	  --python_out=proto --grpc_python_out=proto --mypy_out=quiet:proto \
	  --mypy_grpc_out=quiet:proto syncline_proto/v1/sync.proto \
	  syncline_proto/v1/checkpoints.proto

# One that misses what is asked of it ends with 1; the others are taken all the same.
benchmarks: $(INSTALLED)  ## Take the figures: demo, wire, memory, overhead; each ends in one line of JSON
	@missed=0; for one in demo wire memory overhead; do \
	  $(BIN)/python benchmarks/$$one.py || missed=1; \
	done; exit $$missed

clean:  ## Remove .venv and what tools leave behind
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
