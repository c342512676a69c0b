# Two commands do everything, on a machine with Python 3.11 to 3.13, git and make:
#   make reproduce   the study and its tables      make test   all checks and tests
# `make help` lists the rest. They keep to .venv in this folder; nothing else is installed.

# Tools that report on their users are told not to.
export DVC_NO_ANALYTICS = true
export MLFLOW_DISABLE_TELEMETRY = true
export DO_NOT_TRACK = 1

BIN = .venv/bin
SETTINGS = PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)'
# Two worker processes share the tests, those with a common fixture in one of them (tests/conftest.py).
SHARED = -n 2 --dist loadgroup --no-loadscope-reorder
IN_VENV = PATH="$(CURDIR)/$(BIN):$$PATH"

# $(call phase,title,command): run it and say how long it took.
phase = @echo "== $(1)"; start=$$(date +%s); $(IN_VENV) $(2) || exit; echo "== $(1): $$(($$(date +%s) - start)) s"

.DEFAULT_GOAL := help
.PHONY: help reproduce test test-slow test-faults test-scale test-slurm test-remote test-studies lint format constraints clean environment test-environment

help: ## show this list
	@echo "usage: make TARGET [PYTHON=python3.12] [TORCH_INDEX=URL]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "settings:"
	@echo "  PYTHON       interpreter to use, 3.11 to 3.13 (default: the first of these found)"
	@echo "  TORCH_INDEX  package index of PyTorch, kept for later calls (default: that of pip; Linux: with CUDA);"
	@echo "               https://download.pytorch.org/whl/cpu has builds without CUDA, 3 GB smaller"

reproduce: environment ## make the environment, run the active studies, print their tables
	@$(IN_VENV) attnprior run

test: lint ## make the environment, check style and types, run all tests but the slow ones
	@echo "== pytest"
	@OMP_NUM_THREADS=1 $(IN_VENV) python -m pytest $(SHARED)

test-slow: test-environment ## run the slow tests
	@OMP_NUM_THREADS=1 $(IN_VENV) python -m pytest -m slow

test-faults: test-environment ## change every key and module; kills, damage, clones, servers (installs servers)
	@sh tools/faults.sh
	@OMP_NUM_THREADS=1 $(IN_VENV) python -m pytest $(SHARED) -m faults

test-scale: test-environment ## measure every command on a study of 2,000 jobs (half an hour)
	@OMP_NUM_THREADS=1 $(IN_VENV) python -m pytest -m scale

test-slurm: test-environment ## run a small study on a real Slurm of its own (installs it: Debian, Ubuntu)
	@sh tools/slurm.sh
	@OMP_NUM_THREADS=1 $(IN_VENV) python -m pytest -m slurm

test-remote: test-environment ## run a small study on nodes that share no file system, through an S3 server
	@sh tools/remote.sh
	@OMP_NUM_THREADS=1 $(IN_VENV) python -m pytest -m nofs

test-studies: test-environment ## train each combination of the papers' studies for 50 steps (hours)
	@OMP_NUM_THREADS=1 $(IN_VENV) python -m pytest -m studies

lint: test-environment ## check style, the workflow and types
	$(call phase,ruff check,ruff check .)
	$(call phase,ruff format,ruff format --check .)
	$(call phase,snakefmt,snakefmt --check Snakefile workflow)
	$(call phase,snakemake --lint,snakemake --lint)
	$(call phase,mypy,mypy src)

format: test-environment ## bring Python and Snakemake files into the form that lint asks for
	@$(BIN)/ruff check --fix --exit-zero .
	@$(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile workflow

environment: ## make or update .venv, without running anything
	@$(SETTINGS) sh tools/environment.sh run

test-environment:
	@$(SETTINGS) sh tools/environment.sh test

constraints: ## write constraints/ anew, with python3.11, python3.12 and python3.13
	@for v in 3.11 3.12 3.13; do python$$v tools/constraints.py || exit; done

clean: ## delete caches of tools and build folders; results, checkpoints and .venv stay
	@rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .hypothesis src/*.egg-info
	@find src tests tools workflow -name __pycache__ -type d -prune -exec rm -rf {} +
