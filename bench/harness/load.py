"""Measures one closed loop against a server that has just been started."""

import time

from . import machine, wrk
from .servers import Failed

# Warm-up, which fills caches and opens connections; not measured.
WARM_UP_SECONDS = 1


def measure(port, pids, redis, connections, settings, requests, expect="accepted",
            scheme="http"):
    """Makes one warm-up and one measured run. `pids` are the process ids of the server, or of several
    of any name, and of `redis`. `expect` selects the counted answers: `accepted` (2xx), or
    `refused` (all others). `scheme`: `http` or `https`."""
    threads = settings["wrk_threads"]
    wrk.run(port, connections, WARM_UP_SECONDS, threads, requests, scheme)
    before_cpu = {name: machine.cpu_seconds(pid) for name, pid in pids.items()}
    before = redis.info() if redis else None
    result = wrk.run(port, connections, settings["seconds"], threads, requests, scheme)
    # Answered webhooks are stored; unanswered ones may still be under way.
    time.sleep(0.3)
    after = redis.info() if redis else None
    cpu = {name: machine.cpu_seconds(pid) - before_cpu[name] for name, pid in pids.items()}
    accepted = result["requests"] - result["non_2xx"]
    answered = accepted if expect == "accepted" else result["non_2xx"]
    if answered == 0:
        raise Failed(f"nothing was {expect}: {result}")
    broken = sum(result[error] for error in ("connect", "read", "write", "timeout"))
    entry = {
        "per_second": answered / result["seconds"],
        "not_200": result["requests"] - answered + broken,
        "cpu_us": sum(cpu.values()) / answered * 1e6,
        "server_cpu_us": (sum(cpu.values()) - cpu.get("redis", 0)) / answered * 1e6,
        "p50_ms": result["p50_us"] / 1e3,
        "p90_ms": result["p90_us"] / 1e3,
        "p99_ms": result["p99_us"] / 1e3,
        "raw": result,
    }
    if redis:
        grown = lambda key: (int(after[key]) - int(before[key])) / answered
        entry["redis_cpu_us"] = cpu["redis"] / answered * 1e6
        entry["memory_bytes"] = grown("used_memory")
        if "aof_current_size" in before:
            entry["aof_bytes"] = grown("aof_current_size")
    return entry
