#!/usr/bin/env bash
# A Kafka broker of one process (KRaft), on the loopback, for tests, benchmarks and trying out.
#
#     ops/kafka.sh fetch              downloads Apache Kafka into a cache, unless it is there
#     ops/kafka.sh run DIR [PORT]     runs it in the foreground; its data lies in DIR
#     ops/kafka.sh tool CLASS …       runs one of its tools, such as
#                                     org.apache.kafka.tools.consumer.ConsoleConsumer
#
# DIR/extra.properties, if there is one, overrides any broker setting. KAFKA_HEAP (512m) is its
# memory, KAFKA_CONTROLLER_PORT (PORT + 1) its other port, KAFKA_JVM its arguments for Java (they suit a
# broker under load), KAFKA_FORMAT_ARGUMENTS go to the formatting of its storage (such as
# --add-scram ...). The cache: SPILLWAY_CACHE, else ~/.cache/spillway. It also holds the classes as
# Java has them in memory, with which a broker starts in a third of the time.
#
# Not for production: one replica, and no fsync.
set -euo pipefail

readonly VERSION=4.1.0
readonly QUIET=-Dorg.slf4j.simpleLogger.defaultLogLevel=warn
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here
readonly cache=${SPILLWAY_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/spillway}/kafka-$VERSION
# Changes with what the cache holds.
readonly complete=$cache/complete-5
# For a process that ends soon: it compiles little, and collects on one thread.
readonly SHORT="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# 16 bytes, in base64 without padding, as Kafka writes its ids: "spillway-cluster".
readonly CLUSTER_ID=c3BpbGx3YXktY2x1c3Rlcg

say() {
  echo "ops/kafka.sh: $*" >&2
}

fetch() {
  [ -e "$complete" ] && return
  mkdir -p "$cache"
  # One download at a time; whoever waited finds it done.
  exec 9>"$cache/lock"
  flock 9
  [ ! -e "$complete" ] || { exec 9>&-; return; }
  say "downloading Apache Kafka $VERSION into $cache"
  mvn --batch-mode --quiet -f "$here/kafka/pom.xml" dependency:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$cache/libs" >&2
  archive_classes || say "Java's classes could not be kept; brokers start slower"
  touch "$complete"
  exec 9>&-
}

# Runs formatter and broker once, and keeps the classes that they loaded. Fails if that does not work:
# without them a broker starts all the same, later.
archive_classes() (
  directory=$(mktemp -d)
  broker=
  trap 'kill $broker 2>/dev/null || true; rm -rf "$directory"' EXIT
  trap 'exit 1' INT TERM
  rm -f "$cache/format.jsa" "$cache/broker.jsa"
  port=$((20000 + RANDOM % 10000))
  KAFKA_CONTROLLER_PORT=$((port + 1)) write_properties "$directory" "$port"
  KAFKA_FORMAT_ARGUMENTS="" classes=-XX:ArchiveClassesAtExit format "$directory" 2>"$directory/log" || return 1
  # shellcheck disable=SC2086
  java -cp "$cache/libs/*" "$QUIET" -Xmx512m $SHORT -XX:ArchiveClassesAtExit="$cache/broker.jsa" \
    kafka.Kafka "$directory/server.properties" >>"$directory/log" 2>&1 9>&- &
  broker=$!
  for _ in {1..600}; do
    if (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break; fi
    # Somebody else may have its port.
    kill -0 $broker 2>/dev/null || { rm -f "$cache/broker.jsa"; return 1; }
    sleep 0.1
  done
  kill $broker 2>/dev/null
  wait $broker || true
  # Java crashes on an archive that a full disk cut short.
  for archive in "$cache/format.jsa" "$cache/broker.jsa"; do
    java -cp "$cache/libs/*" -XX:SharedArchiveFile="$archive" -XX:ErrorFile=/dev/null -XX:-CreateCoredumpOnCrash \
      -version >/dev/null 2>&1 || rm -f "$archive"
  done
  [ -e "$cache/broker.jsa" ]
)

write_properties() {
  local directory=$1 port=$2 controller=${KAFKA_CONTROLLER_PORT:-$(($2 + 1))}
  cat >"$directory/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$port
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=$directory/data
num.partitions=4
# One broker can hold one replica.
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# Fewer files to make at the first start.
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
# A broker that was killed may register again once its last session is over: 9 s, if not said here.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=500
PROPERTIES
  [ ! -e "$directory/extra.properties" ] || cat "$directory/extra.properties" >>"$directory/server.properties"
}

format() {
  local directory=$1
  [ ! -e "$directory/data/meta.properties" ] || return 0
  # shellcheck disable=SC2086 # Several words are meant.
  java -cp "$cache/libs/*" "$QUIET" -Xmx128m $SHORT \
    "${classes:--XX:SharedArchiveFile}=$cache/format.jsa" kafka.tools.StorageTool format \
    -t "$CLUSTER_ID" -c "$directory/server.properties" ${KAFKA_FORMAT_ARGUMENTS:-} >&2
}

run() {
  local port=$2 directory
  fetch
  mkdir -p "$1"
  directory=$(cd "$1" && pwd)
  write_properties "$directory" "$port"
  format "$directory"
  # Replaces this shell: signals and its exit are the broker's.
  # shellcheck disable=SC2086
  exec java -cp "$cache/libs/*" "$QUIET" -XX:SharedArchiveFile="$cache/broker.jsa" \
    -Xms"${KAFKA_HEAP:-512m}" -Xmx"${KAFKA_HEAP:-512m}" \
    ${KAFKA_JVM:--XX:+UseG1GC -XX:MaxGCPauseMillis=20} kafka.Kafka "$directory/server.properties"
}

case "${1:-}" in
  fetch) fetch ;;
  run)
    [ $# -ge 2 ] || { say "usage: ops/kafka.sh run DIR [PORT]"; exit 64; }
    run "$2" "${3:-9092}"
    ;;
  tool)
    shift
    fetch
    # shellcheck disable=SC2086
    exec java -cp "$cache/libs/*" "$QUIET" -Xmx256m $SHORT "$@"
    ;;
  *)
    say "usage: ops/kafka.sh fetch | run DIR [PORT] | tool CLASS ..."
    exit 64
    ;;
esac
