#!/usr/bin/env python3
"""Measures Spillway beside other webhook receivers, interleaved, round by round, and writes docs/compare.md.

Settings come from the environment; bench/README.md explains what is measured.
"""

import datetime
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import compare, machine, servers, wrk
from harness.campaign import Campaign
from harness.peers import CONNECTIONS, PEERS, is_missing
from harness.servers import RELEASE, ROOT, Failed
from run import bounded, setting

# What compiles as it runs needs longer to warm up than the receiver does.
WARM_UP_SECONDS = 2
# Answered webhooks are stored; unanswered ones may still be under way.
SETTLE_SECONDS = 0.5
# A delivery has ended when nothing came for this time.
DRAINED_SECONDS = 0.7
FIRST_DELIVERY_WITHIN = 20
POLL_SECONDS = 0.05
# A peer may fail in any of these ways, such as an answer that is none. Then it is left out.
FAILURES = (Failed, OSError, subprocess.SubprocessError, ValueError, LookupError)


def read_settings():
    quick = os.environ.get("QUICK") == "1"
    names = setting("SYSTEMS", ",".join(name for name, peer in PEERS.items() if not peer.if_named)).split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise Failed(f"{unknown[0]} is none of {', '.join(PEERS)}")
    return {
        "rounds": bounded("ROUNDS", 1 if quick else 3, 1, 50),
        "seconds": bounded("ROUND_SECONDS", 1 if quick else 4, 1, 120),
        "connections": bounded("CONNECTIONS", CONNECTIONS, 1, 10_000),
        "systems": names,
        "wrk_threads": bounded("WRK_THREADS", 2, 1, 64),
        "quick": quick,
    }


def check_tools():
    missing = [name for name in ("generate", "fdatasync", "baseline", "backend", "request-receiver", "downstreamer")
               if not (RELEASE / name).exists()]
    if missing:
        raise Failed(f"target/release has no {', '.join(missing)}: `make peers` builds them")


def first_request(requests):
    """Returns the first prepared webhook, as it is sent."""
    with open(requests, "rb") as file:
        return file.read(int(file.read(10)))


def status(port, request):
    """Sends one request and returns the status of its answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request)
        head = connection.makefile("rb").readline().split()
    return int(head[1]) if len(head) > 1 else 0


def forged(request):
    """Returns the request with one letter of the body changed, so that its signature is wrong."""
    head, body = request.split(b"\r\n\r\n", 1)
    at = body.index(b"_at\"")
    return head + b"\r\n\r\n" + body[:at] + b"_aT" + body[at + 3:]


def try_out(name, requests, directory):
    """Starts a system and sends it a good webhook and a forged one. Returns whether it checks the signature."""
    request = first_request(requests)
    with PEERS[name].start(directory) as running:
        good, bad = status(running.port, request), status(running.port, forged(request))
        time.sleep(SETTLE_SECONDS)
        stored = running.stored() if running.stored else None
    if good != 200:
        raise Failed(f"it answers {good} to a good webhook")
    if stored is not None and stored != (2 if bad == 200 else 1):
        raise Failed(f"{stored} webhooks are stored of a good one and a forged one, which is answered {bad}")
    return bad == 401


def try_all(settings, requests, directory):
    """Returns the systems that run here, with whether each checks the signature, and the others with the reason."""
    runs, left_out = {}, {}
    for name in settings["systems"]:
        peer = PEERS[name]
        if peer.path and not os.environ.get(peer.path):
            left_out[name] = f"`{peer.path}` names no program"
            continue
        if is_missing(name):
            left_out[name] = "its packages could not be fetched"
            print(f"{name} is left out: bench/peers/install.sh could not fetch it", flush=True)
            continue
        try:
            runs[name] = try_out(name, requests, directory)
            print(f"{name}: {'checks' if runs[name] else 'does not check'} the signature", flush=True)
        except FAILURES as error:
            if name.startswith("spillway"):
                raise
            left_out[name] = reason(error)
            print(f"{name} is left out: {error}", flush=True)
    return runs, left_out


def accepted(result):
    return result["requests"] - result["non_2xx"]


def ingest(running, settings, requests):
    """Makes one warm-up and one measured run of wrk. Returns the figures."""
    send = lambda seconds: wrk.run(running.port, settings["connections"], seconds, settings["wrk_threads"], requests)
    pids = {"server": running.server, **running.stores}
    warm = send(1 if settings["quick"] else WARM_UP_SECONDS)
    before, memory = machine.Usage(pids, machine.tree_cpu_seconds), memory_of(running)
    result = send(settings["seconds"])
    time.sleep(SETTLE_SECONDS)
    answered = accepted(result)
    if answered == 0:
        raise Failed(f"nothing was answered 200: {result}")
    cpu = before.each_us(answered)
    broken = sum(result[error] for error in ("connect", "read", "write", "timeout"))
    entry = {"per_second": answered / result["seconds"], "not_200": result["non_2xx"] + broken,
             "cpu_us": sum(cpu.values()), **cpu, "p50_ms": result["p50_us"] / 1e3, "p99_ms": result["p99_us"] / 1e3}
    if memory is not None:
        entry["memory_bytes"] = (memory_of(running) - memory) / answered
    if running.stored:
        entry["answered"] = accepted(warm) + answered
        entry["stored"] = running.stored()
    return entry


def memory_of(running):
    return int(running.redis.info()["used_memory"]) if running.redis else None


def deliver(running, seconds, directory):
    """Starts the delivery of what is stored to a fast backend. Returns its rate and CPU from the first delivery on,
    over a number of seconds or until nothing comes."""
    with servers.backend(directory) as backend, running.deliver(backend) as pid:
        pids, deadline = {"worker": pid, **running.stores}, time.monotonic() + FIRST_DELIVERY_WITHIN
        while not (first := servers.stats(backend)["requests"]):
            if time.monotonic() > deadline:
                raise Failed("nothing was delivered")
            time.sleep(POLL_SECONDS)
        usage, began = machine.Usage(pids, machine.tree_cpu_seconds), time.monotonic()
        last, count, cpu = began, first, None
        while time.monotonic() - began < seconds and time.monotonic() - last < DRAINED_SECONDS:
            time.sleep(POLL_SECONDS)
            now = servers.stats(backend)["requests"]
            if now > count:
                last, count, cpu = time.monotonic(), now, usage.each_us(now - first)
    if cpu is None:
        return {}
    return {"delivered_per_second": (count - first) / (last - began), "delivery_cpu_us": sum(cpu.values()),
            **{f"delivery_{name}": value for name, value in cpu.items()}}


def one_round(name, settings, requests, directory):
    """Runs one round with new processes and an empty store."""
    with PEERS[name].start(directory) as running:
        entry = ingest(running, settings, requests)
        if running.deliver:
            entry |= deliver(running, settings["seconds"], directory)
    return entry


def all_rounds(settings, names, left_out, requests, directory):
    """Returns the rounds. Another system that fails in one is left out of all, with the reason."""
    # Each round runs the systems the other way round, as in run.py.
    plan = [(number, name) for number in range(1, settings["rounds"] + 1)
            for name in names[:: 1 if number % 2 else -1]]
    rounds = []
    for step, (number, name) in enumerate(plan, 1):
        if name in left_out:
            continue
        try:
            entry = {"system": name, "round": number, **one_round(name, settings, requests, directory)}
        except FAILURES as error:
            if name.startswith("spillway"):
                raise
            left_out[name] = f"round {number}: " + reason(error)
            print(f"{name} is left out: {error}", flush=True)
            continue
        rounds.append(entry)
        print(f"[{step}/{len(plan)}] round {number}, {name}: " + compare.words(entry), flush=True)
    return [entry for entry in rounds if entry["system"] not in left_out]


def reason(error):
    """Returns the first line of an error without paths of this checkout: the rest is logs."""
    return str(error).partition("\n")[0].rstrip(":").replace(f"{RELEASE.parent}/", "").replace(f"{ROOT}/", "")[:200] or type(error).__name__


def versions_of(name):
    try:
        return PEERS[name].versions()
    except FAILURES as error:
        return f"not found: {reason(error)}"


def main():
    settings = read_settings()
    check_tools()
    base = Path(setting("BENCH_DIR", str(ROOT / "target")))
    base.mkdir(parents=True, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=base)
    try:
        requests = Campaign(directory, settings["quick"]).requests()
        disk = subprocess.run([str(RELEASE / "fdatasync"), "--json", directory], check=True, capture_output=True)
        facts = machine.facts()
        runs, left_out = try_all(settings, requests, directory)
        rounds = all_rounds(settings, list(runs), left_out, requests, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    today = datetime.date.today().isoformat()
    raw = {"date": today, "machine": facts, "settings": settings, "fdatasync": json.loads(disk.stdout),
           "signature": runs, "left_out": left_out, "rounds": rounds,
           "versions": {name: versions_of(name) for name in runs if name not in left_out}}
    # A quick run is too short for a page.
    quick = RELEASE.parent / "peers" / "quick"
    results = Path(setting("RESULTS", str(quick if settings["quick"] else
                                          f"{ROOT}/bench/results/{today}-{facts['cores']}c")))
    print("\n" + compare.write(results, raw, None if settings["quick"] else ROOT / "docs"))
    print(f"written to {os.path.relpath(results)}" + ("" if settings["quick"] else " and docs/compare.md"))


if __name__ == "__main__":
    try:
        with servers.alone():
            main()
    except Failed as failure:
        sys.exit(f"peers: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
