# Two commands matter: `make up` sets up and runs a cluster, `make test` runs all tests.
# CARGO_TARGET_DIR is honoured.

SHELL := /bin/bash
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
export CARGO_TARGET_DIR := $(TARGET)
export PATH := $(PATH):$(HOME)/.cargo/bin
WINDOWS_TARGET := $(TARGET)/x86_64-pc-windows-gnu

.PHONY: up test build windows template bench bench-cluster bench-hns bench-proxy bench-upstream soak lint setup unit namespaces e2e wine

up: setup build template
	$(TARGET)/release/mullion up $(UP)

# What is missing on this machine, through apt where it may; otherwise the command is printed.
setup:
	tools/setup

build:
	cargo build --release --bin mullion

# target/x86_64-pc-windows-gnu/release/mullion.exe, and computenetwork.dll for Windows programs under Wine beside it.
windows:
	tools/windows-cargo build --release --bin mullion
	tools/windows-cargo build --release -p hcn-dll

# The Windows that containers of simulated nodes will see, shared by all clusters.
template:
	tools/wine/template

test: unit e2e wine
	@echo "all tests passed"

# Units, parts against the simulator, agents in namespaces of their own (no root needed, never skipped).
unit: template
	cargo test --workspace --exclude mullion --quiet
	cargo test -p mullion --bins --test alpha --test layering --quiet

# A whole cluster and unmodified kubectl, as an ordinary user.
e2e: template
	cargo test -p mullion --test e2e --no-run
	tools/e2e

# The Windows build under Wine.
wine: template
	tools/wine/test

# Figures, for docs/benchmarks.md. All tables are printed, also after one with a figure over its limit.
bench: setup build template
	cargo build --release -p bench
	tools/windows-cargo build --release -p hcn-dll
	$(MAKE) -k bench-cluster bench-hns bench-proxy bench-upstream

bench-cluster:
	$(TARGET)/release/bench up --mullion $(TARGET)/release/mullion --kubectl "$$(tools/kubectl)"

bench-hns:
	$(TARGET)/release/bench hns

bench-proxy:
	$(TARGET)/release/bench proxy-hns
	$(TARGET)/release/bench proxy-nft

# Upstream's kube-proxy, built from public sources, beside ours.
bench-upstream:
	$(TARGET)/release/bench kube-proxy --mullion $(TARGET)/release/mullion --kubectl "$$(tools/kubectl)" \
	    --upstream "$$(tools/peers/kube-proxy)" --dll $(WINDOWS_TARGET)/release/computenetwork.dll

# Long campaigns: parsers and rules with many random cases, and a cluster brought up and down again and again.
soak: setup template
	tools/fuzz $(or $(FUZZ_SECONDS),60)
	PROPTEST_CASES=20000 cargo test --release -p hcn -p hns-sim -p pod-rules -p dns -p cni -p apiserver -p service-proxy
	cargo test -p mullion --test e2e --no-run
	for round in $$(seq 1 $(or $(ROUNDS),20)); do tools/e2e || exit 1; done

# Formatting, clippy, the fuzz targets' build, licences and sources of dependencies, the oldest Rust version.
lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo check --locked --manifest-path fuzz/Cargo.toml
	tools/deny
	tools/msrv
