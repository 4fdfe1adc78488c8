#!/usr/bin/env bash
# Tests the chart as it is released: helm lint, and for each of several sets of values what helm renders of
# it, against Kubernetes' own schemas (strict: no unknown field), those of the Prometheus operator, and the
# restricted Pod Security Standard. Values that are wrong must be refused.
#
#     ops/helm/test.sh              schemas alone, a minute
#     ops/helm/test.sh apiserver    also a real kube-apiserver with etcd, built with Go: each object by a
#                                   server-side dry run (30 minutes the first time, 4 GB of memory)
#
# Needs what `ops/deps.sh release` installs. The report goes to standard output.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=ops/container/lib.sh
. ops/container/lib.sh
# shellcheck source=ops/versions.sh
. ops/versions.sh

readonly TOOLS=$TARGET/tools
PATH=$TOOLS/bin:$PATH
readonly SCHEMAS=$TOOLS/schemas-$KUBERNETES-$PROMETHEUS_OPERATOR
# What makes CRDs of Go types, as the Prometheus operator does.
readonly CRDS=$TOOLS/programs/crds-$PROMETHEUS_OPERATOR-$CONTROLLER_TOOLS
readonly BASE="downstreamAppUrl: http://app:3000
clientSecret: {existingSecret: app}"

# The directory of a module, downloaded and checked by Go.
module() { go mod download -json "$1" | sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p'; }

# The CRDs of what the chart can make, from the types of the Prometheus operator: its module with the CRDs
# themselves is larger, and not everywhere to be had.
crds() { printf '%s\n' "$CRDS"/out/monitoring.coreos.com_{servicemonitors,prometheusrules}.yaml; }

make_crds() {
  [ ! -e "$CRDS/complete" ] || return 0
  local types=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring
  rm -rf "$CRDS"
  mkdir -p "$CRDS"
  printf 'module spillway.example/crds\n\ngo 1.26.0\n' >"$CRDS/go.mod"
  printf 'package crds\n\nimport _ "%s/v1"\n' "$types" >"$CRDS/crds.go"
  GOFLAGS=-mod=mod go -C "$CRDS" get "$types@v$PROMETHEUS_OPERATOR" >&2
  GOFLAGS=-mod=mod go -C "$CRDS" get -tool "sigs.k8s.io/controller-tools/cmd/controller-gen@v$CONTROLLER_TOOLS" >&2
  GOFLAGS=-mod=mod go -C "$CRDS" tool controller-gen crd "paths=$types/v1" "output:crd:dir=$CRDS/out" >&2
  touch "$CRDS/complete"
}

make_schemas() {
  [ ! -e "$SCHEMAS/complete" ] || return 0
  rm -rf "$SCHEMAS"
  mkdir -p "$SCHEMAS"
  make_crds
  local crds
  mapfile -t crds < <(crds)
  chartcheck schemas "$(module "k8s.io/kubernetes@v$KUBERNETES")/api/openapi-spec/swagger.json" "$SCHEMAS" "${crds[@]}"
  touch "$SCHEMAS/complete"
}

conform() {
  kubeconform -strict -summary -schema-location "$SCHEMAS/{{.ResourceKind}}{{.KindSuffix}}.json" "$1" >"$work/conform.log" 2>&1 ||
    fail "$1: $(cat "$work/conform.log")"
  chartcheck restricted <"$1" || fail "$1 is not restricted"
}

# A helm that `go build` makes takes Kubernetes for 1.20, which the chart refuses: --kube-version.

# good NAME PATTERN… <VALUES: renders and checks them. Something like each pattern must be in what is rendered.
good() {
  local name=$1 pattern
  shift
  echo "$BASE" >"$work/base.yaml"
  cat >"$work/values.yaml"
  helm lint --strict --quiet "$work/spillway" --kube-version "$KUBERNETES" --values "$work/base.yaml,$work/values.yaml" >&2 || fail "$name: helm lint"
  helm template cell "$work/spillway" --namespace apps --kube-version "$KUBERNETES" \
    --values "$work/base.yaml,$work/values.yaml" >"$work/$name.yaml" || fail "$name: helm template"
  conform "$work/$name.yaml"
  for pattern; do
    grep -Eq -- "$pattern" "$work/$name.yaml" || fail "$name: nothing is like $pattern"
  done
  say "- $name: $(grep -c '^kind:' "$work/$name.yaml") objects"
}

# bad PATTERN <VALUES: they are refused with a message like that.
refused=0
bad() {
  if helm template cell "$work/spillway" --kube-version "$KUBERNETES" --values - >/dev/null 2>"$work/bad.log"; then
    fail "accepted, though it should say: $1"
  fi
  grep -Eqi -- "$1" "$work/bad.log" || fail "refused, but not with $1: $(cat "$work/bad.log")"
  refused=$((refused + 1))
}

matrix() {
  good defaults 'storage: 20Gi' 'whenDeleted: Retain' 'image: redis:7.4' 'forget, --due, --every, "1h"' </dev/null
  ! grep -q 'kind: Deployment' "$work/defaults.yaml" || fail "defaults: one cell needs no router"
  ! grep -q 'admin-archive\|envFrom' "$work/defaults.yaml" || fail "defaults: there is an archive"
  good all 'kind: Ingress' 'kind: ServiceMonitor' 'kind: PrometheusRule' 'kind: NetworkPolicy' \
    'name: KAFKA_URL' 'value: "1000000"' 'value: "0.5"' 'cell-spillway-dashboard' 'kind: Deployment' \
    'replicas: 4$' 'server cell-spillway-2:8080 max_fails=0;' 'pod-name: cell-spillway-2$' \
    'mountPath: /etc/spillway/files' 'name: metrics-token' \
    'containerPort: 9814' 'replacement: archiver' 'port: admin-archive' 'value: "s3://bucket/prefix"' \
    'command: \[spillway, console\]' 'value: "/etc/spillway/files/users"' \
    'command: \[spillway, health, --console\]' \
    'name: archive-access' 'forget, --due, --every, "10m"' 'value: "48h"' \
    'absent\(up\{job="request-receiver", cell="apps/cell-spillway-3"\}\)$' <<'VALUES'
cells: 3
drainingCells: 1
image: {repository: mirror/spillway, tag: "1", pullPolicy: Always, pullSecrets: [{name: pull}]}
receiver:
  settings: {MAX_CONNECTIONS: 1000000, REQUIRE_TIMESTAMP: true, OTEL_TRACES_SAMPLER_ARG: 0.5}
  extraVolumeMounts: [{name: files, mountPath: /etc/spillway/files, readOnly: true}]
  resources: {limits: {cpu: 2, memory: 2Gi}}
downstreamer:
  extraVolumeMounts: [{name: files, mountPath: /etc/spillway/files, readOnly: true}]
kafkaProducer:
  enabled: true
  settings: {KAFKA_URL: "kafka:9092"}
  extraVolumeMounts: [{name: files, mountPath: /etc/spillway/files, readOnly: true}]
archiver:
  enabled: true
  settings: {ARCHIVE_URL: "s3://bucket/prefix", ARCHIVE_KEY_FILE: /etc/spillway/files/keys, AWS_REGION: eu-central-1}
  existingSecret: archive-access
  extraVolumeMounts: [{name: files, mountPath: /etc/spillway/files, readOnly: true}]
forget:
  every: 10m
  settings: {REDACT_WITHIN: 48h}
console:
  enabled: true
  settings: {CONSOLE_USERS_FILE: /etc/spillway/files/users}
  extraVolumeMounts: [{name: files, mountPath: /etc/spillway/files, readOnly: true}]
extraVolumes: [{name: files, secret: {secretName: files}}]
terminationGracePeriodSeconds: 120
listenHost: "[::]"
router: {image: "mirror/nginx:1", replicas: 3, maxBody: 32m, resources: {}}
redis: {image: "valkey/valkey:8", maxmemory: 2gb}
persistence: {size: 50Gi, storageClass: fast}
service: {type: LoadBalancer, port: 8080, annotations: {a: b}}
ingress: {enabled: true, className: nginx, host: hooks.example.com, tlsSecret: tls}
networkPolicy: {enabled: true, ingressFrom: [{podSelector: {matchLabels: {app: ingress}}}]}
metrics:
  serviceMonitor:
    enabled: true
    labels: {release: prometheus}
    authorization: {credentials: {name: metrics-token, key: token}}
  prometheusRule: {enabled: true}
  dashboard: {enabled: true}
serviceAccount: {annotations: {a: b}}
podAnnotations: {a: b}
podLabels: {a: b}
nodeSelector: {disk: ssd}
tolerations: [{key: a, operator: Exists, effect: NoSchedule}]
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {a: b}}
topologySpreadConstraints:
  - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}
priorityClassName: high
VALUES
  good routes 'name: downstreamer-billing' 'value: "0.0.0.0:9822"' 'value: "billing"' 'value: "orders/\*"' \
    'value: "256MiB"' 'value: "64MiB"' 'containerPort: 9823' 'targetPort: admin-9823' 'port: admin-9822, protocol' \
    'port: admin-9823$' 'memory: 3Gi' <<'VALUES'
downstreamers:
  - {name: billing, port: 9822, downstreamAppUrl: "https://billing.example.com", settings: {ONLY_TOPICS: "orders/*"}}
  - name: catalogue
    port: 9823
    downstreamAppUrl: "discard:"
    settings: {EXCEPT_TOPICS: "orders/*", DEAD_MAX: 64MiB}
    extraVolumeMounts: [{name: files, mountPath: /etc/spillway/files, readOnly: true}]
    resources: {limits: {memory: 3Gi}}
extraVolumes: [{name: files, secret: {secretName: files}}]
networkPolicy: {enabled: true}
metrics: {serviceMonitor: {enabled: true}}
VALUES
  good external 'value: "rediss://redis:6380/0"' 'name: cell-spillway$' <<'VALUES'
redis: {externalUrl: "rediss://redis:6380/0"}
spill: {enabled: false}
podDisruptionBudget: {enabled: false}
VALUES
  ! grep -q 'volumeClaimTemplates\|image: redis' "$work/external.yaml" || fail "external: there is a Redis, or a disk"
  good external-spill 'kind: StatefulSet' 'mountPath: /data/spill' 'whenScaled: Retain' <<'VALUES'
redis: {externalUrl: "rediss+cluster://redis:6380"}
VALUES
  good archive-directory 'mountPath: /archive' 'claimName: archive' 'value: "file:///archive"' <<'VALUES'
archiver:
  enabled: true
  settings: {ARCHIVE_URL: "file:///archive"}
  extraVolumeMounts: [{name: archive, mountPath: /archive}]
forget: {enabled: false}
extraVolumes: [{name: archive, persistentVolumeClaim: {claimName: archive}}]
VALUES
  ! grep -q 'name: forget' "$work/archive-directory.yaml" || fail "archive-directory: there is a purge"
  good last-drains 'kind: Deployment' 'replicas: 2$' 'server cell-spillway-0:8080' <<'VALUES'
drainingCells: 1
VALUES
  ! grep -q 'server cell-spillway-1' "$work/last-drains.yaml" || fail "last-drains: webhooks reach a cell that drains"
  ! grep -q 'return 503' "$work/last-drains.yaml" || fail "last-drains: the router is closed"
  good closed 'return 503;' 'add_header Retry-After 2 always;' 'server cell-spillway-1:8080' <<'VALUES'
cells: 2
router: {closed: true}
VALUES
  ! grep -q 'proxy_pass' "$work/closed.yaml" || fail "closed: webhooks reach a cell"
  good own-secret 'kind: Secret' 'client: "hush"' <<'VALUES'
clientSecret: {existingSecret: "", key: client, value: hush}
VALUES
  good secrets-of-shops 'name: SHOP_SECRETS_DIR' <<'VALUES'
clientSecret: {existingSecret: ""}
receiver:
  settings: {SHOP_SECRETS_DIR: /etc/spillway/shops}
  extraVolumeMounts: [{name: shops, mountPath: /etc/spillway/shops, readOnly: true}]
extraVolumes: [{name: shops, secret: {secretName: shops}}]
VALUES
  ! grep -q 'SHOPIFY_CLIENT_SECRET_FILE' "$work/secrets-of-shops.yaml" || fail "secrets-of-shops: a file that is not there"
}

wrong_values() {
  bad 'downstreamAppUrl is required' <<<'clientSecret: {existingSecret: app}'
  bad 'existingSecret is required' <<<'downstreamAppUrl: http://app:3000'
  bad 'set cells to 1' <<<"$BASE
cells: 2
redis: {externalUrl: redis://redis:6379}"
  bad 'set cells to 1' <<<"$BASE
drainingCells: 1
redis: {externalUrl: redis://redis:6379}"
  bad 'cells' <<<"$BASE
cells: 0"
  bad '/router/closed' <<<"$BASE
router: {closed: later}"
  bad 'replicas' <<<"$BASE
replicas: 2"
  bad 'downstreamAppUrl' <<<"clientSecret: {existingSecret: app}
downstreamAppUrl: app:3000"
  bad 'max_concurrency' <<<"$BASE
downstreamer: {settings: {max_concurrency: 8}}"
  bad 'LISTEN' <<<"$BASE
receiver: {settings: {LISTEN: '127.0.0.1:8080'}}"
  bad 'SHOPIFY_CLIENT_SECRET' <<<"$BASE
receiver: {settings: {SHOPIFY_CLIENT_SECRET: hush}}"
  bad '/receiver' <<<"$BASE
receiver: {enabled: false}"
  bad 'KAFKA_URL is required' <<<"$BASE
kafkaProducer: {enabled: true}"
  bad 'two have the same name' <<<"$BASE
downstreamers: [{name: a, port: 9822, downstreamAppUrl: 'discard:'}, {name: a, port: 9823, downstreamAppUrl: 'discard:'}]"
  bad 'two have the same port' <<<"$BASE
downstreamers: [{name: a, port: 9822, downstreamAppUrl: 'discard:'}, {name: b, port: 9822, downstreamAppUrl: 'discard:'}]"
  bad '/downstreamers/0/port' <<<"$BASE
downstreamers: [{name: a, port: 9812, downstreamAppUrl: 'discard:'}]"
  bad '/downstreamers/0/name' <<<"$BASE
downstreamers: [{name: http, port: 9822, downstreamAppUrl: 'discard:'}]"
  bad '/downstreamers/0.*downstreamAppUrl' <<<"$BASE
downstreamers: [{name: a, port: 9822}]"
  bad '/downstreamers/0/settings' <<<"$BASE
downstreamers: [{name: a, port: 9822, downstreamAppUrl: 'discard:', settings: {CONSUMER: b}}]"
  bad 'ARCHIVE_URL is required' <<<"$BASE
archiver: {enabled: true}"
  bad '/forget/every' <<<"$BASE
forget: {every: hourly}"
  bad '/forget/every' <<<"$BASE
forget: {every: 0s}"
  bad 'REDACT_WITHIN' <<<"$BASE
forget: {settings: {REDACT_WITHIN: 0s}}"
  bad 'REDACT_WITHIN' <<<"$BASE
archiver: {enabled: true, settings: {ARCHIVE_URL: 's3://bucket', REDACT_WITHIN: 30M}}"
  bad 'FORGET_CELLS' <<<"$BASE
forget: {settings: {FORGET_CELLS: 12345678}}"
  bad 'FORGET_PATIENCE' <<<"$BASE
forget: {settings: {FORGET_PATIENCE: soon}}"
  bad '/persistence/size' <<<"$BASE
persistence: {size: 20GiB}"
  bad '/spill/max' <<<"$BASE
spill: {max: 8G}"
  bad 'listenHost' <<<"$BASE
listenHost: 127.0.0.1"
  bad 'maxmemory' <<<"$BASE
redis: {maxmemory: lots}"
  bad 'type' <<<"$BASE
service: {type: ExternalName}"
  bad 'ingress.host is required' <<<"$BASE
ingress: {enabled: true}"
  bad 'interval' <<<"$BASE
metrics: {serviceMonitor: {interval: often}}"
  say "- $refused sets of wrong values are refused, each with the name of the value"
}

# A go.mod for programs of a module that replaces its parts by directories, which are modules of their own.
# program_of MODULE VERSION PACKAGE…: in $TOOLS/bin.
program_of() {
  local module=$1 version=$2 home=$TOOLS/programs/${1//\//-}-$2 part
  shift 2
  [ ! -e "$home/complete" ] || return 0
  rm -rf "$home"
  mkdir -p "$home"
  {
    printf 'module spillway.example/programs\n\ngo 1.25.0\n\nrequire %s %s\n' "$module" "$version"
    # Kubernetes names its parts v0.0.0; they are published with the minor and the patch of its version.
    go mod download -json "$module@$version" | sed -n 's/^\t"GoMod": "\(.*\)",\?$/\1/p' | xargs cat |
      sed -n 's,^\t\(k8s\.io/[a-z-]*\) v0\.0\.0\( .*\)\?$,\1,p' | sort -u | while read -r part; do
      echo "replace $part => $part v0.${version#v1.}"
    done
  } >"$home/go.mod"
  GOFLAGS=-mod=mod go -C "$home" get -tool "${@/%/@$version}" >&2
  for part; do
    GOFLAGS=-mod=mod go -C "$home" build -trimpath -o "$TOOLS/bin/$(program_name "$part")" "$part" >&2
  done
  touch "$home/complete"
}
program_name() { case "$1" in */etcd/server/v3) echo etcd ;; *) basename "$1" ;; esac; }

api() { kubectl --kubeconfig "$work/kubeconfig" --cache-dir "$work/cache" "$@"; }

start_api_server() {
  local port=${API_PORT:-16443}
  start etcd.log etcd --data-dir "$work/etcd" --listen-client-urls "http://127.0.0.1:$((port + 1))" \
    --advertise-client-urls "http://127.0.0.1:$((port + 1))" --listen-peer-urls "http://127.0.0.1:$((port + 2))"
  openssl genrsa -out "$work/service.key" 2048 2>/dev/null
  echo 'token-of-the-test,admin,1,system:masters' >"$work/tokens"
  start apiserver.log kube-apiserver --etcd-servers "http://127.0.0.1:$((port + 1))" --bind-address 127.0.0.1 \
    --advertise-address 192.0.2.1 --endpoint-reconciler-type none --secure-port "$port" --cert-dir "$work/certificates" --token-auth-file "$work/tokens" \
    --authorization-mode RBAC --service-cluster-ip-range 10.0.0.0/24 \
    --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$work/service.key" \
    --service-account-signing-key-file "$work/service.key"
  cat >"$work/kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://127.0.0.1:$port", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: token-of-the-test}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
current-context: test
CONFIG
  until_true "the API server is ready" 180 api get --raw /readyz
}

# Each object of each set of values as the server would store it, and a pod of it in a restricted namespace.
by_api_server() {
  program_of k8s.io/kubernetes "v$KUBERNETES" k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl
  program_of go.etcd.io/etcd/server/v3 "v$ETCD" go.etcd.io/etcd/server/v3
  start_api_server
  api create namespace apps >&2
  api label namespace apps pod-security.kubernetes.io/enforce=restricted pod-security.kubernetes.io/warn=restricted >&2
  # There is no controller, which would make it, nor the class of the pods.
  api create priorityclass high --value 1000 >&2
  local crds rendered
  mapfile -t crds < <(crds)
  api apply --server-side --filename "$(IFS=, && echo "${crds[*]}")" >&2
  api wait --for condition=established --timeout 60s crd --all >&2
  for rendered in "$work"/{defaults,all,routes,external,external-spill,archive-directory,last-drains,own-secret,secrets-of-shops}.yaml; do
    api apply --namespace apps --server-side --dry-run=server --warnings-as-errors --filename "$rendered" >&2 ||
      fail "the API server refuses $(basename "$rendered")"
    # A pod needs its account to be there.
    api create serviceaccount cell-spillway --namespace apps --dry-run=client --output yaml |
      api apply --namespace apps --server-side --filename - >&2
    chartcheck pods <"$rendered" | api create --namespace apps --dry-run=server --warnings-as-errors --filename - >&2 ||
      fail "the API server refuses a pod of $(basename "$rendered")"
  done
  say "- kube-apiserver $KUBERNETES takes every object, and its pods in a restricted namespace, without a warning"
}

main() {
  trap clean_up EXIT
  # Without podman, there is nothing of it to remove.
  podman() { :; }
  [ -x "$TOOLS/bin/chartcheck" ] || fail "the tools are missing; install them with: ops/deps.sh release"
  make_schemas
  DIST=$work ops/release.sh chart >&2
  tar -xf "$work/spillway-$VERSION-chart.tgz" -C "$work"
  say "# The chart"
  say
  say "By \`make chart-test\`: helm $(helm version --template '{{.Version}}'), the schemas of Kubernetes $KUBERNETES" \
    "and of the Prometheus operator $PROMETHEUS_OPERATOR, the restricted Pod Security Standard."
  say
  matrix
  wrong_values
  conform "$work/spillway-$VERSION-kubernetes.yaml"
  say "- the plain manifests: $(grep -c '^kind:' "$work/spillway-$VERSION-kubernetes.yaml") objects"
  actionlint -shellcheck= -pyflakes= .github/workflows/*.yml || fail "actionlint"
  say "- \`actionlint\`: no finding"
  [ "${1:-}" != apiserver ] || by_api_server
}

main "$@"
