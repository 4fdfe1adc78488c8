"""A flood while no consumer runs, until the queue holds two million webhooks, with fsync before each
answer. Then a downstreamer drains it to a fast backend until it is empty."""

import shutil
import time

from harness import machine, sampler, servers, wrk
from harness.campaign import Findings
from harness.servers import Failed


CONNECTIONS = 64
WEBHOOK_BYTES = 1300
# Memory of Redis in addition to the queue, and for fragmentation.
SPARE_BYTES = 256 << 20
FILL_SECONDS_MAX, DRAIN_SECONDS_MAX = 900, 1800
# Memory that may remain: the group, counters, slack of the allocator.
LEFT_BYTES_MAX = 32 << 20


def run(campaign):
    target = campaign.scale(2_000_000, 40_000)
    maxmemory = int(target * WEBHOOK_BYTES * 1.25) + SPARE_BYTES
    check_room(campaign, maxmemory)
    directory = campaign.directory
    with servers.redis("always", directory, "--maxmemory", str(maxmemory)) as redis:
        empty = int(redis.info()["used_memory"])
        with servers.receiver(redis, campaign.secret, directory) as (child, port):
            pids = {"receiver": child.pid, "redis": redis.child.pid}
            filling = fill(campaign, redis, port, pids, target)
            drained = drain(campaign, redis, directory)
    return findings(filling, drained, target, empty)


def check_room(campaign, maxmemory):
    """Checks the room: a rewrite of the AOF forks, so half of the memory must stay free, and the disk
    must hold two AOFs."""
    memory, disk = machine.available_bytes(), shutil.disk_usage(campaign.directory).free
    if memory < 2 * maxmemory + (1 << 30):
        raise Failed(f"needs {2 * maxmemory + (1 << 30) >> 20} MiB of memory, {memory >> 20} are free")
    if disk < 5 * maxmemory:
        raise Failed(f"needs {5 * maxmemory >> 20} MiB on the disk, {disk >> 20} are free")


def fill(campaign, redis, port, pids, target):
    requests = campaign.requests()
    every = campaign.scale(1.0, 0.1)
    with sampler.Sampler(redis.unix_socket, pids, every) as watch:
        with wrk.running(port, CONNECTIONS, FILL_SECONDS_MAX, campaign.wrk_threads, requests) as load:
            said = time.monotonic()
            while not watch.samples or watch.samples[-1]["appended"] < target:
                if load.poll() is not None:
                    raise Failed(f"the queue did not fill within {FILL_SECONDS_MAX} s")
                if time.monotonic() - said > 5:
                    said = time.monotonic()
                    campaign.say(f"{watch.samples[-1]['appended']:,} of {target:,} queued")
                time.sleep(0.05)
    return watch.samples


def drain(campaign, redis, directory):
    """Drains until the stream is empty. Returns a row every half second."""
    asker, rows, start = sampler.Asker(redis.unix_socket), [], time.monotonic()
    with servers.backend(directory) as backend:
        with servers.downstreamer(redis, backend, directory, INDEX_MEMORY="512MiB"):
            while True:
                open_now = int(asker.ask("HGET {spillway}:counts appended") or 0) - settled(asker)
                rows.append({"seconds": time.monotonic() - start, "queued": open_now,
                             "memory_bytes": asker.seen()["memory_bytes"]})
                if open_now == 0 or rows[-1]["seconds"] > DRAIN_SECONDS_MAX:
                    break
                if len(rows) % 10 == 0:
                    campaign.say(f"{open_now:,} still queued")
                time.sleep(0.5)
            # The receiver may rewrite the AOF at this time, and the allocator returns memory late.
            time.sleep(campaign.scale(15, 1))
            rows.append({"seconds": time.monotonic() - start, "queued": open_now,
                         "memory_bytes": asker.seen()["memory_bytes"]})
    asker.close()
    return rows


def settled(asker):
    return int(asker.ask("HGET {spillway}:counts trimmed") or 0)


def findings(samples, drained, target, empty):
    found = Findings()
    start = sampler.when(samples, 1)
    tenth = lambda part: sampler.when(samples, target * part / 10)
    first = target / 10 / (tenth(1) - start)
    last = target / 10 / (tenth(10) - tenth(9))
    full = samples[-1]
    # Fingerprints and history stay for DEDUP_WINDOW, which is longer.
    kept = sampler.kept_bytes(full["appended"])
    left = drained[-1]["memory_bytes"] - empty - kept
    per_second = (drained[0]["queued"] - drained[-1]["queued"]) / drained[-2]["seconds"]
    found.figures = {
        "queued": full["appended"], "first_tenth_per_second": first, "last_tenth_per_second": last,
        "memory_full_mib": full["memory_bytes"] / 2**20,
        "memory_per_webhook_bytes": (full["memory_bytes"] - empty) / full["appended"],
        "aof_per_webhook_bytes": full["aof_bytes"] / full["appended"],
        "drained_per_second": per_second, "left_after_mib": left / 2**20,
        "fingerprints_and_history_mib": kept / 2**20}
    found.at_least("rate of the last tenth ÷ first tenth", last / first, 0.95)
    found.at_most("memory per queued webhook", found.figures["memory_per_webhook_bytes"], 1300, "B")
    found.at_most("AOF ÷ memory per webhook", full["aof_bytes"] / (full["memory_bytes"] - empty), 1.1)
    found.at_most("left in the queue", drained[-1]["queued"], 0)
    found.at_most("memory not returned except fingerprints and history", left / 2**20, LEFT_BYTES_MAX / 2**20, "MiB")
    found.read(f"{full['appended']:,} webhooks queued take {full['memory_bytes'] / 2**20:,.0f} MiB, "
               f"{found.figures['memory_per_webhook_bytes']:,.0f} bytes each, and the last tenth came in "
               f"at {last:,.0f}/s after {first:,.0f}/s for the first; the drain took {per_second:,.0f}/s "
               f"and left {left / 2**20:.0f} MiB, and {kept / 2**20:.0f} MiB of fingerprints and history.")
    found.rows = {"fill": samples, "drain": drained}
    sampler.plot(found, samples)
    found.plot("drain", "Queue while it drains", "seconds", "webhooks",
               {"queued": [(row["seconds"], row["queued"]) for row in drained]})
    return found
