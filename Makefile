# make check    lint, check types, run the fast tests of this checkout
# make test     lint, check types, run the tests of the built wheel
# make families compare a tiny model of every type with eager transformers, images and videos (ten minutes on one core); CI does nightly
# make stress   run the tests that kill, attack, train and measure, of the built wheel
# make types    check types alone
# make demo     trace the embedded model and write a report
# make perf     measure what tracing costs
# make gpu     check and measure on a GPU, under nine minutes; goes on with what is missing
# make organisms plant the models with known causes that are not planted yet (under an hour on two cores)
# make docs     write the tables that are made from code
# make site     build the pages, the notebooks and two reports in build/site
# Each target sets up what it needs in $(VENV).
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
PACKAGES := analyses benchmarks cache configs diagnosis interventions models probes stats traces training viz
SOURCES := $(shell find mmprobe $(PACKAGES) -type f ! -name '*.pyc') pyproject.toml setup.py README.md
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# A worker that has nothing left to do takes tests from another one. Each has one core.
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -n $(WORKERS) --dist worksteal

.PHONY: check test families stress lint types links demo perf gpu docs site organisms model-card format clean

check: lint types $(VENV)/.editable
	$(PYTEST) -m "not slow and not browser and not stress" tests

test: lint types $(VENV)/.wheel $(VENV)/.browser
	$(PYTEST) $(PYTEST_OPTIONS) -m "not stress" tests

stress: $(VENV)/.dev $(VENV)/.wheel
	$(PYTEST) $(PYTEST_OPTIONS) -m stress tests

families: $(VENV)/.editable
	$(PIP) install -c constraints.txt torchvision timm num2words
	$(PYTEST) tests/models/test_types.py tests/models/test_videos.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy and the reference need the packages as they are installed, so they get a folder of links.
links:
	rm -rf build/types
	mkdir -p build/types/mmprobe
	ln -s $(addprefix $(CURDIR)/,$(wildcard mmprobe/*) $(PACKAGES)) build/types/mmprobe

types: $(VENV)/.dev links
	cd build/types && $(abspath $(BIN))/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p mmprobe

demo: $(VENV)/.wheel
	$(BIN)/mmprobe demo --out mmprobe-demo

perf: $(VENV)/.wheel
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python perf/report.py

gpu: $(VENV)/.wheel
	$(BIN)/python perf/gpu.py --out docs/performance-gpu.md

docs: $(VENV)/.wheel
	$(BIN)/python scripts/write_format_doc.py
	$(BIN)/python scripts/write_families_doc.py
	$(BIN)/python scripts/write_analyses_doc.py
	$(BIN)/python scripts/write_scale_doc.py
	$(BIN)/python scripts/write_organisms_doc.py

# A warning is an error. The notebooks run while the site is built.
site: $(VENV)/.editable $(VENV)/.site links
	rm -rf build/site build/demo build/reports
	$(BIN)/mmprobe demo --out build/demo
	mkdir -p build/reports
	cp build/demo/*.html build/reports
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 OMP_WAIT_POLICY=PASSIVE PLOTLY_RENDERER=notebook \
		PYTHONWARNINGS=ignore $(BIN)/mkdocs build --strict

organisms: $(VENV)/.editable
	$(BIN)/python -W ignore scripts/organisms/plant.py & $(BIN)/python -W ignore scripts/organisms/plant.py; wait
	$(BIN)/python scripts/write_organisms_doc.py

model-card: $(VENV)/.wheel
	for name in tiny-spd tiny-llava; do $(BIN)/python scripts/evaluate_tiny_spd.py --model $$name --write-card || exit 1; done

format: $(VENV)/.dev
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# The requirements at the tested versions. They are installed again only when they change.
$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt pip setuptools wheel
	@echo "Installing mmprobe's requirements; the first time this takes a few minutes."
	$(BIN)/python scripts/requirements.py core | xargs $(PIP) install -c constraints.txt
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python scripts/requirements.py dev | xargs $(PIP) install -c constraints.txt
	touch $@

$(VENV)/.site: $(VENV)/.dev
	$(BIN)/python scripts/requirements.py site | xargs $(PIP) install -c constraints.txt
	touch $@

# mmprobe itself is installed either as the wheel that users get or as links to this checkout.
$(VENV)/.wheel: $(VENV)/.core $(SOURCES)
	rm -rf build/lib build/bdist.* build/dist $(VENV)/.editable
	$(PIP) wheel --no-deps --no-build-isolation -w build/dist .
	$(PIP) install --no-deps --force-reinstall build/dist/*.whl
	touch $@

$(VENV)/.editable: $(VENV)/.dev
	rm -f $(VENV)/.wheel
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

# Try once to get a Chromium for the browser tests; without one they are skipped.
$(VENV)/.browser: $(VENV)/.dev
	-sh scripts/install_browser.sh $(BIN)/python
	touch $@

clean:
	rm -rf build $(VENV) mmprobe-demo
