# make demo | make test: each does all the set-up it needs. CPU is enough.
PYTHON ?= python3
WORKERS ?= 2

BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: setup demo test slow bench

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("perdure needs Python 3.10 or newer: make PYTHON=python3.12 ..." if sys.version_info < (3, 10) else 0)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/perdure demo

# Workers of one thread each get through more tests than one process with all the threads. The last NumPy for Python 3.10 does
# not know what an array holds unless it is told, so that arrays of anything are allowed there.
test: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $$($(BIN)/python -c 'import sys; print("--allow-any-generics" * (sys.version_info < (3, 11)))')
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

# Minutes of training on real features; skipped with a reason where PERDURE_DATA or ../shared/data is absent.
slow: setup
	OMP_NUM_THREADS=1 PERDURE_CHECK_SHAPES=0 $(BIN)/python -m pytest -m slow -n $(WORKERS)

bench: setup
	$(BIN)/python benchmarks/step.py
