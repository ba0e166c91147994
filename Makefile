# One command each; CONTRIBUTING.md has the same as plain pip and python commands.

PYTHON ?= python3
VENV ?= .venv
TOPIC ?= electric bicycles
export TOPIC
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test lint docs reference format check wheel clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/run.stamp ## Set up, then run the analyst workflow (TOPIC="..." changes its topic)
	$(BIN)/flowforge run workflows/analyst.yaml -i topic="$$TOPIC"

test: $(VENV)/dev.stamp ## Set up, then run all tests, on up to four cores
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

lint: $(VENV)/dev.stamp ## Set up, then run every linter and type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/codespell

docs: $(VENV)/dev.stamp ## Set up, then build the site of docs/ into site/; a dead link is an error
	$(BIN)/zensical build --strict

reference: $(VENV)/dev.stamp ## Set up, then write the pages of docs/ that are made from the code
	$(BIN)/python -m flowforge.reference docs

format: $(VENV)/dev.stamp ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint docs test ## What CI runs

wheel: $(VENV)/dev.stamp ## Build dist/*.tar.gz and from it dist/*.whl
	$(BIN)/python -m build --no-isolation

clean: ## Remove the virtual environment and what was built
	rm -rf $(VENV) build dist site .cache *.egg-info

# A stamp, and not the interpreter's link: that one is there before an interrupted set-up is done. An
# environment that works is kept, whoever made it.
$(VENV)/venv.stamp:
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "error: no '$(PYTHON)' here; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: FlowForge needs Python 3.11 or newer, got $$("$(PYTHON)" --version 2>&1);" \
		       "name another: make PYTHON=python3.11 ..." >&2; exit 1; }
	@"$(BIN)/python" -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv "$(VENV)"
	@touch $@

# The stamps hold make to one installation for each state of these two files.
$(VENV)/run.stamp: pyproject.toml constraints.txt | $(VENV)/venv.stamp
	@echo "installing FlowForge into $(VENV) (a few minutes the first time)"
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/venv.stamp
	@echo "installing FlowForge and its development tools into $(VENV) (a few minutes the first time)"
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/run.stamp
