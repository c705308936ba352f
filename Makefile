# Every target does its own set-up. `make demo`, `make test` and `make check` are the ones people type.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One distribution for each: what others import never comes from two of them.
EDITABLE := --editable proto --editable gateway --editable streamjobs --editable clients/python --editable .
PROTOC := $(BIN)/python -m grpc_tools.protoc -I proto proto/tablegate/v1/*.proto proto/tablegate/internal/v1/*.proto
# Arguments for `make bench`, for example BENCH="--peer path/to/kafka-streams-iq".
BENCH ?=
# Kept bytecode, asserts rewritten by pytest among it, saves tests and the processes that they start half of their start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo cluster-demo check lint test test-long fuzz interop simulate planted proto proto-check docs lock wheels sbom audit clients npm go-module maven bench clean
help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed: install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$$($(PYTHON) --version) is too old: Python 3.11 or newer is needed (set PYTHON=)" >&2; exit 1; }
	@echo "setting up $(VENV) (a few minutes the first time: pyspark is 400 MB)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation $(EDITABLE)
	@touch $@

setup: $(READY) ## make the virtual environment

demo: $(READY) ## Kafka, a job with eight tables and a gateway, a question of each (ONCE=1: ask and exit)
	@exec $(BIN)/tablegate demo $(if $(ONCE),--once)

cluster-demo: $(READY) ## Kafka, Redis, a job and three gateways: one is killed while its rows are read (ONCE=1: exit)
	@exec $(BIN)/tablegate demo --gateways 3 $(if $(ONCE),--once)

# Outside the recipe, all of which `make -n` would run for the name of make in it.
LINT := $(MAKE) --no-print-directory lint

# The lint runs beside the tests, and says what it found after them. Four processes on two cores, as tests wait for a
# third of their time.
check: $(READY) ## lint, types, import layers, unit tests; needs no Java, no Go, no browser
	@out=$$(mktemp); $(LINT) >$$out 2>&1 & lint=$$!; trap 'kill $$lint 2>/dev/null; rm -f $$out' EXIT; \
	$(BIN)/pytest -q -n 4 --dist worksteal --hypothesis-profile=check -m "not jvm and not tools and not long" --ignore tests/integration --ignore tests/model tests; tests=$$?; \
	wait $$lint; linted=$$?; cat $$out; exit $$((tests || linted))

lint: $(READY) proto-check ## format, lint, types, import layers, generated code
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/buf lint
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

test: $(READY) ## what each change must pass, with real Kafka, Spark and gateways
	@$(BIN)/pytest -q -n 4 --dist worksteal -m "not jvm and not long" tests
	@$(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "jvm and not long" tests/integration tests/docs

test-long: $(READY) ## the full counts, and further cases: tables, faults, settings (three to four hours)
	@$(BIN)/pytest -q -m long tests

fuzz: $(READY) ## fuzz every target for SECONDS each, guided by coverage (SECONDS=60; NAME=hpack: that one)
	@$(BIN)/python -c "import atheris" 2>/dev/null || $(BIN)/python -m pip install --disable-pip-version-check --quiet atheris==3.0.0
	@for name in $(or $(NAME),$(notdir $(wildcard tests/fuzz/corpus/*))); do \
	$(BIN)/python -m tests.fuzz $$name --seconds $(or $(SECONDS),60) || exit 1; done

interop: $(READY) ## ask the server by suites of others: gRPC, Connect, HTTP/2, TLS, OpenAPI; a line for each
	@$(BIN)/pytest -v -m "interop and not long" tests/integration

simulate: $(READY) ## tell one seed of the simulator as a story (SEED=7; with FAULT=LostTail that happens more often)
	@$(BIN)/python -m tests.kit.world.simulate $(if $(SEED),$(SEED),0) $(if $(FAULT),--with $(FAULT))

planted: $(READY) ## plant bugs in copies of the sources: the tests have to notice each (8 minutes)
	@$(BIN)/python -m tests.kit.planted

proto: $(READY) ## generate Python from proto/
	@$(PROTOC) --python_out=proto --pyi_out=proto

proto-check: $(READY)
	@out=$$(mktemp -d) && trap 'rm -rf $$out' EXIT && $(PROTOC) --python_out=$$out --pyi_out=$$out && \
	(cd $$out && find . -name '*_pb2.py*') | while read -r f; do cmp -s $$out/$$f proto/$$f || { echo "proto/$$f is not what proto/ generates: run make proto" >&2; exit 1; }; done

docs: $(READY) ## build the documentation into site/; fails on a broken link
	@$(BIN)/python docs/reference/generate.py --check
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: $(READY) ## resolve requirements.lock anew (needs uv)
	@$(BIN)/python deploy/runtime_lock.py --inputs | uv pip compile - --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --output-file requirements.lock

wheels: $(READY) ## build the five wheels into dist/
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist ./proto ./clients/python ./gateway ./streamjobs .

sbom: $(READY) ## write what a release is made of, and its licences, into dist/ (needs uv)
	@mkdir -p dist && out=$$(mktemp) && trap 'rm -f $$out' EXIT && \
	uvx --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py environment $(BIN)/python --output-format JSON --output-file $$out && \
	$(BIN)/python deploy/sbom.py $$out dist

audit: ## ask PyPI for known faults of the pinned packages; fails on those of which it knows nothing (needs uv)
	@uvx --quiet pip-audit==2.10.1 --strict --disable-pip --require-hashes --progress-spinner off --requirement requirements.lock

clients: $(READY) ## build the clients in Go, Java and TypeScript, where their tools are
	@$(MAKE) --no-print-directory -C clients

npm: ## pack the TypeScript client into dist/ (needs Node)
	@$(MAKE) --no-print-directory -C clients typescript-pack

go-module: $(READY) ## pack the Go client into dist/go, as a proxy of modules serves it
	@$(BIN)/python clients/go/pack.py dist/go

maven: ## pack the Java client into dist/maven, as a repository of Maven has it (needs a JDK and Maven)
	@$(MAKE) --no-print-directory -C clients java-pack

bench: $(READY) ## measure; print a table, write docs/bench.json and docs/bench.svg
	@$(BIN)/python -m tests.bench $(BENCH)

clean: ## remove what the targets made, the demo's data included
	@$(MAKE) --no-print-directory -C clients clean
	rm -rf $(VENV) site .cache .tablegate .mypy_cache .ruff_cache .pytest_cache .hypothesis
