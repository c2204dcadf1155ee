# latchwork: build, demonstrate, test. `make help` explains the targets.
#
# Everything is installed into .venv; nothing outside this directory changes, but for the test servers, which
# `make test` installs from Debian's packages when run as root. pip's and cargo's own settings apply.

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.made
CORE  := python/latchwork/_core.abi3.so
PACKAGES := $(wildcard python/packages/*/pyproject.toml)

# maturin takes the virtual environment from here; a conda environment around us would confuse it.
IN_VENV := env -u CONDA_PREFIX -u PYTHONHOME VIRTUAL_ENV="$(CURDIR)/$(VENV)"

RUST_SOURCES := Cargo.toml $(wildcard Cargo.lock) $(shell find rust -name '*.rs' -o -name Cargo.toml 2>/dev/null)
# In CI a Cargo.lock that lags behind Cargo.toml is an error; at home cargo updates it.
LOCKED       := $(if $(CI),--locked)

# Test processes side by side. For three quarters of their time they wait: two cores bear six with ease.
WORKERS ?= 6
# Which of the long forms, or of the benchmarks.
WHAT ?=
# More arguments for `latchwork demo`, for pytest, or for what WHAT names.
ARGS ?=

export PYTHON WORKERS
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help build demo test quick check bench lint format docs protos wheel release clean prerequisites

help:
	@echo 'latchwork: what make can do'
	@echo
	@echo '  make build     check what must be there, then install everything into .venv'
	@echo '  make demo      build what it needs, then run a cluster of three workers and kill one half-way; executor, plans,'
	@echo '                 workers and workflows as ARGS need make build first'
	@echo '  make test      build, get the test servers, run the tests (14 minutes on two cores)'
	@echo '  make quick     unit and in-memory tests of what differs from main, at most 90 seconds; ARGS="BASE" for another base'
	@echo '  make check     every test on every server, and all long forms (hours); or one of them:'
	@echo '                 WHAT=tests             every test on every server, in its long form'
	@echo '                 WHAT=kit               the conformance kit on every backend, and the mistakes it has to find (15 minutes)'
	@echo '                 WHAT=faults            every fault on every backend, idle and busy, judged (an hour)'
	@echo '                 WHAT=primitive-faults  every primitive through every fault on every server (30 minutes)'
	@echo '                 WHAT=history           100,000 calls under faults on every backend, judged (40 minutes)'
	@echo '                 WHAT=soak              names, nodes and stores come and go on every backend; growth fails (2 hours)'
	@echo '                 WHAT=schedules         every primitive under 2,000 random schedules, in virtual time'
	@echo '                 WHAT=interrupts        500 signals at random times on every backend, and a cancellation at every await'
	@echo '                 WHAT=loop              the contract and the primitives driven by an event loop, on every server'
	@echo '                 WHAT=mutants           plant defects; the tests must catch each'
	@echo '                 WHAT=mutation          mutate the modules that decide without I/O; the score must not fall (an hour)'
	@echo '                 WHAT=storms            jobs, executor, plans, workers and workflows under kills, freezes and cuts, on each'
	@echo '                                        server (5 minutes each)'
	@echo '                 WHAT=fuzz              make up URLs, keys, values, stored records and calls of the extension; only our own errors may come out'
	@echo '                 WHAT=api-fuzz          ask the API of workflows what its description allows, and what it forbids (20 minutes)'
	@echo '                 WHAT=core              the unsafe module under valgrind and the address sanitizer'
	@echo '                 WHAT=clients           latchwork next to other clients of etcd, each in an environment of its own'
	@echo '                 WHAT=site              the documentation site in a browser: search, navigation, links'
	@echo '                 WHAT=operate           the files of docs/operate: promtool, kubeconform, helm, hadolint, systemd-analyze'
	@echo '                 WHAT=alerts            put real processes into the state of each alert, apply its remedy (15 minutes)'
	@echo '                 WHAT=dependencies      known vulnerabilities of the installed packages'
	@echo '  make bench     WHAT=aio, store, assignment, balancing, cluster, handover, keeper, primitives, group, work_queue, workers, executor, plans, postgres, workflows or startup'
	@echo '  make lint      ruff, mypy --strict, stubtest, cargo fmt, clippy, actionlint'
	@echo '  make format    let ruff and cargo fmt rewrite the sources'
	@echo '  make docs      build the documentation site into site/, without warnings; ARGS=--serve shows it on port 8000'
	@echo '  make protos    generate the messages of etcd'"'"'s API again; takes Go and a network, and is needed for new ones only'
	@echo '  make wheel     build the wheels of all three distributions into dist/ (an abi3 wheel for Python 3.11+); WHAT=all builds those of a release,'
	@echo '                 for manylinux2014 and musllinux on x86_64 and aarch64: ARGS="--home URL" names its repository'
	@echo '  make release   check that this commit can be released, build all artifacts into dist/ and check them; ARGS=--help'
	@echo '  make clean     remove .venv and everything built'
	@echo
	@echo 'ARGS adds arguments:     make demo ARGS="--url etcd://127.0.0.1:2379/demo"'
	@echo '                         make test ARGS="-k layering"'
	@echo '                         make check WHAT=storms ARGS="--of jobs --at etcd35 --minutes 5 --seed 7"'
	@echo 'SERVERS names the servers of the tests: SERVERS=etcd35, SERVERS=all; without it they take turns by the day.'
	@echo 'DRIVER names what drives protocols in the tests: thread, loop or both; without it they take turns by the day.'
	@echo 'WORKERS sets how many test processes run side by side (now $(WORKERS); 0 for one, in the foreground).'
	@echo 'PYTHON chooses the interpreter of a new .venv: make build PYTHON=python3.12'
	@echo 'After a build, the command line is $(BIN)/latchwork; try $(BIN)/latchwork --help'

prerequisites:
	@sh scripts/check_prerequisites

build: prerequisites $(CORE) $(STAMP)/packages

$(STAMP)/venv: | prerequisites
	"$$(sh scripts/find_python)" -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/tools: requirements-build.txt $(STAMP)/venv
	$(BIN)/python -m pip install --quiet -r requirements-build.txt
	@touch $@

$(CORE): pyproject.toml $(STAMP)/tools $(RUST_SOURCES)
	$(IN_VENV) $(BIN)/maturin develop --release $(LOCKED) --extras cli
	@touch $@

# With the libraries of the extras that tests use. latchwork itself is installed by now.
$(STAMP)/requirements: requirements-dev.txt pyproject.toml $(STAMP)/tools | $(CORE)
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt "latchwork[etcd,metrics,pickle,tracing,zookeeper-sasl]"
	@touch $@

# The add-ons, editable. Everything that they require is installed by now.
$(STAMP)/packages: $(PACKAGES) $(STAMP)/requirements
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation $(foreach each,$(PACKAGES),-e $(dir $(each)))
	@touch $@

demo: prerequisites $(CORE)
	$(BIN)/latchwork demo $(ARGS)

test: build
	sh scripts/install_test_servers
	cargo test --quiet $(LOCKED) -p latchwork_core
	sh scripts/run_tests $(ARGS)

quick: build
	@$(BIN)/python scripts/quick $(ARGS)

check bench:
	@sh scripts/$@ "$(WHAT)" $(ARGS)

lint: build
	@sh scripts/check_prerequisites --lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest latchwork._core
	$(BIN)/python scripts/make_aio_stub --check
	$(BIN)/python -m mypy.stubtest latchwork.aio --allowlist scripts/aio_stubtest_allowlist
	cargo fmt --check
	cargo clippy --quiet $(LOCKED) --all-targets -- -D warnings
	sh scripts/lint_workflows

docs: build $(STAMP)/docs
	$(BIN)/python scripts/make_site $(ARGS)

$(STAMP)/docs: scripts/site/requirements.txt $(STAMP)/requirements
	$(BIN)/python -m pip install --quiet -r $<
	@touch $@

format: build
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	cargo fmt

protos:
	$(BIN)/python scripts/make_protos

# By its name: a comma in an $(if) ends its first part.
ZIG := "maturin[zig]>=1.7,<2"

wheel: build
	$(if $(filter all,$(WHAT)),$(BIN)/python -m pip install --quiet $(ZIG))
	$(if $(filter all,$(WHAT)),PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/build_wheels $(ARGS),$\
	    $(IN_VENV) $(BIN)/maturin build --release --strip $(LOCKED) --out dist)
	@$(if $(filter all,$(WHAT)),,echo 'This wheel is for machines like this one: its tag names the C library here. WHAT=all builds those of a release.')
	$(if $(filter all,$(WHAT)),,for each in $(dir $(PACKAGES)); do $\
	    (cd $$each && "$(CURDIR)/$(BIN)/python" -m hatchling build --target wheel --directory "$(CURDIR)/dist") || exit; done)

release: build
	$(BIN)/python -m pip install --quiet $(ZIG) "twine>=6,<8" "check-wheel-contents>=0.6,<1" "abi3audit>=0.0.20,<1"
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/release $(ARGS)

clean:
	rm -rf $(VENV) target dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks $(CORE)
	find python tests scripts benches -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
