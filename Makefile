# Every target makes what it needs; a second call installs nothing again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

export OMP_WAIT_POLICY = PASSIVE

.PHONY: help test test-fast numeric campaign browser check format bench accuracy docs demo results clean

help:
	@echo "make demo    digits on colored paper: ERM fails at shifted sites, GPA repairs it without labels; a minute"
	@echo "make test    the whole test suite"
	@echo "make test-fast  the tests that take little time, for the inner loop; about a minute"
	@echo "make numeric the tests that depend on rounding, in the arithmetic of other processors"
	@echo "make campaign   20,000 hostile inputs, half an hour on two free cores; goes on where it was stopped, record in campaign/"
	@echo "make browser chromium for the tests of the report page (Debian or Ubuntu, as root)"
	@echo "make check   formatting, lint, types, layers, the package itself"
	@echo "make format  let ruff format and fix"
	@echo "make bench   speed against peers, and the table of the accuracy study; about ten minutes"
	@echo "make accuracy   the accuracy study itself, over an hour on two cores"
	@echo "make docs    the documentation site, into site/; a broken link, docstring or address stops it"
	@echo "make results the tables and figures of the results pages from the records, and which records are stale"

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dask,dev,docs,bench,images,onnx,mlflow]'
	touch $@

test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test-fast: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not slow"

campaign: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m campaign.run --jobs 2 --out campaign

# What depends on rounding, in the arithmetic of other processors: each reaches its certificate on all of them.
NUMERIC := tests/test_solvers.py tests/test_posterior.py tests/test_uncertainty.py tests/calibration tests/golden \
	tests/properties tests/campaign tests/adaptation/test_joint.py tests/adaptation/test_certificates.py tests/adaptation/test_rows.py
numeric: $(INSTALLED)
	for capability in default avx2; do \
	  ATEN_CPU_CAPABILITY=$$capability OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(NUMERIC) || exit 1; \
	done

browser:
	{ command -v chromium && command -v chromedriver; } > /dev/null \
	|| { test "$$(id -u)" = 0 && { apt-get update -qq; apt-get install -y -qq chromium chromium-driver > /dev/null; }; } \
	|| echo "no chromium, and no way to install it here: the tests in a browser are skipped"

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	rm -rf build dist
	$(BIN)/python -m build --no-isolation --outdir dist > /dev/null
	$(BIN)/twine check --strict dist/*

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED)
	$(BIN)/python benchmarks/speed.py --out benchmarks/results.json
	$(BIN)/python benchmarks/accuracy.py table benchmarks/accuracy.jsonl.gz
	$(BIN)/python benchmarks/training.py

accuracy: $(INSTALLED)
	$(BIN)/python benchmarks/accuracy.py run --out results/accuracy.jsonl --jobs 2
	$(BIN)/python benchmarks/accuracy.py table results/accuracy.jsonl

docs: $(INSTALLED)
	$(BIN)/zensical build --clean --strict
	$(BIN)/python -m pytest tests/docs/test_site.py

demo: $(INSTALLED)
	$(BIN)/sitewise demo

results: $(INSTALLED)
	$(BIN)/python experiments/update_results.py

clean:
	rm -rf $(VENV) .cache build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
