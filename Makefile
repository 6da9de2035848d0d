# `make demo`, `make test`, `make test-all`: everything on a machine with Python 3.11 or later and its venv, and the demo also
# on one with uv alone.  What is missing is said before anything is installed.
PYTHON ?= $(or $(shell sh .ci/prerequisites find),python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ./install/fastecdsa
STAMP := .venv/.installed
DEMO := .venv/.installed-demo
UV ?= $(shell command -v uv 2>/dev/null)
# The build of torch: with uv `auto` asks the driver of the GPU; `cpu` or `cu130` name one, and nothing takes that of the index.
TORCH_BACKEND ?= auto
# pip gets torch from here as well if there is no GPU's driver, since the build on PyPI brings gigabytes for CUDA.
TORCH_INDEX ?= $(if $(wildcard /dev/nvidiactl /usr/lib/wsl/lib/libnvidia-ml.so.1),,https://download.pytorch.org/whl/cpu)
SEEDS ?= 1
SECONDS ?= 60
MINUTES ?= 10
RUNS ?= 20
STATEMENTS ?= 20000
ROLLOUTS ?= 200000

.PHONY: venv demo test test-all test-slow test-ranks test-streamed lint bench gpu simulate explore attacks mutations crash-matrix scaling fuzz churn soak docs interop clean

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@sh .ci/prerequisites python $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[dev,oracle]'
	touch $@ $(DEMO)

# What peers need, without tests and checks.
$(DEMO): pyproject.toml constraints.txt
ifeq ($(UV),)
	@sh .ci/prerequisites python $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(PIP) --no-deps --retries 1 --extra-index-url $(TORCH_INDEX) torch)
	$(PIP) -e .
else
	test -x $(BIN)/python || $(UV) venv --quiet --seed --python $(or $(shell sh .ci/prerequisites find),3.11) .venv
	$(UV) pip install --quiet --python $(BIN)/python $(if $(TORCH_BACKEND),--torch-backend $(TORCH_BACKEND)) \
		-c constraints.txt ./install/fastecdsa -e .
endif
	touch $@

demo: $(DEMO)
	$(BIN)/peer demo
	@echo 'The command line is $(BIN)/peer; ". $(BIN)/activate" makes it `peer` in this terminal.'

# On every core, each process with one thread.  Of the tests with real processes two files at a time: they wait much, and a test
# without a processor of its own has to pass, too.
UNIT = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal --ignore tests/e2e
E2E = $(BIN)/python -m pytest -n 2 --dist loadfile tests/e2e

test: lint
	$(UNIT) -m "not slow"
	$(E2E) -m "not slow"

test-slow: venv
	$(UNIT) -m slow
	$(E2E) -m slow

# Every check and every test, each of them once.
test-all: test
	$(MAKE) test-slow

# The tests with real processes once more, with a trainer of two processes at one peer of each swarm.
test-ranks: venv
	MEMBER_PROCESSES=2 $(E2E)

# Simulations and attacks once more, with rounds of fragments beside which members train.
STREAMED := adversaries crash_points copies evaluation finish goodbye kill_times leases lines pace rests run_end simulation \
	sleep streaming
test-streamed: venv
	SIMULATED_FRAGMENTS=4 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal \
		$(STREAMED:%=tests/simulation/test_%.py) tests/attacks/test_attacks.py

lint: venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.house_rules

bench: venv
	$(BIN)/python -m benchmarks.codec
	$(BIN)/python -m benchmarks.diloco

# On a computer with a GPU; what it prints belongs into docs/results/computer.md.
gpu: venv
	$(BIN)/python -m benchmarks.gpu
	$(BIN)/python -m benchmarks.training --device cuda --rows 16 --length 1024
	$(BIN)/python -m benchmarks.generation --device cuda --dtype bfloat16
	$(BIN)/peer bench --only training --train 1b

simulate: venv
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

explore: venv
	$(BIN)/python -m tests.explore --mutations

attacks: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.attacks --processes

mutations: venv
	$(BIN)/python -m tests.simulation --mutations

crash-matrix: venv
	$(BIN)/python -m tests.simulation.crash_points --pairs

scaling: venv
	$(BIN)/python -m benchmarks.swarm_size

# The documentation as a site, in site/; an unknown link or heading is an error.
docs: venv
	$(PIP) -e '.[dev,oracle,docs]'
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict

fuzz: venv
	$(PIP) -e '.[dev,oracle,fuzz]'
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)
	$(BIN)/python -m tests.fuzz --statements $(STATEMENTS)
	$(BIN)/python -m tests.fuzz --rollouts $(ROLLOUTS)

churn: venv
	$(BIN)/python -m tests.e2e.churn --minutes $(MINUTES)

soak: venv
	$(BIN)/python -m tests.e2e.soak --runs $(RUNS)

interop: venv
	cd tests/interop && npm install --no-package-lock --no-audit --no-fund
	$(BIN)/python -m tests.interop

clean:
	rm -rf .venv build site *.egg-info
