# The commands of this repository: `make help` lists them.
# Every target sets up .venv first when it is missing, half made, moved, or older than the locks.

PYTHON ?= python3
# How many runs train side by side; empty means one a core. lib reads it from the environment.
WORKERS ?=
# Where they train: empty means on this machine; ray on a Ray cluster, the one that RAY_ADDRESS names
# or one started here.
RUNNER ?=
# Another package index for torch alone, to choose a build; empty means pip's own.
TORCH_INDEX ?=
# One study of the full profile, such as STUDY=examples; empty means all of them.
STUDY ?=
# More arguments for jupyter lab, such as LAB_ARGS=--no-browser.
LAB_ARGS ?=
# The folder that holds the archives of WikiText-103 (make gpu); empty means they are downloaded.
WIKITEXT ?=
export WORKERS RUNNER WIKITEXT

.DEFAULT_GOAL := help
.PHONY: help setup quick reproduce full gpu gpu-check accept bench test test-ray faults
.PHONY: lab book browser lint clean

VENV_PYTHON := .venv/bin/python
# The stamp is written last and holds the folder that .venv was made for.
STAMP := .venv/.stamp
BOOK_STAMP := .venv/.stamp-book
RAY_STAMP := .venv/.stamp-ray
READY := $(STAMP) $(if $(filter ray,$(RUNNER)),$(RAY_STAMP))
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile
	@echo "Variables: PYTHON=python3.12  WORKERS=4  RUNNER=ray  TORCH_INDEX=<index of another torch build>  LAB_ARGS=--no-browser"

setup: $(READY) ## make .venv with exactly the locked versions

quick: $(READY) ## train and measure every study small, one seed, into build/quick
	@$(VENV_PYTHON) -m lib run --profile quick

reproduce: $(READY) ## train everything afresh, redraw figures/, compare with the reference
	@$(VENV_PYTHON) -m lib run --profile default

full: $(READY) ## the long profile: longer training, more seeds; stops and resumes
	@$(VENV_PYTHON) -m lib run --profile full --study "$(STUDY)"

accept: $(STAMP) ## promote build/default to the committed reference (PROFILE=full: what full has finished)
	@$(VENV_PYTHON) -m lib accept --profile $(or $(PROFILE),default) --study "$(STUDY)"

bench: $(STAMP) ## measure what things cost on this machine (GPU where present), into build/bench/
	@$(VENV_PYTHON) -m lib bench

gpu: $(STAMP) ## the main figure on WikiText-103 (downloaded, or WIKITEXT=folder), on one GPU
	@$(VENV_PYTHON) -m lib run --profile gpu

# Without set-up: torch and numpy are enough, so a machine lent for minutes can run it at once. It is
# PYTHON's when that is asked for, else that of .venv where there is one.
gpu-check: ## conformance, timings and a short training on one GPU, into data/reference/gpu/
	@"$(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(VENV_PYTHON)),$(PYTHON)),$(PYTHON))" -m lib gpu-check

# One pytest for both: the workers share out test files and notebooks, a notebook stays whole.
test: $(STAMP) ## unit tests, and every notebook against its committed outputs
	@$(VENV_PYTHON) -m pytest -n $(or $(WORKERS),logical) --maxprocesses 8 --dist loadscope \
	    --nbval --nbval-cell-timeout 120 --ignore tests/browser --ignore tests/faults tests notebooks

faults: $(STAMP) ## break runs in every way that is known: kills, full disks, damage, no network
	@$(VENV_PYTHON) -m pytest -n $(or $(WORKERS),logical) --dist loadfile -v tests/faults

test-ray: $(RAY_STAMP) ## the tests that need a Ray cluster, on one of this machine
	@RUNNER=ray $(VENV_PYTHON) -m pytest tests/test_cluster.py

lab: $(STAMP) ## open the notebooks in JupyterLab, on this machine only
	@$(VENV_PYTHON) -m jupyterlab --ServerApp.ip=127.0.0.1 --ServerApp.root_dir=notebooks $(LAB_ARGS)

book: $(BOOK_STAMP) ## make static pages of the notebooks as committed, into build/book/
	@$(VENV_PYTHON) -m lib book

browser: $(BOOK_STAMP) ## test the pages and JupyterLab in headless Chromium, where it is installed
	@$(VENV_PYTHON) -m pytest tests/browser

lint: $(STAMP) ## check style with ruff
	@$(VENV_PYTHON) -m ruff check .

clean: ## remove build/, data/cache/ and tool caches; .venv stays
	@rm -rf build data/cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	@find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up -------------------------------------------------------------------------------------
# torch comes first: its build is the user's choice, and the locks, installed without resolving,
# then leave it alone. The peers lock (what the conformance tests compare with) adds 8 s and 160 MB
# to about 80 s and 1.3 GB on two cores, so everybody gets it. A complete .venv is brought up to date
# in place when a lock changes; anything else is made anew.
PIP := $(VENV_PYTHON) -m pip install --disable-pip-version-check --no-input --no-compile
LOCKS := requirements.lock requirements-peers.lock

# $(call step,what is done,command): the command's output goes to a log, a failure is one sentence.
define step
@echo "set-up: $(1) …"
@$(2) >>.venv/setup.log 2>&1 || { grep -m 1 '^ERROR' .venv/setup.log; \
    echo "Set-up failed at: $(1). The details are in .venv/setup.log; run 'make setup' to try again."; exit 1; }
endef

$(STAMP): requirements-torch.txt $(LOCKS) pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "There is no '$(PYTHON)' here: install Python 3.11 or newer, or name it with PYTHON=/path/to/python3."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "'$(PYTHON)' is $$("$(PYTHON)" --version 2>&1): Python 3.11 or newer is needed; name one with PYTHON=/path/to/python3."; exit 1; }
	@if [ "$$(cat $(STAMP) 2>/dev/null)" = "$$(pwd -P)" ]; then rm $(STAMP); else rm -rf .venv; fi
	@mkdir -p .venv && : >.venv/setup.log
	$(call step,a virtual environment in .venv,"$(PYTHON)" -m venv .venv)
	$(call step,torch (about 200 MB; a CUDA build takes several GB),$(PIP) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") -r requirements-torch.txt)
	$(call step,the locked packages,$(PIP) --no-deps --require-hashes $(LOCKS:%=-r %))
	$(call step,this repository,$(PIP) --no-deps --no-build-isolation -e .)
	@pwd -P >$(STAMP)
	@echo "set-up: ready."

# Only the pages and their tests need these.
$(BOOK_STAMP): $(STAMP) requirements-book.lock
	$(call step,what makes the pages (about 70 MB),$(PIP) --no-deps --require-hashes -r requirements-book.lock)
	@touch $@

# Only RUNNER=ray and its tests need this.
$(RAY_STAMP): $(STAMP) requirements-ray.lock
	$(call step,Ray (about 80 MB),$(PIP) --no-deps --require-hashes -r requirements-ray.lock)
	@touch $@
