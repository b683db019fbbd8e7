# make check    lint, check types, run the fast tests of this checkout
# make test     lint, run the tests of the built wheel
# make families compare a tiny model of every type with eager transformers, images and videos, also those that need torchvision (six minutes of one core); CI does nightly
# make exhaustive  run what `make test` leaves out of all types, methods and pages (ten minutes on two cores), of the built wheel
# make stress   run the tests that kill, attack, train and measure, of the built wheel
# make research run the tests of the experiments that made thresholds, organisms and tables; CI does nightly
# make real     build the real model in build/real (93 MB are downloaded) and run its tests (12 minutes on two cores)
# make types    check types alone
# make demo     trace the embedded model and write a report
# make demo-real the same with the real model (93 MB are downloaded), in build/demo-real: six minutes on two cores
# make perf     measure what tracing costs
# make gpu     check and measure on a GPU, under nine minutes; a second call measures what is missing
# make organisms plant the models with known causes that do not ship, in build/organisms (under an hour on two cores)
# make docs     write the tables that are made from code
# make site     build the pages, the notebooks and two reports in build/site
# Each target sets up what it needs in $(VENV).
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 3
BIN := $(VENV)/bin
# In mmprobe/ a link leads to each folder of the package.
SOURCES := $(shell find -L mmprobe -type f ! -name '*.pyc') pyproject.toml README.md
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# A worker that has nothing left to do takes tests from another one. Three on two cores: one of them waits for the disk or a page.
PYTEST := OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/pytest -n $(WORKERS) --dist worksteal

.PHONY: check test exhaustive families research stress real lint types demo demo-real perf gpu docs site organisms model-card format clean

check: lint types $(VENV)/.editable
	$(PYTEST) --ignore tests/research -m "not slow and not browser and not stress and not real and not exhaustive" tests

test: lint $(VENV)/.wheel $(VENV)/.browser
	$(PYTEST) $(PYTEST_OPTIONS) --ignore tests/research -m "not stress and not real and not exhaustive" tests

exhaustive: $(VENV)/.dev $(VENV)/.wheel
	$(PYTEST) $(PYTEST_OPTIONS) --ignore tests/research -m "exhaustive and not stress" tests

stress: $(VENV)/.dev $(VENV)/.wheel
	$(PYTEST) $(PYTEST_OPTIONS) -m stress tests

real: $(VENV)/.dev $(VENV)/.wheel
	$(BIN)/python -W ignore scripts/real_model/build_real_model.py
	MMPROBE_REQUIRE_REAL=1 $(PYTEST) tests/real

families: $(VENV)/.editable
	$(PIP) install -c constraints.txt torchvision timm num2words
	$(PYTEST) tests/models/test_types.py tests/models/test_videos.py

research: $(VENV)/.editable
	$(PYTEST) tests/research

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy -p mmprobe

demo: $(VENV)/.wheel
	$(BIN)/mmprobe demo --out mmprobe-demo

demo-real: $(VENV)/.wheel
	@echo "The language model is downloaded (93 MB) unless it is here. Building, tracing and reading take up to six minutes on two cores."
	$(BIN)/python -W ignore scripts/real_model/build_real_model.py
	test -d build/demo-real/pairs || $(BIN)/mmprobe make-pairs --source things --out build/demo-real/pairs --n 2 --seed 3
	$(BIN)/mmprobe trace --model build/real --data build/demo-real/pairs/samples.jsonl --out build/demo-real/run \
		--capture full --max-new-tokens 48 --batch-size 8 $$(test ! -d build/demo-real/run || echo --resume)
	$(BIN)/mmprobe analyze build/demo-real/run --only image-interchange --model build/real --resume
	$(BIN)/mmprobe report build/demo-real/run --model build/real --out build/demo-real/report.html

perf: $(VENV)/.wheel
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python perf/report.py

gpu: $(VENV)/.wheel
	$(BIN)/python perf/gpu.py --out docs/performance-gpu.md

docs: $(VENV)/.wheel
	$(BIN)/python scripts/write_format_doc.py
	$(BIN)/python scripts/write_families_doc.py
	$(BIN)/python scripts/write_analyses_doc.py
	$(BIN)/python scripts/write_methods_doc.py
	$(BIN)/python scripts/write_scale_doc.py
	$(BIN)/python scripts/write_organisms_doc.py
	$(BIN)/python scripts/write_diagnosis_doc.py

# A warning is an error. The notebooks run while the site is built.
site: $(VENV)/.editable $(VENV)/.site
	rm -rf build/site build/demo build/reports
	$(BIN)/mmprobe demo --out build/demo
	mkdir -p build/reports
	cp build/demo/*.html build/reports
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 OMP_WAIT_POLICY=PASSIVE PLOTLY_RENDERER=notebook \
		PYTHONWARNINGS=ignore $(BIN)/mkdocs build --strict

organisms: export PYTHONPATH := scripts:research:research/organisms
organisms: $(VENV)/.editable
	$(BIN)/python -W ignore research/organisms/plant.py & $(BIN)/python -W ignore research/organisms/plant.py; wait
	$(BIN)/python scripts/write_organisms_doc.py --all

model-card: $(VENV)/.wheel
	$(BIN)/python scripts/evaluate_tiny_spd.py --write-card

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
