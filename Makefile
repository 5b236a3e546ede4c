# Every verb makes what it needs: a virtual environment in .venv with the locked packages; Java 17 or 21
# is found on the machine; broker jars are fetched once into the user's cache.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=
# A run of tests starts hundreds of Python processes. All of them use the bytecode that the first has compiled, also in a
# container whose image keeps Python from writing it.
unexport PYTHONDONTWRITEBYTECODE
# Number of test processes. Two processes run the tests with brokers, and wait half of the time. The unit tests run in the
# gaps, at a low priority.
WORKERS ?= 3

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z-]*:.*## / {printf "  make %-19s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: $(READY) ## move a live estate between two real clusters [SEED= RATE= RECORDS=]
	$(BIN)/python -m kmigrate sandbox demo $(if $(SEED),--seed $(SEED)) $(if $(RATE),--rate $(RATE)) $(if $(RECORDS),--records $(RECORDS)) $(ARGS)

.PHONY: demo-families
demo-families: $(READY) ## the demo with clients of five families (needs a JDK and Go) -> build/demo/families.json [SEED= RATE= RECORDS=]
	$(BIN)/python -m kmigrate sandbox demo --families --folder build/demo-families --report build/demo/families.json $(if $(SEED),--seed $(SEED)) $(if $(RATE),--rate $(RATE)) $(if $(RECORDS),--records $(RECORDS)) $(ARGS)

.PHONY: test
test: $(READY) ## all tests, on real brokers too; one or two failed tests run once more, alone; -> build/test/summary.json
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS) || $(BIN)/python -m tests.again

.PHONY: unit
unit: $(READY) ## the tests that need no broker
	$(BIN)/python -m pytest tests/unit $(ARGS)

.PHONY: bench-mirror
bench-mirror: $(READY) ## the mirror against MirrorMaker 2 on the same data -> build/bench/mirror.json [ARGS="--pairs 2 --cases 1kB"]
	$(BIN)/python -m tests.bench.mirror $(ARGS)

.PHONY: bench-producers
bench-producers: $(READY) ## heap that a broker takes for each producer id -> build/bench/producers.json [ARGS="--ids 30000 --version 3.9.1"]
	$(BIN)/python -m tests.bench.producers $(ARGS)

.PHONY: bench-holes
bench-holes: $(READY) ## transactions mirrored a second, by the distance to the target, with two round trips each and with one -> build/bench/holes.json [ARGS="--seconds 3"]
	$(BIN)/python -m tests.bench.holes $(ARGS)

.PHONY: bench-spark
bench-spark: $(READY) ## the parity check against a bare count() of the same topics -> build/bench/spark.json [ARGS="--rounds 2"]
	$(BIN)/python -m tests.bench.spark $(ARGS)

.PHONY: bench-router
bench-router: $(READY) ## the router against no router, by Kafka's own tools -> build/bench/router.json [ARGS="--pairs 2 --skip forwarded"]
	$(BIN)/python -m tests.bench.router $(ARGS)

.PHONY: bench-promote
bench-promote: $(READY) ## promotes and rollbacks in turn under live traffic, with the producers' pause and a verdict -> build/bench/promote.json [ARGS="--rounds 3"]
	$(BIN)/python -m tests.bench.promote $(ARGS)

.PHONY: bench-scale
bench-scale: $(READY) ## looks, verbs, presences and a promote among thousands of topics -> build/bench/scale.json [ARGS="--topics 200 --groups 200"]
	$(BIN)/python -m tests.bench.scale $(ARGS)

.PHONY: soak-tests
soak-tests: $(READY) ## the tests that are too long for every day, each with a smaller version among the others
	$(BIN)/python -m pytest -m soak --timeout 600 $(ARGS)

.PHONY: soak-mirror
soak-mirror: $(READY) ## 100 kills of mirrors over 500,000 records while leaders move -> build/soak/mirror.json [ARGS="--kills 10 --records 50000"]
	$(BIN)/python -m tests.soak.mirror $(ARGS)

.PHONY: soak-router
soak-router: $(READY) ## 50 kills of routers under load, 100 promotes past routers that do not answer -> build/soak/router.json [ARGS="--kills 5 --rounds 6"]
	$(BIN)/python -m tests.soak.router $(ARGS)

.PHONY: soak-kills
soak-kills: $(READY) ## whole migrations whose only router is killed ten times while the copy is held back -> build/soak/kills.json [ARGS="--seeds 1 --kills 3"]
	$(BIN)/python -m tests.soak.kills $(ARGS)

.PHONY: soak-crashes
soak-crashes: $(READY) ## promotes and rollbacks in which a process dies at each of its durable writes -> build/soak/crashes.json [ARGS="--engines cli"]
	$(BIN)/python -m tests.soak.crashes $(ARGS)

.PHONY: soak-rollbacks
soak-rollbacks: $(READY) ## 20 promotes that are rolled back while processes are killed and brokers stand still -> build/soak/rollbacks.json [ARGS="--rounds 6"]
	$(BIN)/python -m tests.soak.rollbacks $(ARGS)

.PHONY: soak-markers
soak-markers: $(READY) ## 60 copies of transactions, each broken in the middle: is a control marker misplaced? -> build/soak/markers.json [ARGS="--rounds 5"]
	$(BIN)/python -m tests.soak.markers $(ARGS)

.PHONY: soak-plain-order
soak-plain-order: $(READY) ## order of a producer without idempotence at brokers alone, whose leader stands still [ARGS="--stops 15 --case leaders"]
	$(BIN)/python -m tests.soak.plain_order $(ARGS)

.PHONY: soak-direct-writers
soak-direct-writers: $(READY) ## 30 promotes beside writers past the routers: each record accounted for -> build/soak/direct-writers.json [ARGS="--rounds 5"]
	$(BIN)/python -m tests.soak.direct_writers $(ARGS)

.PHONY: soak-weeks
soak-weeks: $(READY) ## 200 route changes before one router while clients come and go: nothing grows -> build/soak/weeks.json [ARGS="--changes 40"]
	$(BIN)/python -m tests.soak.weeks $(ARGS)

.PHONY: soak-partitions
soak-partitions: $(READY) ## a migration of 4,000 partitions, written to all the while -> build/soak/partitions.json [ARGS="--topics 10"]
	$(BIN)/python -m tests.soak.partitions $(ARGS)

.PHONY: soak-versions
soak-versions: $(READY) ## whole live migrations between old and new Kafka, up and down -> build/soak/versions.json [ARGS="--pair 2.8.2:3.9.1"]
	$(BIN)/python -m tests.soak.versions $(ARGS)

.PHONY: soak-parity
soak-parity: $(READY) ## every kind of fault among 5,000,000 records, named exactly -> build/soak/parity.json [ARGS="--records 500000"]
	$(BIN)/python -m tests.soak.parity $(ARGS)

.PHONY: soak-hostile
soak-hostile: $(READY) ## 10 minutes of random records in kmigrate's topics, random requests and names -> build/soak/hostile.json [ARGS="--seconds 60"]
	$(BIN)/python -m tests.soak.hostile $(ARGS)

.PHONY: soak-deploy
soak-deploy: $(READY) ## units, manifests, image, dashboard and alerts under systemd's, Kubernetes', Grafana's and Prometheus' own tools -> build/soak/deploy.json [ARGS="--only alerts"]
	$(BIN)/python -m tests.soak.deploy $(ARGS)

.PHONY: soak-page
soak-page: $(READY) ## the web page in headless Chromium (apt-get install chromium): its look, its cost -> build/soak/page.json, docs/images
	$(BIN)/python -m tests.soak.page $(ARGS)

.PHONY: soak-install
soak-install: $(READY) ## the wheel by pip, uv and pipx in fresh environments, and the demo there -> build/soak/install.json [ARGS="--without-demo"]
	$(BIN)/python -m tests.soak.install $(ARGS)

.PHONY: conformance
conformance: $(READY) ## the suites of six other clients through the router -> build/conformance.json [SUITE=kgo]
	$(BIN)/python -m tests.conformance routed $(if $(SUITE),--suite $(SUITE)) $(ARGS)

.PHONY: conformance-direct
conformance-direct: $(READY) ## the same suites on a plain broker, three times: the lists in tests/conformance/ [SUITE=kgo]
	$(BIN)/python -m tests.conformance direct $(if $(SUITE),--suite $(SUITE)) $(ARGS)

.PHONY: check
check: $(READY) ## lint, format, types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

.PHONY: docs
docs: $(READY) ## the references, made from the code itself, and all pages as a site in build/site; a warning is an error
	$(BIN)/python -m kmigrate.cli.reference.commands > docs/cli.md
	$(BIN)/python -m kmigrate.cli.reference.errors > docs/errors.md
	$(BIN)/python -m kmigrate.cli.reference.metrics docs/metrics.md
	$(BIN)/python -m kmigrate.cli.reference.apis docs/apis.md
	$(BIN)/python -m kmigrate.cli.reference.lane_states docs/mirror.md
	$(BIN)/python -m kmigrate.cli.reference.dashboard > deploy/grafana/kmigrate.json
	$(BIN)/python -m kmigrate.cli.reference.playbooks docs/playbooks.md
	$(BIN)/python -m kmigrate.cli.reference.json_schema > docs/json.schema.json
	$(BIN)/python -m kmigrate playbook schema > docs/playbook.schema.json
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/site

.PHONY: setup
setup: $(READY) ## the virtual environment alone

.PHONY: clean
clean: ## remove everything that was built, but not the user's cache of jars
	rm -rf build $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

# The stamp is last: an interrupted installation is repeated. PYTHON= chooses an interpreter.
$(READY): requirements.lock pyproject.toml
	@python=""; \
	for candidate in $(PYTHON) python3 python3.11 python3.12 python3.13; do \
	  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	    python=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "kmigrate needs Python 3.11, 3.12 or 3.13 and found none: install one, or name it with PYTHON=" >&2; \
	  exit 1; \
	fi; \
	[ -x $(BIN)/python ] || "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@
