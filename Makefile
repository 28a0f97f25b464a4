# Everything below sets itself up: Python 3.11 or newer and make are all that is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH := benchmarks/results/latest
# Tests start hundreds of processes: without bytecode each of them would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs test test-all lint style types fast bench clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Veilwood needs Python 3.11 or newer; set PYTHON=/path/to/python")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/veilwood demo

lint: style types

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Worksteal keeps the tests of a file in one process, so that what they share is made once.
fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

# mypy takes a minute of one core: it runs beside the tests.
test: style
	$(MAKE) --no-print-directory --jobs=2 --keep-going types fast

test-all: lint
	@echo "Installing PySpark, which needs Java 17 or newer, Ray and MLflow: several hundred megabytes, for slow tests."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[spark,ray]' 'mlflow-skinny>=3.1'
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The site, in build/site/index.html: warnings and broken links are errors. VEILWOOD_DOCS=quick runs no notebook or gallery.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	rm -rf build/site-source
	$(BIN)/python docs/assemble.py build/site-source
	VEILWOOD_ROOT=$(CURDIR) $(BIN)/python -m sphinx -q -W --keep-going -b html build/site-source build/site
	@echo "Written to build/site/index.html."

# A few minutes; what the figures mean, and all other benchmarks, are in benchmarks/README.md.
bench: $(STAMP)
	mkdir -p $(BENCH)
	$(BIN)/python benchmarks/walk.py > $(BENCH)/walk.md
	$(BIN)/python benchmarks/noise.py --repeats 1 --draws 200000 > $(BENCH)/noise.md
	$(BIN)/python benchmarks/counting.py --rows 100000 > $(BENCH)/counting.md
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/strategies.py --draws 1 > $(BENCH)/strategies.md
	@echo "Written to $(BENCH)."

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
