# The commands of this repository. `make` alone lists them.

# rustup installs here, and a shell that was open before does not know it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/sbin
TARGET := $(or $(CARGO_TARGET_DIR),target)
# The commit that `--version` names.
REVISION = $(shell git rev-parse --short=12 HEAD 2>/dev/null)
# One command builds all: several would build tokio and the like once for each set of features.
BUILD_TESTS := cargo build --locked --workspace --bins --tests --examples

.PHONY: help run kafka test quick lint audit check endure endure-spill endure-shops endure-lanes endure-console chaos hostile fuzz timing alerts-live bench peers characterize characterize-kafka simulate simulate-core simulate-store mutate-core mutate-store mutate-service deb deb-kafka package-test release reproduce release-test image-test compose-test chart-test trace-test console-screenshots clean-run

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## build, start everything here, send a signed sample through it (ONESHOT=1: then exit; PREBUILT=1: build nothing)
	ops/deps.sh run
	$(if $(PREBUILT),,SPILLWAY_REVISION=$(REVISION) cargo build --profile local --locked -p request-receiver -p downstreamer -p spillway)
	$(TARGET)/local/spillway dev

kafka: ## a Kafka broker on 127.0.0.1:9092, in ./run/kafka, and the producer to go with it
	ops/deps.sh kafka
	SPILLWAY_REVISION=$(REVISION) cargo build --profile local --locked -p kafka_producer
	@echo 'start the other end with: KAFKA_URL=127.0.0.1:9092 REDIS_URL=unix://$(CURDIR)/run/redis.sock $(TARGET)/local/kafka_producer'
	ops/kafka.sh run run/kafka 9092

test: ## run every test, against real servers
	ops/deps.sh test
	$(BUILD_TESTS)
	$(TARGET)/debug/xtask

quick: ## a first answer: lints, unit tests, small simulations, six stories
	ops/deps.sh test
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --features bench/kafka -- -D warnings -D clippy::too_many_lines
	$(BUILD_TESTS)
	SEEDS=$(or $(SEEDS),8) MINUTES=$(or $(MINUTES),1) $(TARGET)/debug/xtask --quick answers barriers dead listen pause settings

check: lint audit test ## formatting, lints, docs, dependencies and every test: what a change must pass

lint: ## formatting, lints and docs
	ops/deps.sh kafka
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets --features bench/kafka -- -D warnings -D clippy::too_many_lines
	RUSTDOCFLAGS=-Dwarnings cargo doc --locked --workspace --no-deps

audit: ## licences, sources, bans and advisories of what is depended on; says what it could not look at
	ops/audit.sh

endure: ## the stories that the suite plays small, at the size of the promise (2 hours)
	ops/deps.sh test
	cargo build --locked --workspace --bins
	ENDURE=1 cargo test --locked -p stories --test suite -- --nocapture --test-threads 1 --skip big_lanes:: \
		duplicates:: circuit_breaker:: verbs:: kafka_exactly_once:: kafka_faults:: restart:: lanes:: shop_share:: spill:: spill_disk:: console_scale:: three_cells::
	@echo 'longer, each by itself: make endure-shops, make endure-lanes, make endure-spill, make endure-console'

chaos endure-spill endure-shops endure-lanes endure-console hostile fuzz timing: RESULTS ?= bench/results/$(shell date +%F)-$(shell nproc)c

chaos: ## at least 2,080 faults of every kind from one seed, then one a minute for half an hour; SEED=n, FAULTS=n (1.5 hours, as root)
	ops/deps.sh test
	cargo build --locked --workspace --bins
	mkdir -p $(RESULTS)
	ENDURE=1 RESULTS=$(RESULTS) cargo test --locked --workspace --test suite -- --nocapture --test-threads 1 chaos::
endure-spill: ## minutes without Redis at half load, a release build that spills (45 minutes)
	ops/deps.sh test
	cargo build --release --locked --workspace --bins
	mkdir -p $(RESULTS)
	ENDURE=1 RESULTS=$(RESULTS) cargo test --release --locked --workspace --test suite -- --nocapture --test-threads 1 spill_load::

endure-shops: ## one shop in a hundred fails, hangs, is paused or over its rate; 1,000 and 20,000 shops at 2,000/s (DURATION=n seconds of it; 90 minutes)
	ops/deps.sh test
	cargo build --release --locked -p request-receiver -p downstreamer -p spillway
	mkdir -p $(RESULTS)
	ENDURE=1 RESULTS=$(RESULTS) BINARIES=$(TARGET)/release \
		cargo test --release --locked -p stories --test suite -- --nocapture --test-threads 1 one_percent::
	bench/endurance.py $(RESULTS)

endure-lanes: ## a million webhooks of a paused shop, and 200,000 lanes of one each (30 minutes)
	ops/deps.sh test
	cargo build --release --locked -p request-receiver -p downstreamer -p spillway
	mkdir -p $(RESULTS)
	ENDURE=1 RESULTS=$(RESULTS) BINARIES=$(TARGET)/release \
		cargo test --release --locked -p stories --test suite -- --nocapture --test-threads 1 big_lanes::
	bench/endurance.py $(RESULTS)

endure-console: ## the console of a cell with a million waiting, 100,000 dead letters and 20,000 shops (30 minutes)
	ops/deps.sh test
	cargo build --release --locked -p request-receiver -p downstreamer -p spillway
	mkdir -p $(RESULTS)
	ENDURE=1 RESULTS=$(RESULTS) BINARIES=$(TARGET)/release \
		cargo test --release --locked -p stories --test suite -- --nocapture --test-threads 1 console_scale::

hostile: ## good webhooks under thirteen attacks, p99 and memory, and a hostile backend (15 minutes; ATTACKS='Idle Forged')
	ops/deps.sh test
	cargo build --release --locked -p request-receiver -p downstreamer -p bench
	mkdir -p $(RESULTS)
	ENDURE=1 RESULTS=$(RESULTS) BINARIES=$(TARGET)/release TMPDIR=/dev/shm \
		cargo test --locked --workspace --test suite -- --nocapture hostile:: hostile_backend::

fuzz: ## every fuzz target for FUZZ_SECONDS (600) each, on nightly: executions, coverage, findings
	ops/deps.sh fuzz
	mkdir -p $(RESULTS)
	RESULTS=$(RESULTS) ops/fuzz.sh

timing: ## whether the time that a refusal takes tells how much of a signature was right
	mkdir -p $(RESULTS)
	RESULTS=$(RESULTS) cargo run --release --locked -p spillway-webhook --example timing

alerts-live: RESULTS ?= bench/results/$(shell date +%F)-$(shell nproc)c
alerts-live: ## every alert in its fault, live: a table (5 minutes, as root)
	ops/deps.sh test
	cargo build --locked --workspace --bins
	mkdir -p $(RESULTS)
	ENDURE=1 RESULTS=$(RESULTS) cargo test --locked --workspace --test suite -- --nocapture alerts::

bench: ## measure the receiver beside a bare server; bench/README.md says what and how
	cargo build --release --locked -p request-receiver -p bench
	bench/run.py

peers: ## Spillway beside other receivers in one run: nginx with Lua, FastAPI, BullMQ, PostgreSQL; writes docs/compare.md (6 minutes; QUICK=1: a minute, writes no page)
	ops/deps.sh peers
	cargo build --release --locked -p request-receiver -p downstreamer -p bench
	QUICK=$(QUICK) bench/compare.py

characterize: ## every load scenario against its threshold, with plots and a report (SCENARIOS='half flood', SUSTAINED_SECONDS, FLOOD_SECONDS)
	cargo build --release --locked -p request-receiver -p downstreamer -p archiver -p spillway -p bench --bins --example late_secrets
	bench/characterize.py $(SCENARIOS)

characterize-kafka: ## a million webhooks drained into a Kafka broker, beside a plain producer
	ops/deps.sh kafka
	cargo build --release --locked -p request-receiver -p kafka_producer -p bench --features bench/kafka
	bench/characterize.py kafka

simulate: ## the limiter beside others in virtual time: every scenario, a table and plots
	cargo build --release --locked -p simulator
	$(TARGET)/release/simulate --out $(TARGET)/simulate
	bench/simulate.py $(TARGET)/simulate

simulate-core: ## the delivery core in virtual time against a model of Redis, with faults, and two hours of load (20 minutes; SEEDS=n STEPS=n FIRST=n, SEED=n for one schedule, MINUTES=n of load)
	SEEDS=$(or $(SEEDS),50000) STEPS=$(or $(STEPS),1000) cargo test --release --locked -p spillway-delivery --test simulation -- --nocapture
	MINUTES=$(or $(MINUTES),60) RATE=2000 cargo test --release --locked -p spillway-delivery --test hour -- --nocapture

simulate-store: ## the receiver's store mode in virtual time: shards, disk, Redis, a second receiver, crashes (a minute; SEEDS=n STEPS=n, SEED=n for one schedule)
	SEEDS=$(or $(SEEDS),1000000) STEPS=$(or $(STEPS),1000) cargo test --release --locked -p request-receiver --lib simulation -- --nocapture

mutate-core: ## mistakes put into the delivery core, one at a time: which test finds each (WORDS='lead pause'; an hour)
	bench/mutations.py core $(WORDS)

mutate-replay: ## the same of replays from the archive: which webhook is fed next (ten minutes)
	bench/mutations.py replay $(WORDS)

mutate-service: ## the same of TLS, files that are read again, the admin endpoint and traces (half an hour)
	bench/mutations.py service $(WORDS)

mutate-store: ## the same of the receiver's store mode (WORDS='hold'; ten minutes)
	bench/mutations.py store $(WORDS)

deb: ## the Debian package: binaries, units, settings, man pages, completions
	ops/deps.sh run
	ops/debian/build.sh spillway

deb-kafka: ## the same for the Kafka producer
	ops/deps.sh kafka
	ops/debian/build.sh spillway-kafka

package-test: ## installs, breaks, upgrades and purges the package in a Debian of its own (as root)
	ops/deps.sh package
	ops/debian/test.sh

release: ## packages, apt repository, tarball, image, chart, SBOMs and notes of this commit, in ./dist (APT_KEY=fingerprint signs the repository)
	ops/deps.sh release
	ops/release.sh

reproduce: ## builds this commit twice in two directories: every file of the release is the same (40 minutes, as root)
	ops/deps.sh release
	ops/reproduce.sh

release-test: ## ./dist on clean Debian roots without Rust: package from a signed repository, tarball, image (as root)
	ops/deps.sh release
	ops/release-test.sh

image-test: ## the image of ./dist without root on a read-only disk: size, health, kills and a new secret under load (as root)
	ops/deps.sh release
	ops/container/test.sh

compose-test: ## compose.yaml through up, upgrade and down at 100 webhooks a second (COMPOSE_NETWORK=host without bridges; as root)
	ops/deps.sh release
	ops/compose-test.sh

chart-test: ## the chart against Kubernetes' schemas and Pod Security (APISERVER=1: also a real API server, 30 minutes the first time)
	ops/deps.sh release
	ops/helm/test.sh $(if $(APISERVER),apiserver)

trace-test: ## the traces of webhooks through a real OpenTelemetry Collector, built with Go (3 minutes)
	ops/deps.sh traces
	cargo build --locked --workspace --bins
	OTEL_COLLECTOR=$(abspath $(TARGET))/tools/bin/otelcol cargo test --locked -p stories --test suite -- traces::

console-screenshots: ## the pictures of docs/console.md, made again from a live cell in Chromium (a minute)
	ops/deps.sh test
	cargo build --locked --workspace --bins
	SCREENSHOTS=$(CURDIR)/docs/img cargo test --locked -p stories --test suite -- --nocapture console_browser::the_pictures_of_the_docs

clean-run: ## remove the state of `make run`: its queue, its secret, its logs
	@[ ! -d run ] || flock --nonblock run/lock rm -rf run || \
		{ echo "make: a cell still runs in ./run; stop it first" >&2; exit 1; }
