# `make demo` trains a model, `make test` passes the tests. Both install what they need into .venv, and are quick the second time.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Without byte code each of a thousand processes would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(CURDIR)/.venv/bin
# Pins what is installed and also what builds it. -qq: of pip's words only the errors.
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
SLURM_PACKAGES := slurm-wlm slurmdbd munge mariadb-server shellcheck openmpi-bin environment-modules zstd rsync tmux chromium nftables iproute2
# Many tests wait for Slurm: four at a time keep two cores busy.
PYTEST_ARGS ?= -n 4 --dist worksteal

.PHONY: help
help: ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: .venv/demo ## train examples/digits on two ranks, here and now
	@cd examples/digits && $(BIN)/serried run digits
	@printf '\nto have serried in this shell: . .venv/bin/activate\n'

.PHONY: test
test: .venv/test slurm sshd containers lint ## install what the tests need, a real Slurm included, and pass them
	@$(BIN)/python -m pytest $(PYTEST_ARGS) $(if $(CI),--reruns 2)

# What starts Slurm, torch or whole runs is left to `make test`. Few of these tests wait: one more at a time keeps all cores busy.
FAST_ARGS ?= -n $(shell expr $$(nproc) + 1) --maxprocesses 8 --dist worksteal
.PHONY: test-fast
test-fast: .venv/test ## pass the tests that need no Slurm, no torch and no whole run: a minute on two cores
	@$(BIN)/python -m pytest $(FAST_ARGS) -m 'not slurm and not torch and not runs'

.PHONY: lint
lint: .venv/test ## ruff, then mypy
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy

.PHONY: docs
docs: .venv/test ## make again the pages that are made from the code
	@$(BIN)/python tools/configuration_page.py docs/reference/configuration.md src/serried/config/resource_options.pyi
	@$(BIN)/python tools/cluster_pages.py docs/clusters/known-clusters.md
	@$(BIN)/python tools/rules_page.py docs/reference/rules.md
	@$(BIN)/python tools/checks_page.py docs/reference/checks.md
	@$(BIN)/python tools/json_schemas.py src/serried/views/json_schemas.json
	@$(BIN)/python examples/adapt/diffs.py docs/start/adapt.md examples/adapt/README.md

.PHONY: site
site: .venv/site ## build the searchable site of docs/ into build/site
	@$(BIN)/python tools/build_site.py build/site
	@echo "build/site/index.html"

.PHONY: clean
clean: ## remove what was installed and cached here
	rm -rf .venv .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist

# Random faults on real runs, not a part of the tests: FAULTS='--count 40 --seed 7' injects others, `--help` says what else.
FAULTS ?= --count 250

.PHONY: faults
faults: .venv/test slurm ## inject 250 random faults into real runs, and judge how each ended
	@PYTHONPATH=tests $(BIN)/python -m faults $(FAULTS)

# Serried's own cost beside its peers; the other scripts in benchmarks/ take longer. Figures of a busy machine mean little.
BENCH := startup submit start agent ps

.PHONY: bench
bench: .venv/test slurm ## measure Serried's own cost beside other tools, and renew docs/dev/benchmarks.md
	@for script in $(BENCH); do $(BIN)/python benchmarks/$$script.py || exit 1; done

.PHONY: verify
verify: .venv/test slurm ## compare all scripts and idioms of the corpus with and without Serried, here and in a lab
	@VERIFY_ALL=1 $(BIN)/python -m pytest -n 2 tests/job_scripts

.venv/python:
	@for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  printf 'error: no Python 3.11 or later: not as python3, not as python3.11 to python3.13\n\n' >&2; \
	  printf 'hint: say where there is one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)\n' >&2; exit 2; \
	fi; \
	"$$found" -m venv --clear .venv || { printf '\nhint: on Debian and Ubuntu: apt-get install python3-venv\n' >&2; exit 2; }
	@$(PIP_INSTALL) --upgrade pip
	@touch $@

.venv/demo: .venv/python pyproject.toml constraints.txt examples/digits/requirements.txt
	@echo "installing Serried and examples/digits into .venv (once; PyTorch is big) ..." >&2
	@$(PIP_INSTALL) --build-constraint constraints.txt --editable . --requirement examples/digits/requirements.txt
	@touch $@

.venv/test: .venv/python pyproject.toml constraints.txt
	@echo "installing Serried and its tests into .venv (once; PyTorch is big) ..." >&2
	@$(PIP_INSTALL) --build-constraint constraints.txt --editable . --group test --group track --group frameworks --group lint --group site
	@touch $@

.venv/site: .venv/python pyproject.toml constraints.txt
	@$(PIP_INSTALL) --build-constraint constraints.txt --editable . --group site
	@touch $@

# Where this user may not install Slurm, the tests that need it skip and say what to install.
.PHONY: slurm
slurm:
	@$(call apt_get,slurmctld slurmdbd munged mariadbd shellcheck mpirun zstd rsync tmux chromium nft ip,$(SLURM_PACKAGES))

# The login nodes of the tests, with passcodes and other login shells. What the package would start, for all to reach, stays masked.
.PHONY: sshd
sshd:
	@if [ "$$(id -u)" = 0 ] && ! command -v sshd >/dev/null && mkdir -p /etc/systemd/system; then \
	  for unit in ssh.service ssh.socket; do ln -sn /dev/null /etc/systemd/system/$$unit 2>/dev/null || true; done; \
	fi
	@export RUNLEVEL=1; $(call apt_get,sshd ssh tcsh fish zsh,openssh-server openssh-client libpam-oath libfaketime tcsh fish zsh,ls /usr/lib/*/security/pam_oath.so /usr/lib/*/faketime >/dev/null 2>&1)

# $(call apt_get,PROGRAMS,PACKAGES,CHECK): install the packages where one of the programs is missing, or the command CHECK fails, and
# this user may.
define apt_get
for program in $(1); do \
	  command -v $$program >/dev/null || missing="$$missing $$program"; \
	done; \
	$(if $(3),$(3) || missing="$$missing headers";) \
	test -e /usr/share/modules/init/bash || test -e /usr/share/lmod || missing="$$missing modules"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $(2) ..." >&2; \
	  log=$$(mktemp); \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(2); } \
	    >"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }; \
	  rm "$$log"; \
	fi
endef

# Horovod's last release has to be built, for each torch anew. What is built stays in build/, and `make test` then passes these tests too.
HOROVOD := 0.28.1

.PHONY: horovod
horovod: .venv/test slurm ## build Horovod and pass the tests that need it
	@$(call apt_get,g++ cmake mpicxx,g++ cmake libopenmpi-dev,tests/wheels/horovod.sh check)
	@$(PIP_INSTALL) cffi cloudpickle packaging psutil pyyaml
	@tests/wheels/horovod.sh $(BIN)/python $(HOROVOD) build
	@$(BIN)/python -m pytest -m horovod tests/endtoend tests/examples

# Charliecloud is in every Debian, Apptainer in the newest alone, now and then not even there: then its tests say so and skip.
CONTAINER_PACKAGES := squashfs-tools patchelf squashfuse charliecloud-runtime

.PHONY: containers
containers:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  log=$$(mktemp); \
	  if ! { command -v ch-run && command -v patchelf && command -v mksquashfs; } >/dev/null; then \
	    echo "installing $(CONTAINER_PACKAGES) ..." >&2; \
	    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $(CONTAINER_PACKAGES); } \
	      >"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }; \
	  fi; \
	  if ! command -v apptainer >/dev/null && ! tests/tools/apptainer.sh .venv-apptainer >"$$log" 2>&1; then \
	    mkdir -p .venv-apptainer; tail -n 1 "$$log" >.venv-apptainer/problem; \
	    printf 'no Apptainer: ' >&2; cat .venv-apptainer/problem >&2; \
	  fi; \
	  rm -f "$$log"; \
	fi

# Ranks may have older Pythons and torches than Serried itself: COMPAT_TORCH=2.4.1 COMPAT_PYTHON=3.10 tries others. Not in CI: it
# fetches a torch of 0.7 GB that nothing else needs. Torch 2.1 leaves a temporary directory to the end of each process.
COMPAT_PYTHON ?= 3.9
COMPAT_TORCH ?= 2.1.2
COMPAT := .venv-$(COMPAT_PYTHON)-$(COMPAT_TORCH)

.PHONY: compat
compat: .venv/test $(COMPAT)/done ## pass tests of the training library and of commands with the oldest Python and torch
	@PYTHONPATH=$(CURDIR)/src:tests:tests/train:tests/compat OMP_NUM_THREADS=1 \
	  PYTHONWARNINGS='default,ignore:Implicitly cleaning up:ResourceWarning' $(COMPAT)/bin/python -m pytest -p plugin --confcutdir=tests/train \
	  --override-ini filterwarnings= --ignore-glob='*/test_exact_resume.py' --ignore-glob='*/test_launchers.py' --ignore-glob='*/test_bundled_library.py' \
	  --ignore-glob='*/test_resume_trace.py' --ignore-glob='*/test_tracking.py' \
	  $(PYTEST_ARGS) tests/train
	@COMPAT_RANKS=$(COMPAT)/bin/python $(BIN)/python -m pytest tests/train/test_bundled_library.py
	@$(BIN)/python -c 'import io, os, zipfile; from serried.remote import far_part; \
	  zipfile.ZipFile(io.BytesIO(far_part.archive(os.environ).content)).extractall("build/far")'
	@COMMANDS_PYTHON=$(COMPAT)/bin/python COMMANDS_PATH=$(CURDIR)/build/far:$(CURDIR)/build/far/before311 \
	  $(BIN)/python -m pytest $(PYTEST_ARGS) -m 'not slurm and not torch and not runs' tests/cli

$(COMPAT)/done: tests/compat/old_torch.py
	@$(BIN)/python tests/compat/old_torch.py $(COMPAT_PYTHON) $(COMPAT_TORCH) $(COMPAT) "numpy<2" "pytest<9" pytest-xdist hypothesis
	@touch $@
