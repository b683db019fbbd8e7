# make demo    set up, trace the embedded model, write a report
# make test    set up, lint, type-check the installed wheel, run all tests
# make perf    measure what tracing costs
# make docs    write the tables that are made from code
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(shell find mmprobe analyses benchmarks cache configs interventions models probes traces viz -type f ! -name '*.pyc') pyproject.toml README.md

.PHONY: demo test perf docs model-card format clean

demo: $(VENV)/.wheel
	$(BIN)/mmprobe demo --out mmprobe-demo

test: $(VENV)/.wheel $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd build && ../$(BIN)/mypy --config-file ../pyproject.toml -p mmprobe  # from elsewhere, so that it is the wheel
	$(BIN)/pytest -n 2 tests

perf: $(VENV)/.wheel
	$(BIN)/python perf/report.py

docs: $(VENV)/.wheel
	$(BIN)/python scripts/write_format_doc.py
	$(BIN)/python scripts/write_families_doc.py
	$(BIN)/python scripts/write_analyses_doc.py

model-card: $(VENV)/.wheel
	$(BIN)/python scripts/evaluate_tiny_spd.py --write-card

format: $(VENV)/.dev
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# The project's requirements at the tested versions; installed anew only when they change.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip setuptools wheel
	@echo "Installing mmprobe's requirements; the first time this takes a few minutes."
	$(BIN)/python scripts/requirements.py core | xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python scripts/requirements.py dev | xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
	touch $@

# What is tested is the built wheel, as users get it.
$(VENV)/.wheel: $(VENV)/.core $(SOURCES)
	rm -rf build
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w build/dist .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/dist/*.whl
	touch $@

clean:
	rm -rf build $(VENV) mmprobe-demo
