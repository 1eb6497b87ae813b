# Everything below sets itself up: a virtual environment in .venv with the pinned dependencies of constraints.txt.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# `make test REQUIRE=machines` fails where tests of several machines would be skipped (no root, no sshd).
REQUIRE ?=
export PACELINE_REQUIRE := $(REQUIRE)
# Four groups of tests at a time, as some mostly wait, made and put in order by tests/conftest.py.
IN_PARALLEL := -n 4 --no-loadscope-reorder
# The interpreter may be called python3 where python3.11 is not on the path.
INTERPRETER := $(shell command -v $(PYTHON) || command -v python3)

# `make demo FRAMEWORKS=torch` (or torch,jax) installs and tries only these; its stamp is its own, so that a later
# `make test` still installs the rest.
FRAMEWORKS ?=
COMMA := ,
DEMO_STAMP := $(VENV)/$(if $(FRAMEWORKS),demo-$(subst $(COMMA),-,$(FRAMEWORKS)),all)
DEMO_torch := torch-ddp
DEMO_tensorflow := tf-mirrored
DEMO_jax := jax-data
DEMO_NAMES := $(foreach name,$(subst $(COMMA), ,$(FRAMEWORKS)),$(or $(DEMO_$(name)),$(error FRAMEWORKS=$(FRAMEWORKS): \
  $(name) is not one of torch, tensorflow, jax)))
SPACE := $(subst ,, )
DEMO_CHOICE := $(if $(FRAMEWORKS),--strategy $(subst $(SPACE),$(COMMA),$(DEMO_NAMES)))

.PHONY: demo test soak check format docs clean

demo: demo-plan $(DEMO_STAMP)
	$(BIN)/paceline run quick $(DEMO_CHOICE) --db demo/paceline.db
	$(BIN)/paceline report --db demo/paceline.db --study quick --out demo/report.html

.PHONY: demo-plan
demo-plan:
	@echo "make demo installs $(if $(FRAMEWORKS),$(FRAMEWORKS),PyTorch, TensorFlow and JAX) into $(VENV) (some minutes, the first time only),"
	@echo "trains a small CNN on real digits with one worker and with two, three times each (about a minute for each framework),"
	@echo "and ends with a table and the path of a report. It writes into $(VENV) and demo/ only; stopped, it goes on where it was."

test: check
	$(BIN)/pytest $(IN_PARALLEL) -m "not alone and not soak" tests/contract tests/integration tests/campaign tests/browser
	$(BIN)/pytest -m "alone and not soak" tests/contract tests/integration

# `make soak MINUTES=30` is the campaign alone: kills, signals, hostile input and damage by chance (tests/campaign).
soak: $(VENV)/all
ifdef MINUTES
	cd tests && ../$(BIN)/python -m campaign --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))
else
	$(BIN)/pytest $(IN_PARALLEL) -m soak tests
endif

check: $(VENV)/all
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/mypy $(wildcard benchmarks/*.py tools/*.py)
	$(BIN)/pytest $(IN_PARALLEL) tests/unit tests/architecture tests/golden tests/validation

format: $(VENV)/all
	$(BIN)/ruff format src tests benchmarks tools
	$(BIN)/ruff check --fix src tests benchmarks tools

docs: $(VENV)/all
	$(BIN)/python tools/write_docs.py
	$(BIN)/python tools/write_guide.py
	$(BIN)/python tools/write_accuracy.py

$(VENV)/all: pyproject.toml constraints.txt
	@echo "setting up $(VENV) with PyTorch, TensorFlow and JAX (about 3 GB); this takes some minutes, once"
	$(INTERPRETER) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,tensorflow,jax,dev]'
	touch $@

$(VENV)/demo-%: pyproject.toml constraints.txt
	$(INTERPRETER) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(FRAMEWORKS)]'
	touch $@

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .mypy_cache .ruff_cache
