# Everything below sets itself up: Python 3.11 or newer and make are all that is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
STAMP := $(VENV)/.installed
PROJECTS := $(wildcard packages/*/pyproject.toml) reproductions/pyproject.toml
# Modules are compiled when they are first imported: most of them never are.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
BENCH := benchmarks/results/latest
# Folders with tests of their own that mypy checks one by one: test files of two packages may have the same name.
TYPED_TESTS := packages/veilwood-audit/tests packages/veilwood-engines/tests packages/veilwood-secure/tests packages/veilwood-service/tests reproductions/tests
# Tests start hundreds of processes: without bytecode each of them would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs test test-all lint style types fast lock bench clean

# The core alone: all that `make demo` needs. hatchling is installed once, so that builds need no environments of their own.
$(CORE): packages/veilwood/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Veilwood needs Python 3.11 or newer; set PYTHON=/path/to/python")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'hatchling>=1.28' 'editables>=0.5'
	$(PIP) --no-build-isolation -e 'packages/veilwood[plots]'
	touch $(CORE)

# Tools may come as sources with a build system of their own (reuse needs poetry), so only our packages are built without isolation.
$(STAMP): $(CORE) $(PROJECTS) requirements-test.txt requirements-dev.txt
	$(PIP) -r requirements-dev.txt
	$(PIP) --no-build-isolation -r requirements-test.txt
	touch $(STAMP)

demo: $(CORE)
	$(BIN)/veilwood demo

lint: style types

# Code, layers, workflows, licences and metadata: seconds, without a network.
style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/zizmor --offline --quiet .github
	@if git rev-parse --git-dir >/dev/null 2>&1; then echo $(BIN)/reuse lint; $(BIN)/reuse lint --quiet; \
	  else echo "Licences are not checked: git is needed to tell which files are part of the project."; fi
	VALIDATE_PYPROJECT_NO_NETWORK=1 $(BIN)/validate-pyproject $(PROJECTS)

# Exact versions and hashes of the environment of tests (PEP 751). Such a file names the addresses it was resolved from,
# so it is made where it is used: by CI for every run, and here for yours.
lock:
	uv pip compile --quiet requirements-test.txt --format pylock.toml -o pylock.toml

types: $(STAMP)
	$(BIN)/mypy
	for folder in $(TYPED_TESTS); do $(BIN)/mypy $$folder || exit 1; done

# Worksteal keeps the tests of a file in one process, so that shared fixtures are made once.
fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

# mypy takes a minute of one core: it runs beside the tests.
test: style
	$(MAKE) --no-print-directory --jobs=2 --keep-going types fast

# dp-accounting needs an attrs below 24.
test-all: lint
	@echo "Installing PySpark, which needs Java 17 or newer, Ray, MLflow and a solver: several hundred megabytes, for slow tests."
	$(PIP) --no-build-isolation -e 'packages/veilwood-engines[spark,ray]' 'mlflow-skinny>=3.1' 'hypothesis-crosshair>=0.0.31' 'attrs<24'
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The site, in build/site/index.html: warnings and broken links are errors. VEILWOOD_DOCS=quick runs no notebook or gallery.
docs: $(STAMP)
	$(PIP) -r requirements-docs.txt
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
