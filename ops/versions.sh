# Versions of the tools that ops/*.sh install beside the build. This file is sourced. Those of Go are in
# ops/helm/tools/go.mod and bench/vegeta/go.mod, that of Kafka is in ops/kafka/pom.xml.
# shellcheck shell=bash disable=SC2034

# Cargo subcommands
CARGO_AUDIT=0.22.2
CARGO_CYCLONEDX=0.5.9
CARGO_DEB=3.8.0
CARGO_DENY=0.20.2
CARGO_FUZZ=0.13.2

# Programs built with `go install`
RCLONE=1.76.0

# Python
PLAYWRIGHT=1.65.2
PODMAN_COMPOSE=1.6.0
SCHEMATHESIS=4.32.5

# A script that the tests run in a browser, from npm, with the SHA-256 of its tarball
AXE_CORE=4.14.1
AXE_CORE_SHA256=e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745

# Kubernetes and its libraries (0.minor.patch), whose schemas the chart is checked against. etcd is for
# a real API server (ops/helm/test.sh apiserver).
KUBERNETES=1.35.4
ETCD=3.6.16
PROMETHEUS_OPERATOR=0.95.2
CONTROLLER_TOOLS=0.23.0
