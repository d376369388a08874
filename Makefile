# Everything a developer does in this repository. `make` alone lists the targets.

.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules --no-print-directory

VENV ?= .venv
PYTHON ?=# the Python to make the environment with; empty: the newest that works

# Each pytest worker would otherwise compile all tests again: twelve seconds of processor time.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
# $(call chosen,DIRECTORY): the value of TESTS, after DIRECTORY if it has options only, such as -k.
chosen = $(if $(filter tests/%,$(TESTS)),,$(1)) $(TESTS)

SHAPE := $(addprefix tests/test_,docs.py imports.py references.py repository.py tests.py ways.py wording.py)

.PHONY: help setup run test test-all test-root test-pythons check bench peers chart e2e vm gpu page soak image dist mutations proto docs format clean

help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## /\1|/p' $(MAKEFILE_LIST) | \
	  while IFS='|' read -r target text; do printf '  make %-12s %s\n' "$$target" "$$text"; done

# tools/setup does nothing if the environment is up to date with the pyproject.toml files.
setup: ## create .venv with the host, every package in plugins/ and the development tools
	@PYTHON='$(PYTHON)' tools/setup $(VENV) dev

run: ## set up, then serve this machine's devices to a simulated kubelet (devhost demo)
	@PYTHON='$(PYTHON)' tools/setup $(VENV)
	@$(BIN)/devhost demo

test: setup ## set up, then run the fast tests, in a few minutes
	@$(BIN)/pytest -q -n auto --dist worksteal -m 'not slow'

# As root it installs the packages that some tests need; otherwise it prints their names.
test-all: setup ## all tests: also both kubelet versions, the chart, quoted output, whole processes and more seeds
	@tools/packages tests
	@$(BIN)/pytest -n auto --dist worksteal

test-root: setup ## only the tests that need root
	@$(BIN)/pytest -m root

test-pythons: ## run all tests with every supported Python that is installed
	@tools/test-pythons

check: setup ## formatting, lint, types, import direction, documentation
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/pytest -q -n auto --dist loadfile $(SHAPE)

bench: setup ## measure speed and size, print one table
	@$(BIN)/python -m bench

# Builds the peers from their Go modules the first time: docs/comparison.md.
peers: setup ## as root: compare devhost with other device plugins on the same machine; prints one table
	@timeout --foreground --kill-after=60s 90m $(BIN)/python -m bench.peers

# The seed is random and printed; DEVHOST_SOAK_SEED=N repeats a run, DEVHOST_SOAK_SECONDS=N changes its length.
soak: setup ## 50 kubelet restarts in a row, then 10 minutes of random disturbances
	@DEVHOST_SOAK_RESTARTS=50 $(BIN)/pytest -q tests/soak/test_kubelet_restarts.py
	@$(BIN)/python tests/soak

# HELM=…, KUSTOMIZE=… use other programs.
chart: setup ## build Helm and Kustomize if missing, test the manifests with them, package the chart in build/chart
	@PYTHONPATH=tests/chart $(BIN)/python -m programs
	@$(BIN)/pytest -q tests/chart tests/kubelet/test_grpc_go.py
	@PYTHONPATH=tests/chart $(BIN)/python -m packing build/chart

# KUBELET=…, HELM=… etc. select other programs, KUBERNETES=v1.36.3 another release, DEVHOST_E2E_IMAGE=… another
# archive instead of the one from `make image`: docs/e2e.md.
e2e: setup ## as root: test with a real kubelet, scheduler and container runtime on real devices
	@tools/packages e2e
	@PYTHONPATH=tests/e2e $(BIN)/python -m onenode.binaries
	@PYTHONPATH=tests/e2e $(BIN)/python -m onenode.shipped
	@DEVHOST_E2E=1 timeout --foreground --kill-after=60s 60m $(BIN)/pytest -v tests/e2e

# TESTS="tests/vm/guest/test_vm_udev.py -k plugged" selects tests; VM_SHELL=1 opens a shell in the machine: docs/vm.md.
vm: setup ## as root: test in a virtual machine with emulated RDMA, SR-IOV, NVMe, DRM and FPGA devices
	@PYTHONPATH=tests/vm timeout --foreground --kill-after=60s $(if $(VM_SHELL),0,60m) \
	  $(BIN)/python -m machine $(if $(VM_SHELL),--shell,$(call chosen,tests/vm/guest))

# TESTS="tests/gpu/test_real_gpu.py -k cuda" selects tests: docs/hardware.md.
gpu: setup ## test with the NVIDIA GPUs of this machine and their driver; prints one table
	@PYTHONPATH=tests/gpu timeout --foreground --kill-after=60s 30m $(BIN)/python -m realgpu $(call chosen,tests/gpu)

# SCREENSHOTS=1 also takes the pictures of docs/images; TESTS="-k keyboard" selects tests.
page: setup ## test the status page in a headless Chromium
	@tools/packages page
	@DEVHOST_PAGE=1 DEVHOST_SCREENSHOTS=$(SCREENSHOTS) timeout --foreground --kill-after=60s 15m \
	  $(BIN)/pytest $(call chosen,tests/page)

# BASE=… names the base image, FRESH=1 rebuilds everything: docs/image.md.
image: setup ## as root: build the DaemonSet's image without a daemon, and test it in a container
	@tools/packages image
	@PYTHONPATH=tools timeout --foreground --kill-after=60s 45m $(BIN)/python -m image
	@DEVHOST_IMAGE=1 $(BIN)/pytest -q tests/image

dist: setup ## build wheels and source archives of the host and of every plugin, install and test them
	@PYTHONPATH=tools timeout --foreground --kill-after=60s 30m $(BIN)/python -m distribution
	@$(BIN)/pytest -q tests/distribution

# TESTS="config telemetry" selects faults: docs/development.md.
mutations: setup ## plant small faults in copies of the sources, and check that the tests detect each
	@timeout --foreground --kill-after=60s 120m $(BIN)/python tests/mutations $(TESTS)

proto: setup ## regenerate the code of the kubelet's protocols from the .proto files
	@$(BIN)/python tools/generate_protocol.py

docs: setup ## regenerate docs/cli.md, conformance.md, reference, sessions in pages, and copies of tables and of the default configuration
	@$(BIN)/python tools/generate_cli_reference.py
	@$(BIN)/python tools/generate_conformance.py
	@$(BIN)/python tools/generate_reference.py
	@$(BIN)/python tools/generate_sessions.py
	@$(BIN)/python tools/generate_readme.py
	@$(BIN)/python tools/generate_default.py

format: setup ## format the code and apply automatic fixes of ruff
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove environments, caches and build results
	rm -rf $(VENV) .venvs build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
