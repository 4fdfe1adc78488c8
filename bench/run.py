#!/usr/bin/env python3
"""Measures the receiver at saturation beside a bare server, interleaved, round by round.

Settings come from the environment; bench/README.md explains what is measured.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import load, machine, report, servers
from harness.report import BESIDE
from harness.servers import RELEASE, ROOT, Failed

SECRET = "a-secret-for-the-benchmark-only"
HINTS = {
    "wrk": "apt-get install wrk",
    "redis-server": "apt-get install redis-server",
    "redis-cli": "apt-get install redis-tools",
}


def setting(name, default):
    return os.environ.get(name) or default


def bounded(name, default, low, high):
    return within(name, setting(name, str(default)), low, high)


def within(name, text, low, high):
    if not text.isdecimal() or not low <= int(text) <= high:
        raise Failed(f"{name}={text} is not a number from {low} to {high}")
    return int(text)


def read_settings():
    fsync = setting("FSYNC", "always,everysec")
    systems = setting("SYSTEMS", f"baseline,{fsync}").split(",")
    known = ["baseline", *servers.FSYNC]
    if unknown := [system for system in systems if system not in known]:
        raise Failed(f"{unknown[0]} is none of {', '.join(known)}")
    other = os.environ.get("BESIDE")
    if other:
        if not os.access(other, os.X_OK):
            raise Failed(f"BESIDE={other} is no program")
        pairs = [[system] if system == "baseline" else [system, system + BESIDE] for system in systems]
        systems = [system for pair in pairs for system in pair]
    return {
        **({"beside": setting("BESIDE_NAME", Path(other).name)} if other else {}),
        "rounds": bounded("ROUNDS", 5, 1, 50),
        "seconds": bounded("ROUND_SECONDS", 10, 1, 120),
        "connections": [
            within("CONNECTIONS", part, 1, 10_000)
            for part in setting("CONNECTIONS", "64,256").split(",")
        ],
        "systems": systems,
        "wrk_threads": bounded("WRK_THREADS", 2, 1, 64),
        "body_bytes": bounded("BODY_BYTES", 5300, 300, 1 << 20),
        "distinct": bounded("DISTINCT", 10_000, 1, 1_000_000),
    }


def check_tools(settings):
    missing = [f"{tool}: {hint}" for tool, hint in HINTS.items() if not shutil.which(tool)]
    needed = ["generate", "fdatasync", "baseline"]
    if settings["systems"] != ["baseline"]:
        needed.append("request-receiver")
        if not (ROOT / "ops" / "redis.conf").exists():
            missing.append("ops/redis.conf")
    build = "cargo build --release -p bench -p request-receiver"
    missing += [f"target/release/{name}: {build}" for name in needed if not (RELEASE / name).exists()]
    if missing:
        raise Failed("missing:\n  " + "\n  ".join(missing))


def generate(settings, directory):
    path = Path(directory) / "requests.bin"
    command = [str(RELEASE / "generate"), "--format", "wrk", "--out", str(path)]
    command += ["--count", str(settings["distinct"]), "--size", str(settings["body_bytes"])]
    command += ["--targets", str(ROOT / "loadtest")]
    environment = {"PATH": os.environ["PATH"], "SHOPIFY_CLIENT_SECRET": SECRET}
    subprocess.run(command, env=environment, check=True)
    return path


def one_round(system, connections, settings, requests, directory):
    """Runs one round with new processes, a new Redis and a new directory."""
    if system == "baseline":
        with servers.baseline(SECRET, directory) as (child, port):
            pids = {"server": child.pid}
            return load.measure(port, pids, None, connections, settings, requests)
    program = os.environ["BESIDE"] if system.endswith(BESIDE) else RELEASE / "request-receiver"
    with servers.redis(system.removesuffix(BESIDE), directory) as redis:
        with servers.receiver(redis, SECRET, directory, program) as (child, port):
            pids = {"server": child.pid, "redis": redis.child.pid}
            return load.measure(port, pids, redis, connections, settings, requests)


def all_rounds(settings, requests, directory):
    # Each round runs the systems the other way round: what one leaves behind on the disk, and a machine
    # that becomes slower, then hurt all alike.
    plan = [
        (number, connections, system)
        for connections in settings["connections"]
        for number in range(1, settings["rounds"] + 1)
        for system in settings["systems"][:: 1 if number % 2 else -1]
    ]
    rounds = []
    for step, (number, connections, system) in enumerate(plan, 1):
        entry = one_round(system, connections, settings, requests, directory)
        entry = {"system": system, "connections": connections, "round": number, **entry}
        rounds.append(entry)
        print(
            f"[{step}/{len(plan)}] {connections} connections, round {number}, {system}: "
            f"{entry['per_second']:,.0f}/s, CPU {entry['cpu_us']:.1f} µs, "
            f"p50 {entry['p50_ms']:.2f} ms, p99 {entry['p99_ms']:.2f} ms, "
            f"not 200: {entry['not_200']}",
            flush=True,
        )
    return rounds


def main():
    settings = read_settings()
    check_tools(settings)
    base = Path(setting("BENCH_DIR", str(ROOT / "target")))
    base.mkdir(parents=True, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="bench-", dir=base)
    try:
        print(f"{settings['distinct']} distinct webhooks of about {settings['body_bytes']} bytes")
        requests = generate(settings, directory)
        fdatasync = subprocess.run(
            [str(RELEASE / "fdatasync"), "--json", directory], check=True, capture_output=True
        )
        disk = json.loads(fdatasync.stdout)
        facts = machine.facts()
        rounds = all_rounds(settings, requests, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    today = datetime.date.today().isoformat()
    results = Path(setting("RESULTS", f"{ROOT}/bench/results/{today}-{facts['cores']}c"))
    print("\n" + report.write(results, facts, disk, settings, rounds))
    print(f"written to {os.path.relpath(results)}")


if __name__ == "__main__":
    try:
        with servers.alone():
            main()
    except Failed as failure:
        sys.exit(f"bench: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
