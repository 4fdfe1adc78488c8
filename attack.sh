#!/usr/bin/env bash
# Attacks a running receiver with signed, distinct webhooks at a fixed rate, answered or not (an
# open loop), and says honestly what came of it.
#
#   ./attack.sh spike         80000/s for 1 s
#   ./attack.sh sustained     50000/s for 60 s
#
#   RATE=20000 DURATION=10s CONNECTIONS=256 URL=http://127.0.0.1:8080/webhooks ./attack.sh spike
#   EVENTS=1 ./attack.sh spike   Events in place of classic webhooks
#
# Every request has a webhook id, event id, product and signature of its own and a fresh time. The
# template is `loadtest`, or `loadtest-events`; the body's is `request.json`. The secret must be the
# receiver's. It is read from SHOPIFY_CLIENT_SECRET or SHOPIFY_CLIENT_SECRET_FILE in the environment,
# else from what `make run` wrote (run/spillway.env), else from .env.
# A URL off the loopback needs ALLOW_REMOTE=1.
set -euo pipefail
readonly CALLED_FROM=$PWD
cd "$(dirname "$0")"

fail() { printf 'attack.sh: %s\n' "$1" >&2; exit "${2:-1}"; }
usage() { sed -n '2,15s/^# \{0,1\}//p' "$0"; }

# Bounds: an attack ends, and fits the machine it runs on.
REQUESTS_MAX=10000000
SECONDS_MAX=3600
# Up to so many targets are made before the attack (about 8 KB each in vegeta's memory); more are
# made while it runs.
PREPARED_MAX=100000

seconds_of() {
    case $1 in
        *[!0-9smh]* | [smh]*) return 1 ;;
        *s) echo "${1%s}" ;;
        *m) echo $((${1%m} * 60)) ;;
        *h) echo $((${1%h} * 3600)) ;;
        *) return 1 ;;
    esac
}

# The value of a setting in a file of KEY=value lines; nothing if it is not there.
setting_in() {
    sed -n "s/^\(export \)\{0,1\}$2=//p" "$1" | tail -n 1 | sed "s/^[\"']//; s/[\"']\$//"
}

# The first secret of a file that holds one per line. A relative path starts at directory $2.
secret_in() {
    local path=$1
    case $path in /*) ;; *) path=$2/$path ;; esac
    [ -r "$path" ] || fail "cannot read $path, which SHOPIFY_CLIENT_SECRET_FILE names" 78
    awk 'NF { print $1; exit }' "$path"
}

# One of several secrets is enough: the receiver accepts each of them. `make run` starts the receiver
# in this directory, so the relative paths of both files start here.
find_secret() {
    local file secret
    if [ -n "${SHOPIFY_CLIENT_SECRET:-}" ]; then echo "$SHOPIFY_CLIENT_SECRET" && return; fi
    if [ -n "${SHOPIFY_CLIENT_SECRET_FILE:-}" ]; then
        secret_in "$SHOPIFY_CLIENT_SECRET_FILE" "$CALLED_FROM" && return
    fi
    for file in run/spillway.env .env; do
        [ -r "$file" ] || continue
        secret=$(setting_in "$file" SHOPIFY_CLIENT_SECRET)
        if [ -n "$secret" ]; then echo "${secret%%,*}" && return; fi
        secret=$(setting_in "$file" SHOPIFY_CLIENT_SECRET_FILE)
        if [ -n "$secret" ]; then secret_in "$secret" "$PWD" && return; fi
    done
}

check_url() {
    case $URL in http://* | https://*) ;; *) fail "URL=$URL is not http:// or https://" 64 ;; esac
    local authority=${URL#*://}
    authority=${authority%%[/?#]*}
    authority=${authority##*@}
    if [[ $authority =~ ^(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?$ ]]; then return; fi
    [ "${ALLOW_REMOTE:-}" = 1 ] ||
        fail "$authority is not this machine; if it is yours to attack: ALLOW_REMOTE=1" 64
}

find_generate() {
    [ -x "$GENERATE" ] && return
    [ "$GENERATE" = "$BUILT/generate" ] || fail "GENERATE=$GENERATE is not there" 69
    cargo build --profile local --locked -p bench --bin generate ||
        fail "cannot build $GENERATE; see: cargo build --profile local --locked -p bench --bin generate" 69
}

find_vegeta() {
    if command -v vegeta; then return; fi
    command -v go > /dev/null || fail "vegeta is missing, and so is Go (1.24 or newer) to build the \
pinned one: https://go.dev/dl (Debian 12's is older), or put vegeta on the PATH" 69
    # Builds it the first time; the path of the cached program.
    go -C bench/vegeta tool -n vegeta ||
        fail "cannot build vegeta; see: go -C bench/vegeta tool vegeta -version" 69
}

# A counter of the downstreamer; nothing if none answers.
counted() {
    curl -fsS -m 2 "${DOWNSTREAMER_METRICS:-http://127.0.0.1:9812/metrics}" 2> /dev/null |
        awk -v name="spillway_$1_total" '$1 == name || index($1, name "{") == 1 { sum += $NF; found = 1 }
             END { if (found) printf "%d\n", sum }' || true
}

# Requests that vegeta counted, by code: 200 is accepted, 0 is no answer, any other is refused.
sum_up() {
    awk -v asked="$COUNT" -v rate="$RATE" '
        /^Requests/ { gsub(",", ""); sent = $(NF - 2); sent_rate = $(NF - 1) }
        /^Duration/ { attack = $(NF - 1) }
        /^Status Codes/ {
            for (i = 1; i <= NF; i++) if (split($i, code, ":") == 2 && code[1] ~ /^[0-9]+$/) {
                if (code[1] == 200) accepted = code[2]
                else if (code[1] == 0) silent = code[2]
                else { refused += code[2]; which = which " " code[1] ":" code[2] }
            }
        }
        function share(part) { return sent ? sprintf("%.2f %%", 100 * part / sent) : "-" }
        END {
            printf "\n%-12s %10d   %d/s\n", "asked for", asked, rate
            printf "%-12s %10d   %.0f/s\n", "offered", sent, sent_rate
            printf "%-12s %10d   %s\n", "accepted", accepted, share(accepted)
            printf "%-12s %10d   %s%s\n", "refused", refused, share(refused), which
            printf "%-12s %10d   %s (time-out or connection error)\n", "no answer", silent, share(silent)
            late = asked > sent ? asked - sent : 0
            printf "%-12s %10d   %s\n", "not sent", late, late ? \
                "no connection was free (CONNECTIONS), or this machine is too slow to offer more" : ""
        }' "$1"
}

case ${1:-} in
    spike) RATE=${RATE:-80000} DURATION=${DURATION:-1s} ;;
    sustained) RATE=${RATE:-50000} DURATION=${DURATION:-60s} ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 64 ;;
esac
TEMPLATE=loadtest
[ "${EVENTS:-}" != 1 ] || TEMPLATE=loadtest-events
URL=${URL:-$(sed -n 's/^POST //p' "$TEMPLATE")}
CONNECTIONS=${CONNECTIONS:-1000}
BUILT=${CARGO_TARGET_DIR:-target}/local
GENERATE=${GENERATE:-$BUILT/generate}

[[ $RATE =~ ^[1-9][0-9]{0,6}$ ]] || fail "RATE=$RATE is not a number of requests per second" 64
[[ $CONNECTIONS =~ ^[1-9][0-9]{0,4}$ ]] || fail "CONNECTIONS=$CONNECTIONS is not a number" 64
seconds=$(seconds_of "$DURATION") || fail "DURATION=$DURATION is not like 10s, 2m or 1h" 64
COUNT=$((RATE * seconds))
((seconds >= 1 && seconds <= SECONDS_MAX)) || fail "DURATION is 1s to ${SECONDS_MAX}s" 64
((COUNT <= REQUESTS_MAX)) || fail "$COUNT requests are more than $REQUESTS_MAX" 64
check_url
find_generate
SHOPIFY_CLIENT_SECRET=$(find_secret)
[ -n "$SHOPIFY_CLIENT_SECRET" ] || fail "SHOPIFY_CLIENT_SECRET is not set, nor is \
SHOPIFY_CLIENT_SECRET_FILE; it must be the receiver's (\`make run\` names one in run/spillway.env)" 78
export SHOPIFY_CLIENT_SECRET
VEGETA=$(find_vegeta)
probe=$(curl -sk -o /dev/null -m 5 -w '%{http_code}' "$URL" || true)
[ "$probe" != 000 ] || fail "nothing answers at $URL; start it: make run" 69
# Each connection is a file.
ulimit -n "$(ulimit -Hn)" || true

report=$(mktemp)
trap 'rm -f "$report"' EXIT
before=$(counted delivered)
duplicates_before=$(counted duplicates)
# One worker per connection: what the receiver leaves unanswered cannot pile up in vegeta's memory,
# and a request waits in no queue but the receiver's. Shopify gives up after 5 s.
options=(-format=json -rate="$RATE/1s" -duration="$DURATION" -timeout=5s -redirects=-1 -http2=false
    -workers="$CONNECTIONS" -max-workers="$CONNECTIONS" -connections="$CONNECTIONS" -max-body=0)
if ((COUNT <= PREPARED_MAX)); then
    echo "making $COUNT targets, then $RATE/s for $DURATION at $URL"
else
    echo "$RATE/s for $DURATION at $URL; targets are made meanwhile"
    options+=(-lazy)
fi
# A few more than asked for: a worker that finds no target would end the attack early.
"$GENERATE" --format vegeta-json --targets "$TEMPLATE" --count $((COUNT + CONNECTIONS)) --url "$URL" \
    --seed "${SEED:-$(date +%s%N)}" --threads "$(nproc)" |
    "$VEGETA" attack "${options[@]}" | "$VEGETA" report -type=text | tee "$report"
sum_up "$report"
after=$(counted delivered)
duplicates=$(counted duplicates)
if [ -n "$before" ] && [ -n "$after" ]; then
    printf '%-12s %10d   so far, by the downstreamer\n' delivered $((after - before))
fi
if [ -n "$duplicates_before" ] && [ -n "$duplicates" ] && ((duplicates != duplicates_before)); then
    fail "$((duplicates - duplicates_before)) webhooks were dropped as duplicates, so the figures above say nothing; \
SEED, if set, must be new for each attack, and nobody else may send meanwhile"
fi
