# Everything on one machine. Each target installs what it misses and says so first; see local/setup.sh.

export PATH := $(CURDIR)/target/tools/bin:$(CURDIR)/target/tools/venv/bin:$(PATH)

TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help demo up chaos verify test test-modern test-cluster lint lint-workflows lint-template build sizes cold-start zips setup

help:
	@echo 'make demo    run a sale on real servers from start to end, check every promise, report'
	@echo 'make up      the same stack, left running until Ctrl-C, with commands to paste'
	@echo 'make verify  check every promise, person by person, in the stack that make up runs or in servers given by address'
	@echo 'make chaos   kill, freeze and stop every part during a sale, heal, check every reply; SEED=n MINUTES=m'
	@echo 'make test    format, lints, and all tests against real servers'
	@echo 'make test-modern  the same tests on the newest servers: MySQL 9, RabbitMQ 4, Valkey 9'
	@echo 'make test-cluster  the tests in which Redis plays, against a cluster of three primaries and three replicas'
	@echo 'make lint    template.yaml, the workflows, compose.yaml and the shell scripts'
	@echo 'make build   what sam deploy uploads to AWS, in .aws-sam'
	@echo 'make sizes   the release binaries of the functions, and whether they are small enough for a fast start'
	@echo 'make cold-start  how long each function takes to its first reply over TLS, and its memory'
	@echo 'make zips    the functions as zips for Lambda, for arm64 and x86_64, in target/zips'
	@echo 'make setup   only install what the others need'

demo:
	@local/setup.sh run
	cargo build --release --workspace --exclude tests --bins
	@$(TARGET)/release/local demo

up:
	@local/setup.sh run
	cargo build --release --workspace --exclude tests --bins
	@$(TARGET)/release/local up

chaos:
	@local/setup.sh run
	cargo build --release --workspace --exclude tests --bins
	@$(TARGET)/release/local chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

# What must be true is listed by `local verify --help`.
verify:
	cargo build --release --workspace --exclude tests --bins
	@if [ -z "$$REDIS_URL$$AMQP_URL$$MYSQL_URL" ]; then \
		[ -f target/local/up.env ] || { echo 'nothing is up: run make up, or set REDIS_URL, AMQP_URL and MYSQL_URL'; exit 1; }; \
		set -a; . target/local/up.env; set +a; \
	fi; $(TARGET)/release/local verify $(ARGS)

test: lint
	@local/setup.sh
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	luacheck --quiet lua
	cargo build --workspace --bins
	$(TARGET)/debug/local exec -- cargo nextest run --workspace

# The newest servers, from a tree that setup.sh makes; see local/src/servers/programs.rs.
test-modern: export ONRUSH_SERVERS := modern
test-modern:
	@local/setup.sh
	cargo build --workspace --bins
	$(TARGET)/debug/local exec -- cargo nextest run --workspace

# Without those that measure, those to which Redis is nothing but the place before the queue, and those of one server.
test-cluster:
	@local/setup.sh
	cargo build --workspace --bins
	$(TARGET)/debug/local exec --redis cluster -- cargo nextest run -p tests \
		-E 'not test(/^(provision|provision_cloudformation|publishing|publishing_outages|settings|invoke|consumer_speed|reconcile_speed)::/)'

lint: lint-workflows lint-template

lint-workflows:
	@local/setup.sh lint
	check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	check-jsonschema --builtin-schema vendor.compose-spec compose.yaml
	! docker compose version >/dev/null 2>&1 || docker compose --file compose.yaml config --quiet
	zizmor --offline --quiet .github
	shellcheck local/setup.sh .ci/run

# All of it offline, without an account or a region.
lint-template: export SAM_CLI_TELEMETRY := 0
lint-template:
	@local/setup.sh lint
	cfn-lint template.yaml
	sam validate --lint
	target/tools/sam/bin/python local/transformed.py template.yaml
	checkov --file template.yaml --framework cloudformation --quiet --compact --skip-download

# Lambda runs arm64. Where Rust has no standard library for it and none can be had, x86_64 stands in, and the built template
# says so too.
ARM64 := aarch64-unknown-linux-gnu

build: export SAM_CLI_TELEMETRY := 0
build:
	@local/setup.sh build
	@if [ -d "$$(rustc --print target-libdir --target $(ARM64))" ] || rustup --quiet target add $(ARM64); then \
		unset CARGO_TARGET_DIR; sam build; \
	else \
		printf '%s\n' '' '  BUILDING FOR x86_64, NOT FOR arm64: Rust has no $(ARM64) here, and rustup could not add it.' \
			'  It runs as well, at a price that is a quarter higher.' ''; \
		mkdir -p target; \
		sed 's/^    Architectures: \[arm64\]$$/    Architectures: [x86_64]/' template.yaml >target/template-x86_64.yaml; \
		grep -qF 'Architectures: [x86_64]' target/template-x86_64.yaml || { echo 'template.yaml says nothing of arm64'; exit 1; }; \
		unset CARGO_TARGET_DIR; sam build --template-file target/template-x86_64.yaml --base-dir .; \
	fi

# Bytes that `signup` and `consumer` may have: a cold start loads them.
LARGEST := 8000000

sizes:
	cargo build --release --workspace --exclude tests --bins
	@for function in signup consumer activities reconcile provision; do \
		printf '%-12s %9d bytes\n' $$function $$(stat -c %s $(TARGET)/release/$$function); done
	@for function in signup consumer; do \
		test $$(stat -c %s $(TARGET)/release/$$function) -lt $(LARGEST) || \
		{ echo "$$function is not below $(LARGEST) bytes"; exit 1; }; done

# From the start of each function to its first reply, over TLS, with limits; see local/src/cold_start.rs.
cold-start:
	@local/setup.sh run
	cargo build --release --workspace --exclude tests --bins
	@$(TARGET)/release/local cold-start

FUNCTIONS := signup consumer activities reconcile provision

# What a release holds. `cargo lambda` builds against the glibc that Lambda has.
zips:
	@ONRUSH_SERVERS=given local/setup.sh run
	rm -rf target/zips
	mkdir -p target/zips
	for architecture in arm64 x86_64; do \
		cargo lambda build --release --locked --output-format zip --lambda-dir target/lambda/$$architecture \
			$$( [ $$architecture = arm64 ] && echo --arm64 || echo --x86-64 ) $(FUNCTIONS:%=--package %) || exit 1; \
		for function in $(FUNCTIONS); do \
			cp target/lambda/$$architecture/$$function/bootstrap.zip target/zips/onrush-$$function-$$architecture.zip || exit 1; \
		done; \
	done
	cd target/zips && sha256sum *.zip > SHA256SUMS

setup:
	@local/setup.sh
