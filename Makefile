# Everything on one machine. Each target installs what it misses and says so first; see local/setup.sh.

export PATH := $(CURDIR)/target/tools/bin:$(CURDIR)/target/tools/venv/bin:$(PATH)

TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help demo up chaos verify test sizes setup

help:
	@echo 'make demo    run a sale on real servers from start to end, check every promise, report'
	@echo 'make up      the same stack, left running until Ctrl-C, with commands to paste'
	@echo 'make verify  check every promise, person by person, in the stack that make up runs or in servers given by address'
	@echo 'make chaos   kill, freeze and stop every part during a sale, heal, check every reply; SEED=n MINUTES=m'
	@echo 'make test    format, lints, and all tests against real servers'
	@echo 'make sizes   the release binaries of the functions, and whether they are small enough for a fast start'
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

test:
	@local/setup.sh
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	luacheck --quiet lua
	cargo build --workspace --bins
	$(TARGET)/debug/local exec -- cargo nextest run --workspace

# Bytes that `signup` and `consumer` may have: a cold start loads them.
LARGEST := 8000000

sizes:
	cargo build --release --workspace --exclude tests --bins
	@for function in signup consumer activities reconcile provision; do \
		printf '%-12s %9d bytes\n' $$function $$(stat -c %s $(TARGET)/release/$$function); done
	@for function in signup consumer; do \
		test $$(stat -c %s $(TARGET)/release/$$function) -lt $(LARGEST) || \
		{ echo "$$function is not below $(LARGEST) bytes"; exit 1; }; done

setup:
	@local/setup.sh
