# Two commands on a fresh machine: `make demo` and `make test`. Each makes its own virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test check lint docs calibrations claims clean

HYBRIDPERF_DATA ?= ../shared/data

demo: $(VENV)/.core
	$(BIN)/hybridperf demo --folder demo-out

# two files at a time, each in one process: what a file measures or compiles is shared among its tests
PYTEST_ARGS ?= -n 2 --dist loadfile --no-loadscope-reorder

# one thread of BLAS and OpenMP each: those of two processes would wait for each other on two cores
test check: export OPENBLAS_NUM_THREADS = 1
test check: export OMP_NUM_THREADS = 1

# what one process compiled of a module the next one reads, also where Python is told to write nothing beside sources:
# tests start hundreds of processes, each of which would compile JAX's and our modules again (4.6 s instead of 1.8)
test check lint docs: export PYTHONDONTWRITEBYTECODE =
test check lint docs: export PYTHONPYCACHEPREFIX = $(abspath $(VENV))/bytecode

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# lint, types, and the tests of the rooms that differ from BASE
BASE ?= HEAD
check: lint
	$(BIN)/python tests/support/touched.py $(BASE) | xargs -r $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@mkdir -p $(VENV)/types && ln -sfn $(CURDIR)/calibration $(VENV)/types/hybridperf_calibration
	MYPYPATH=$(VENV)/types $(BIN)/mypy -p hybridperf -p hybridperf_calibration

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

# what is shipped: the prior over all measured GPUs and a calibration of each (20 minutes; goes on where it was stopped)
calibrations: $(VENV)/.dev
	$(BIN)/hybridperf calibrations --data $(HYBRIDPERF_DATA) --folder calibration/hardware

# accuracy on published measurements, a claim each (hours; `make claims CLAIMS=steps`; `CLAIMS_ARGS=--quick` takes minutes)
CLAIMS ?= steps serving collectives devices lin models sparse stragglers topology jobs runs plans agreement programs requests traces
claims: $(VENV)/.dev
	for name in $(CLAIMS); do $(BIN)/python -m benchmarks.claims $$name --data $(HYBRIDPERF_DATA) --out claims-out/$$name $(CLAIMS_ARGS) || exit 1; done

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "hybridperf needs Python 3.11 or newer, this is %s; try: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.python pyproject.toml setup.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# modules are compiled when they are first imported: most of these twenty thousand never are
$(VENV)/.dev: $(VENV)/.python pyproject.toml setup.py
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) demo-out claims-out build *.egg-info
