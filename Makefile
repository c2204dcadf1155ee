# latchwork: build, demonstrate, test. `make help` explains the targets.
#
# Everything is installed into .venv; nothing outside this directory changes, but for the test servers, which
# `make test` installs from Debian's packages when run as root. pip's and cargo's own settings apply.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.made
CORE  := python/latchwork/_core.abi3.so

# maturin takes the virtual environment from here; a conda environment around us would confuse it.
IN_VENV := env -u CONDA_PREFIX -u PYTHONHOME VIRTUAL_ENV="$(CURDIR)/$(VENV)"

RUST_SOURCES := Cargo.toml $(wildcard Cargo.lock) $(shell find rust -name '*.rs' -o -name Cargo.toml 2>/dev/null)
# In CI a Cargo.lock that lags behind Cargo.toml is an error; at home cargo updates it.
LOCKED       := $(if $(CI),--locked)

# Test processes side by side; each starts its own servers. They mostly wait: two cores bear three with ease.
WORKERS ?= 3
# Random schedules of each primitive in `make check-schedules`.
COUNT ?= 2000
# Which cluster `make chaos` hurts, for how long, and with which series of faults.
BACKEND ?= all
MINUTES ?= 5
SEED    ?= 1
# How long `make fuzz` makes up inputs.
SECONDS ?= 60
# More arguments for `latchwork demo`, pytest or the benchmark.
ARGS ?=
# More arguments for `make check-primitive-faults`, which is a part of `make check-faults`.
PRIMITIVE_ARGS ?=

export PYTHON
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help build demo test check-faults check-history check-mutants check-primitive-faults check-schedules lint format fuzz check-core bench-instructions bench-assignment bench-balancing plot-assignment chaos bench-cluster bench-handover bench-keeper bench-primitives bench-store wheel clean prerequisites

help:
	@echo 'latchwork: what make can do'
	@echo
	@echo '  make build             check what must be there, then install everything into .venv'
	@echo '  make demo              build, then run a cluster of three workers and kill one half-way'
	@echo '  make test              build, get the test servers, run every test (takes minutes)'
	@echo '  make check-faults      every fault on every backend and server version, idle and busy, judged (an hour)'
	@echo '  make check-history     100,000 calls under faults on every backend judged, long model tests (40 minutes)'
	@echo '  make check-mutants     plant a defect for each invariant of each primitive; tests must catch it (10 minutes)'
	@echo '  make check-primitive-faults  every primitive through every fault on every server (30 minutes)'
	@echo '  make check-schedules   run every primitive under $(COUNT) random schedules, in virtual time'
	@echo '  make fuzz              make up URLs, keys and values for SECONDS=60; only our own errors may come out'
	@echo '  make chaos             a cluster under faults: BACKEND=etcd35 MINUTES=5 SEED=1 (all backends, 5 minutes each)'
	@echo '  make lint              ruff, mypy --strict, stubtest, cargo fmt, clippy'
	@echo '  make format            let ruff and cargo fmt rewrite the sources'
	@echo '  make bench-assignment  time hashing and balancing, beside their peers'
	@echo '  make bench-balancing   time the even strategies, beside pure Python and a flow solver'
	@echo '  make bench-cluster     1000 workers and 1,000,000 items on etcd and ZooKeeper (10 minutes, 2 GB)'
	@echo '  make bench-handover    time hand-overs of locks and latches, beside kazoo and etcd3'
	@echo '  make bench-keeper      count what it costs to hold 10,000 locks on etcd and ZooKeeper (2 minutes)'
	@echo '  make bench-primitives  time a use of each primitive, beside kazoo (1 minute)'
	@echo '  make bench-store       time the store beside the raw clients of every backend (20 minutes)'
	@echo '  make bench-instructions  count what the kernels execute, and compare with the file'
	@echo '  make check-core        run the unsafe module under valgrind and the address sanitizer'
	@echo '  make wheel             build an abi3 wheel for Python 3.10+ into dist/'
	@echo '  make clean             remove .venv and everything built'
	@echo
	@echo 'ARGS adds arguments:     make demo ARGS="--url etcd://127.0.0.1:2379/demo"'
	@echo '                         make test ARGS="-k layering"'
	@echo 'WORKERS sets how many test processes run side by side (now $(WORKERS); 0 for one, in the foreground).'
	@echo 'PYTHON chooses the interpreter of a new .venv: make build PYTHON=python3.12'
	@echo 'After a build, the command line is $(BIN)/latchwork; try $(BIN)/latchwork --help'

prerequisites:
	@sh scripts/check_prerequisites

build: prerequisites $(CORE)

$(STAMP)/venv: | prerequisites
	"$$(sh scripts/find_python)" -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/dependencies: requirements-dev.txt $(STAMP)/venv
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

$(CORE): pyproject.toml $(STAMP)/dependencies $(RUST_SOURCES)
	$(IN_VENV) $(BIN)/maturin develop --release $(LOCKED) --extras cli,etcd,metrics,tracing,zookeeper-sasl
	@touch $@

demo: build
	$(BIN)/latchwork demo $(ARGS)

test: build
	sh scripts/install_test_servers
	cargo test --quiet $(LOCKED) --no-default-features
	WORKERS=$(WORKERS) sh scripts/run_tests $(ARGS)

check-faults: build
	sh scripts/install_test_servers
	sh scripts/build_etcd36
	$(BIN)/python tests/trials/contract/check_faults.py $(ARGS)
	LATCHWORK_LONG_TESTS=1 $(BIN)/python -m pytest -q --numprocesses $(WORKERS) tests/security

check-history: build
	sh scripts/install_test_servers
	$(BIN)/python tests/trials/history/check_history.py $(ARGS)
	LATCHWORK_LONG_TESTS=1 $(BIN)/python -m pytest -q --numprocesses $(WORKERS) tests/model tests/conformance/test_versions_never_lie.py

lint: build
	@sh scripts/check_prerequisites --lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest latchwork._core
	cargo fmt --check
	cargo clippy --quiet $(LOCKED) --all-targets -- -D warnings

format: build
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	cargo fmt

check-mutants: build
	$(BIN)/python tests/mutants/check_mutants.py --workers 2 $(ARGS)

check-faults: check-primitive-faults

check-primitive-faults: build
	sh scripts/install_test_servers
	sh scripts/build_etcd36
	$(BIN)/python tests/trials/primitives/check_faults.py $(PRIMITIVE_ARGS)

check-schedules: build
	$(BIN)/python tests/trials/schedules/check_schedules.py --count $(COUNT) $(ARGS)

fuzz: build
	$(BIN)/python -m pip install --quiet "atheris>=2.3,<4"
	$(BIN)/python tests/security/fuzz.py -max_total_time=$(SECONDS) $(ARGS)

chaos: build
	sh scripts/install_test_servers
	$(BIN)/python tests/trials/chaos/run_chaos.py --backend $(BACKEND) --minutes $(MINUTES) --seed $(SEED) $(ARGS)

bench-assignment: build
	$(BIN)/python -m pip install --quiet -r benches/requirements.txt
	$(BIN)/python benches/bench_hashing.py
	$(BIN)/python benches/bench_border.py
	$(BIN)/python benches/bench_balancing.py
	$(BIN)/latchwork bench assign --workers 1000 --items 1000000 $(ARGS)

bench-balancing: build
	$(BIN)/python -m pip install --quiet -r benches/requirements.txt
	$(BIN)/python benches/bench_balancing.py $(ARGS)

plot-assignment: build
	$(BIN)/python -m pip install --quiet -r benches/requirements.txt
	$(BIN)/python benches/bench_hashing.py --plot docs/images

bench-cluster: build
	sh scripts/install_test_servers
	$(BIN)/python benches/bench_cluster.py $(ARGS)

bench-handover: build
	sh scripts/install_test_servers
	$(BIN)/python benches/bench_handover.py $(ARGS)

bench-keeper: build
	sh scripts/install_test_servers
	$(BIN)/python benches/bench_keeper.py $(ARGS)

bench-primitives: build
	sh scripts/install_test_servers
	$(BIN)/python benches/bench_primitives.py $(ARGS)

bench-store: build
	sh scripts/install_test_servers
	$(BIN)/python benches/bench_store.py $(ARGS)

bench-instructions:
	scripts/count_instructions $(ARGS)

check-core:
	scripts/check_core

wheel: build
	$(IN_VENV) $(BIN)/maturin build --release --strip $(LOCKED) --out dist

clean:
	rm -rf $(VENV) target dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks $(CORE)
	find python tests scripts benches -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
