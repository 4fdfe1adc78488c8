"""A queue of a million webhooks is drained to a fast backend. Measures the time from the downstreamer's
start to the first delivery, the rate, the memory, the order, and the CPU compared with wrk posting such
webhooks directly to the backend. With DRAIN_LARGE=1 also five million, more than the index holds."""

import os
import resource
import shutil
import time

from harness import fill, machine, sampler, servers, wrk
from harness.campaign import Findings
from harness.servers import Failed

COUNT, COUNT_LARGE = 1_000_000, 5_000_000
# Webhooks per product, in order, and connections.
EACH, FILL_CONNECTIONS, WRK_CONNECTIONS = 10, 50, 64
WEBHOOK_BYTES, SPARE_BYTES = 1_500, 256 << 20
BEGIN_SECONDS_MAX, MEMORY_MIB_MAX, RATE_MIN = 2.0, 256, 12_000
# Bound with a full index and full deduplication window, 128 MiB each by default, and 64 for the rest.
MEMORY_MIB_MAX_LARGE = 128 + 128 + 64
FILL_RATE_MIN, DRAIN_RATE_MIN = 3_000, 1_500


def run(campaign):
    found = Findings()
    with servers.backend(campaign.directory) as backend:
        straight, per_second = post_straight(campaign, backend)
    found.figures |= {"straight_wrk_cpu_us": straight, "straight_per_second": per_second}
    one_drain(campaign, found, "", campaign.scale(COUNT, 40_000), straight, MEMORY_MIB_MAX)
    if os.environ.get("DRAIN_LARGE") == "1" and not campaign.quick:
        one_drain(campaign, found, "large_", COUNT_LARGE, straight, MEMORY_MIB_MAX_LARGE)
    return found


def post_straight(campaign, backend):
    """Returns the CPU of wrk per webhook that it posts directly to the backend, and the rate."""
    before = children_seconds()
    result = wrk.run(backend, WRK_CONNECTIONS, campaign.scale(8, 1), campaign.wrk_threads,
                     campaign.requests())
    cpu_us = (children_seconds() - before) / result["requests"] * 1e6
    return cpu_us, result["requests"] / result["seconds"]


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def one_drain(campaign, found, prefix, count, straight, memory_max):
    maxmemory = count * WEBHOOK_BYTES + SPARE_BYTES
    check_room(campaign, maxmemory)
    directory = campaign.directory
    with servers.redis("always", directory, "--maxmemory", str(maxmemory)) as redis:
        with servers.receiver(redis, campaign.secret, directory) as (_, port):
            filled = fill.run(port, count, campaign.secret, 60 + count / FILL_RATE_MIN,
                              products=count // EACH, shops=100, connections=FILL_CONNECTIONS)
            campaign.say(f"{count:,} queued at {filled['per_second']:,.0f}/s")
        with servers.backend(directory) as backend:
            drained = drain(campaign, redis, backend, count)
    judge(found, prefix, count, drained, straight, memory_max)


def check_room(campaign, maxmemory):
    """Checks the room for Redis, for the copy of changes during a rewrite, and for two AOFs on the disk."""
    memory, disk = machine.available_bytes(), shutil.disk_usage(campaign.directory).free
    if memory < 1.5 * maxmemory + (1 << 30):
        raise Failed(f"needs {int(1.5 * maxmemory) + (1 << 30) >> 20} MiB of memory, {memory >> 20} are free")
    if disk < 3 * maxmemory:
        raise Failed(f"needs {3 * maxmemory >> 20} MiB on the disk, {disk >> 20} are free")


def drain(campaign, redis, backend, count):
    asker, started = sampler.Asker(redis.unix_socket), time.time()
    pids = {"redis": redis.child.pid, "backend": servers.stats(backend)["pid"]}
    before = {name: machine.cpu_seconds(pid) for name, pid in pids.items()}
    said = deadline = time.monotonic()
    deadline += 60 + count / DRAIN_RATE_MIN
    with servers.downstreamer(redis, backend, campaign.directory, DEDUP_WINDOW="6h") as child:
        with sampler.Sampler(redis.unix_socket, {"downstreamer": child.pid}, 0.5) as watch:
            while (trimmed := int(asker.ask("HGET {spillway}:counts trimmed") or 0)) < count:
                if time.monotonic() > deadline:
                    raise Failed(f"{count - trimmed:,} still queued")
                if time.monotonic() - said > 10:
                    said = time.monotonic()
                    campaign.say(f"{count - trimmed:,} still queued")
                time.sleep(0.1)
        cpu = {name: machine.cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        cpu["downstreamer"] = machine.cpu_seconds(child.pid)
    asker.close()
    return {"stats": servers.stats(backend), "samples": watch.samples, "cpu": cpu, "started": started}


def judge(found, prefix, count, drained, straight, memory_max):
    stats, cpu = drained["stats"], drained["cpu"]
    per_second = stats["requests"] / stats["seconds_first_to_last"]
    began = stats["first_at"] - drained["started"]
    memory = max(row["downstreamer_rss_bytes"] for row in drained["samples"]) / 2**20
    each = {name: seconds / count * 1e6 for name, seconds in cpu.items()}
    figures = {"webhooks": count, "first_delivered_after_s": began, "drained_per_second": per_second,
               "downstreamer_most_mib": memory, **{f"{name}_cpu_us": us for name, us in each.items()},
               "downstreamer_cpu_by_wrk": each["downstreamer"] / straight}
    found.figures.update({prefix + name: value for name, value in figures.items()})
    of = f"{count:,}: "
    found.at_most(of + "first delivered after the start", began, BEGIN_SECONDS_MAX, "s")
    found.at_least(of + "delivered", per_second, RATE_MIN, "/s")
    found.at_most(of + "memory of the downstreamer", memory, memory_max, "MiB")
    found.at_most(of + "queued and not delivered once", abs(count - stats["requests"]), 0)
    found.at_most(of + "out of their product's order", stats["disordered"] + stats["repeated"], 0)
    found.at_least(of + "products whose last came", stats["resources"] if
                   stats["newest_of_the_last_resource"] == EACH else 0, count // EACH)
    found.read(f"{count:,} webhooks are drained at {per_second:,.0f}/s, the first {began:.1f} s after the "
               f"start, in {memory:.0f} MiB; each costs the downstreamer {each['downstreamer']:.0f} µs, "
               f"Redis {each['redis']:.0f} µs and the backend {each['backend']:.0f} µs of CPU; posting one "
               f"straight costs wrk {straight:.0f} µs.")
    found.rows[prefix + "samples"] = drained["samples"]
    found.plot(prefix + "memory", "Memory of the downstreamer while it drains", "seconds", "MiB", {
        "resident": [(row["seconds"], row["downstreamer_rss_bytes"] / 2**20)
                     for row in drained["samples"]]})
