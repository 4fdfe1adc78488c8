#!/bin/sh
# Reloads nginx and waits until all workers with the old configuration are gone. From then on, only the
# new configuration routes requests. An old worker first finishes its requests, so this takes as long
# as the slowest request.
#
#     ops/nginx/reload.sh                    as root, for the nginx of /run/nginx.pid
#     NGINX_PID=… ops/nginx/reload.sh -c …   for another; arguments are those of nginx
set -eu

PATH=$PATH:/usr/sbin
pid_file=${NGINX_PID:-/run/nginx.pid}
patience_seconds=60

nginx "$@" -t -q
master=$(cat "$pid_file")
old=$(cat "/proc/$master/task/$master/children")
kill -HUP "$master"
waited=0
for worker in $old; do
  while [ -d "/proc/$worker" ]; do
    if [ "$waited" -ge $((patience_seconds * 10)) ]; then
      echo "reload.sh: worker $worker is still there; nginx' error log may say why" >&2
      exit 1
    fi
    sleep 0.1
    waited=$((waited + 1))
  done
done
