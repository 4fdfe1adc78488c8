"""A flood while the downstreamer drains to a fast backend: a closed loop of 64 connections of webhooks of
which no two are alike takes all that the receiver can store, with fsync before each answer, for
`--flood-seconds`. Then the flood ends, and the backlog is drained until nothing waits. The load generator,
the backend and all other processes share the cores, with the weights of the systemd units where groups for processor
time can be made."""

import time

from harness import groups, machine, sampler, servers, wrk
from harness.campaign import Findings
from harness.servers import Failed

from .backlog import WEBHOOK_BYTES, check_room

CONNECTIONS = 64
# Webhooks a second for which Redis has room. Above that, the receiver answers 503.
ROOM_PER_SECOND = 25_000
SPARE_BYTES = 256 << 20
EMPTY_RATE_MIN = 1_500
# A drain that stands still during the flood is a fault. How fast it is depends on the machine.
DELIVERED_PART_MIN = 0.1
# CPU that is given for each webhook delivered during the flood. That of receiver and Redis is for each accepted.
PER_DELIVERY = {"downstreamer_cpu_us", "backend_cpu_us"}


def run(campaign):
    seconds, directory = campaign.flood_seconds, campaign.directory
    maxmemory = int(seconds * ROOM_PER_SECOND * WEBHOOK_BYTES) + SPARE_BYTES
    check_room(campaign, maxmemory)
    with (
        servers.redis("always", directory, "--maxmemory", str(maxmemory)) as redis,
        servers.backend(directory) as backend,
        servers.downstreamer(redis, backend, directory) as drain,
        servers.receiver(redis, campaign.secret, directory) as (receiver, port),
    ):
        pids = {"receiver": receiver.pid, "downstreamer": drain.pid, "redis": redis.child.pid}
        each = {**pids, "backend": servers.stats(backend)["pid"]}
        every = campaign.scale(1.0, 0.2)
        with groups.as_units(each) as weights, sampler.Sampler(redis.unix_socket, pids, every, "http") as watch:
            flooded = flood(campaign, redis, backend, port, seconds, each)
            campaign.say(f"{flooded['accepted_per_second']:,.0f}/s accepted, {flooded['delivered_per_second']:,.0f}/s "
                         f"delivered, {flooded['backlog']:,} wait")
            emptied = empty(campaign, redis, backend, flooded["backlog"],
                            {"downstreamer": drain.pid, "redis": redis.child.pid})
    flooded["processor_weights"] = weights or "none: the kernel divides by thread"
    return findings(flooded, emptied, watch.samples, seconds)


def flood(campaign, redis, backend, port, seconds, pids):
    usage, asker = machine.Usage(pids), sampler.Asker(redis.unix_socket)
    result = wrk.run(port, CONNECTIONS, seconds, campaign.wrk_threads, campaign.requests())
    delivered, backlog = servers.stats(backend)["requests"], asker.waiting()
    asker.close()
    accepted = result["requests"] - result["non_2xx"]
    broken = sum(result[error] for error in ("connect", "read", "write", "timeout"))
    if accepted == 0:
        raise Failed(f"nothing was accepted: {result}")
    return {"accepted": accepted, "accepted_per_second": accepted / result["seconds"],
            "not_200": result["non_2xx"] + broken, "delivered": delivered, "delivered_per_second": delivered / result["seconds"], "backlog": backlog,
            "answer_p50_ms": result["p50_us"] / 1e3, "answer_p99_ms": result["p99_us"] / 1e3,
            **{name: us * accepted / max(delivered, 1) if name in PER_DELIVERY else us
               for name, us in usage.each_us(accepted).items()}}


def empty(campaign, redis, backend, backlog, pids):
    """Waits until nothing waits."""
    usage, asker, began = machine.Usage(pids), sampler.Asker(redis.unix_socket), time.monotonic()
    before = servers.stats(backend)["requests"]
    said = deadline = began
    deadline += 60 + backlog / EMPTY_RATE_MIN
    while (waiting := asker.waiting()) > 0:
        if time.monotonic() > deadline:
            raise Failed(f"{waiting:,} still wait")
        if time.monotonic() - said > 10:
            said = time.monotonic()
            campaign.say(f"{waiting:,} still wait")
        time.sleep(0.1)
    seconds, appended = time.monotonic() - began, asker.appended()
    asker.close()
    stats = servers.stats(backend)
    count = stats["requests"] - before
    return {"time_to_empty_s": seconds, "drained_per_second": count / max(seconds, 1e-3), "appended": appended,
            "backend_received": stats["requests"],
            **{f"drain_{name}": us for name, us in usage.each_us(count).items()}}


def findings(flooded, emptied, samples, seconds):
    found = Findings()
    found.figures = {"seconds": seconds, **flooded, **emptied,
                     "backlog_most": max(row["waiting"] for row in samples)}
    found.at_most("answers that are not 200", flooded["not_200"], 0)
    found.at_least("delivered during the flood ÷ accepted", flooded["delivered"] / flooded["accepted"],
                   DELIVERED_PART_MIN)
    found.at_most("stored and not delivered once", abs(emptied["appended"] - emptied["backend_received"]), 0)
    found.read(f"Within {seconds} s, {flooded['accepted']:,} webhooks were accepted, "
               f"{flooded['accepted_per_second']:,.0f}/s, and {flooded['delivered']:,} delivered, "
               f"{flooded['delivered_per_second']:,.0f}/s. "
               + (f"{flooded['backlog']:,} waited at the end; they were delivered {emptied['time_to_empty_s']:.0f} s "
                  f"later, at {emptied['drained_per_second']:,.0f}/s." if flooded["backlog"] else
                  "Nothing waited at the end."))
    found.rows["samples"] = samples
    found.plot("backlog", "Webhooks that wait, during the flood and after it", "seconds", "webhooks",
               {"backlog": [(row["seconds"], row["waiting"]) for row in samples]})
    sampler.plot(found, samples)
    return found
