# Two commands matter: `make up` sets up and runs a cluster, `make test` runs all tests.
# CARGO_TARGET_DIR is honoured.

SHELL := /bin/bash
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),$(CURDIR)/target))
export CARGO_TARGET_DIR := $(TARGET)
# rustup's programs come first, also where the login shell has not put them on PATH: Debian's own Rust is often too old.
ifeq (,$(findstring :$(HOME)/.cargo/bin:,:$(PATH):))
export PATH := $(HOME)/.cargo/bin:$(PATH)
endif
# Tests run nft, which Debian's ordinary users do not have on their PATH.
export PATH := $(PATH):/usr/sbin:/sbin
WINDOWS_TARGET := $(TARGET)/x86_64-pc-windows-gnu

# Tests add here what they prove of the tables in docs/service-proxy.md (crates/parity). A run begins without it and ends without it.
PROOFS := $(TARGET)/proofs
# What `make test` could not run for this user, and why.
NOT_RUN := $(TARGET)/not-run

.PHONY: up test docs-tables build guest release windows template test-template test-setup bench first-up bench-cluster bench-api bench-hns bench-cni bench-fabric bench-proxy bench-policy bench-node bench-dll bench-upstream soak lint setup unit namespaces containerd containerd-of-test e2e wine

up: setup build
	$(TARGET)/up/mullion up $(UP)

# What is missing on this machine, through apt where it may; otherwise the command is printed.
setup:
	@tools/step "looking for what this machine lacks" tools/setup

# The programs that Windows containers run beside their own: part of the binary, and in $(TARGET)/guest.
guest:
	@tools/step "building the guest programs for Windows (about a minute the first time)" tools/guest

build: guest
	@MULLION_GUEST_PROGRAMS=$(TARGET)/guest tools/step "building mullion (some four minutes on two processors the first time)" cargo build --profile up -p mullion

# What is measured and given to others: $(TARGET)/release/mullion, optimised; $(TARGET)/release/mullion-cni, the CNI plug-ins alone, and
# $(TARGET)/release/bench beside it.
release: guest
	@MULLION_GUEST_PROGRAMS=$(TARGET)/guest tools/step "building an optimised mullion (takes longer than that of make up)" tools/release

# target/x86_64-pc-windows-gnu/release/mullion.exe, and computenetwork.dll for Windows programs under Wine beside it.
windows:
	tools/windows-cargo build --release -p mullion --bin mullion
	tools/windows-cargo build --release -p hcn-dll

# The Windows that containers of simulated nodes will see, shared by all clusters. `mullion up` makes it too.
template: build
	$(TARGET)/up/mullion template

# The same, as tests need it: with the debug build.
test-template:
	tools/wine/template

test: test-setup unit namespaces e2e wine containerd-of-test
	@if [ -e $(NOT_RUN) ]; then echo "all tests that ran passed; NOT RUN: $$(cat $(NOT_RUN))"; else echo "all tests passed"; fi

# Setting up machines that lack something; nothing is installed.
test-setup:
	tools/setup-test

# Each `cargo test` of the workspace names all of it: a part would be built with features of its own, once more.
# Units, parts against the simulator, agents in namespaces of their own (no root needed, never skipped).
# MULLION_TEST_INHERIT is what the namespaces that tests make have inherited from the machine: forwarding, reverse path filters and the
# bridge firewall are off.
unit: test-template
	rm -f $(PROOFS)
	MULLION_PROOFS=$(PROOFS) MULLION_TEST_INHERIT=defaults tools/run-tests
	cargo test --workspace --doc --quiet
	cargo run --quiet -p parity -- check $(PROOFS)

# Writes the tables of docs/service-proxy.md from the tests that prove their cells.
docs-tables:
	rm -f $(PROOFS)
	MULLION_PROOFS=$(PROOFS) cargo test --workspace --no-fail-fast --quiet --lib -- hns:: nftables:: userspace:: run::
	MULLION_PROOFS=$(PROOFS) cargo test --workspace --quiet --test kube_proxy
	cargo run --quiet -p parity -- write $(PROOFS)

# Those that send packets once more, as on a machine where Docker or a kubelet ran, and worse: every switch is the opposite.
namespaces: test-template
	MULLION_TEST_INHERIT=opposite tools/run-tests --test netlink --test nft --test engine --test spawn --test lab \
	    --test packets --test policies --test steering --test walk --test fault_packets --test kernel_faults --test bgp
	MULLION_TEST_INHERIT=opposite tools/run-tests --lib -- switches:: bridge:: portmap:: win_bridge:: beside_upstream:: with_links:: alpha:: \
	    linux::tests tcp_md5:: forwarding:: tunnels:: routes:: addresses:: nftables:: userspace:: hns::tests::packets hns::tests::modes

# The node agent on Debian's containerd and runc; as root, in namespaces of its own.
containerd:
	tools/containerd

# The same as part of `test`, which ordinary users run too: where no root is to be had, the last line says that this was not run.
containerd-of-test:
	@rm -f $(NOT_RUN)
	tools/containerd --or-note $(NOT_RUN)

# A whole cluster and unmodified kubectl, as an ordinary user.
e2e: test-template
	cargo test --workspace --test e2e --no-run
	tools/e2e

# The Windows build under Wine.
wine: test-template
	tools/wine/test

# Figures, for docs/benchmarks.md. All tables are printed, also after one with a figure over its limit; any such figure fails `make bench`.
# UPSTREAM_PROXY=PATH measures the memory of that kube-proxy for Linux beside ours; UPSTREAM_API=PATH UPSTREAM_ETCD=PATH that API server.
bench: setup release
	$(TARGET)/release/mullion template
	tools/windows-cargo build --release -p mullion --bin mullion
	tools/windows-cargo build --release -p hcn-dll --features one-lock
	mv $(WINDOWS_TARGET)/release/computenetwork.dll $(WINDOWS_TARGET)/release/one-lock.dll
	tools/windows-cargo build --release -p hcn-dll
	$(MAKE) -k bench-cluster bench-api bench-hns bench-cni bench-fabric bench-proxy bench-policy bench-node bench-dll bench-upstream

bench-cluster:
	$(TARGET)/release/bench up --mullion $(TARGET)/release/mullion --kubectl "$$(tools/client kubectl)"; up=$$?; \
	$(TARGET)/release/bench losses --mullion $(TARGET)/release/mullion --kubectl "$$(tools/client kubectl)"; losses=$$?; \
	exit $$((up | losses))

# The control plane alone; its stores are in the directory of the build.
bench-api:
	$(TARGET)/release/bench api --mullion $(TARGET)/release/mullion --directory $(TARGET) \
	    $(if $(UPSTREAM_API),--upstream $(UPSTREAM_API) --etcd $(UPSTREAM_ETCD)); api=$$?; \
	$(TARGET)/release/bench settle --mullion $(TARGET)/release/mullion --directory $(TARGET); settle=$$?; \
	exit $$((api | settle))

bench-hns:
	$(TARGET)/release/bench hns

# The CNI plug-ins beside Debian's.
bench-cni:
	$(TARGET)/release/bench cni --cni $(TARGET)/release/mullion-cni --mullion $(TARGET)/release/mullion

# The pod network between nodes.
bench-fabric:
	$(TARGET)/release/bench fabric --mullion $(TARGET)/release/mullion

bench-proxy:
	$(TARGET)/release/bench proxy-hns --mullion $(TARGET)/release/mullion; hns=$$?; \
	$(TARGET)/release/bench proxy-nft --mullion $(TARGET)/release/mullion $(if $(UPSTREAM_PROXY),--upstream $(UPSTREAM_PROXY)); nft=$$?; \
	exit $$((hns | nft))

# Network policies over 1,000 pods.
bench-policy:
	$(TARGET)/release/bench policy

# The node agent on containerd, as root; UPSTREAM_KUBELET=PATH measures that kubelet in the same run. Then the agents of a thousand nodes.
bench-node:
	$(TARGET)/release/bench node --mullion $(TARGET)/release/mullion --cni $(TARGET)/release/mullion-cni --directory $(TARGET) \
	    $(if $(UPSTREAM_KUBELET),--upstream $(UPSTREAM_KUBELET)); node=$$?; \
	$(TARGET)/release/bench hollow --mullion $(TARGET)/release/mullion --kubectl "$$(tools/client kubectl)"; hollow=$$?; \
	exit $$((node | hollow))

# The Windows build of the service proxy, under Wine, through the DLL's own interface.
bench-dll:
	$(TARGET)/release/bench dll --mullion $(TARGET)/release/mullion --exe $(WINDOWS_TARGET)/release/mullion.exe --dll $(WINDOWS_TARGET)/release/one-lock.dll

# Upstream's kube-proxy, built from public sources, beside ours.
bench-upstream:
	$(TARGET)/release/bench kube-proxy --mullion $(TARGET)/release/mullion --kubectl "$$(tools/client kubectl)" \
	    --upstream "$$(tools/peers/kube-proxy)" --dll $(WINDOWS_TARGET)/release/computenetwork.dll

# Processor time of the first `make up` of a fresh clone: everything is built into an empty directory, which is removed again.
first-up:
	tools/first-up

# Long campaigns: parsers and rules with many random cases, and a cluster brought up and down again and again.
# FUZZ_SECONDS for each parser, CASES for each rule, ADDRESSES and LINKS cycles of CNI plug-ins, ROUNDS of the end-to-end tests.
soak: setup test-template
	tools/fuzz $(or $(FUZZ_SECONDS),60)
	MULLION_SOAK_IPAM=$(or $(ADDRESSES),100000) MULLION_SOAK_LINKS=$(or $(LINKS),2000) PROPTEST_CASES=$(or $(CASES),2000) \
	    cargo test --workspace --no-fail-fast --quiet --lib --test settings --test documents
	cargo test --workspace --test e2e --no-run
	for round in $$(seq 1 $(or $(ROUNDS),5)); do tools/e2e || exit 1; done
	tools/containerd --soak kills=$(or $(KILLS),1000) away=$(or $(AWAY),600)

# Formatting, clippy, the fuzz targets' build, licences and sources of dependencies, the oldest Rust version.
lint:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --workspace --test e2e -- -D warnings
	cargo check --locked --manifest-path fuzz/Cargo.toml
	tools/deny
	tools/msrv
