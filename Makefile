# Everything below sets itself up: a virtual environment in .venv with the pinned dependencies of constraints.txt.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Two files of tests at a time, in the order of tests/conftest.py: the longest first, not those with most tests.
BESIDE := -n 2 --dist loadfile --no-loadscope-reorder
# The interpreter may be called python3 where python3.11 is not on the path.
FOUND := $(shell command -v $(PYTHON) || command -v python3)

.PHONY: demo test soak check format docs clean

demo: $(VENV)/all
	$(BIN)/paceline run quick --db demo/paceline.db
	$(BIN)/paceline report --db demo/paceline.db --study quick --out demo/report.html

test: check
	$(BIN)/pytest $(BESIDE) -m "not alone and not soak" tests/contract tests/integration tests/browser
	$(BIN)/pytest -m "alone and not soak" tests/contract tests/integration

soak: $(VENV)/all
	$(BIN)/pytest $(BESIDE) -m soak tests/contract tests/integration

check: $(VENV)/all
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/mypy $(wildcard benchmarks/*.py tools/*.py)
	$(BIN)/pytest $(BESIDE) tests/unit tests/architecture tests/golden tests/validation

format: $(VENV)/all
	$(BIN)/ruff format src tests benchmarks tools
	$(BIN)/ruff check --fix src tests benchmarks tools

docs: $(VENV)/all
	$(BIN)/python tools/write_docs.py
	$(BIN)/python tools/write_guide.py

$(VENV)/all: pyproject.toml constraints.txt
	@echo "setting up $(VENV) with PyTorch, TensorFlow and JAX (about 3 GB); this takes some minutes, once"
	$(FOUND) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,tensorflow,jax,dev]'
	touch $@

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache
