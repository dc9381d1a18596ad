# Everything on one machine. Each target installs what it misses and says so first; see local/setup.sh.

export PATH := $(CURDIR)/target/tools/bin:$(CURDIR)/target/tools/venv/bin:$(PATH)

TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help demo up test setup

help:
	@echo 'make demo    run a sale on real servers from start to end, check every promise, report'
	@echo 'make up      the same stack, left running until Ctrl-C, with commands to paste'
	@echo 'make test    format, lints, and all tests against real servers'
	@echo 'make setup   only install what the others need'

demo:
	@local/setup.sh run
	cargo build --release --workspace --bins
	@$(TARGET)/release/local demo

up:
	@local/setup.sh run
	cargo build --release --workspace --bins
	@$(TARGET)/release/local up

test:
	@local/setup.sh
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	luacheck --quiet lua
	cargo build --workspace --bins
	$(TARGET)/debug/local exec -- cargo nextest run --workspace
	cargo test --workspace --doc --quiet

setup:
	@local/setup.sh
