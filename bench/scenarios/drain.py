"""A queue of a million webhooks is drained to a fast backend. Measures the time from the downstreamer's
start to the first delivery, the rate, the memory, the order, and the CPU compared with wrk posting such
webhooks directly to the backend. With DRAIN_LARGE=1 also five million, more than the index holds. Then
queues of several patterns of shops and products, each with the CPU of the downstreamer and of Redis for a
delivery. DRAIN_BESIDE is the downstreamer of another release, which drains the same patterns in turn, DRAIN_ROUNDS
times each."""

import os
import resource
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

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
# Webhooks in a pattern, and fewer of large bodies, which take 123 KB each in Redis.
PATTERN_COUNT, PATTERN_COUNT_QUICK = 200_000, 6_000
LARGE_BYTES, LARGE_COUNT, LARGE_COUNT_QUICK, LARGE_WEBHOOK_BYTES = 1_048_576, 4_000, 200, 160_000
# Connections that fill for the flood and for the other shops: nine of ten webhooks are the flood's.
FLOOD_CONNECTIONS, OTHER_CONNECTIONS = 45, 5


def run(campaign):
    found = Findings()
    with servers.backend(campaign.directory) as backend:
        straight, per_second = post_straight(campaign, backend)
    found.figures |= {"straight_wrk_cpu_us": straight, "straight_per_second": per_second}
    one_drain(campaign, found, "", campaign.scale(COUNT, 40_000), straight, MEMORY_MIB_MAX)
    if os.environ.get("DRAIN_LARGE") == "1" and not campaign.quick:
        one_drain(campaign, found, "large_", COUNT_LARGE, straight, MEMORY_MIB_MAX_LARGE)
    beside = os.environ.get("DRAIN_BESIDE")
    if beside and not os.access(beside, os.X_OK):
        raise Failed(f"DRAIN_BESIDE={beside} is no program")
    programs = {"": None, **({"beside": beside} if beside else {})}
    found.rows["patterns"] = [one_pattern(campaign, name, program, *pattern)
                              for name, pattern in patterns(campaign).items()
                              for _ in range(int(os.environ.get("DRAIN_ROUNDS") or 1)) for program in programs.items()]
    judge_patterns(found)
    if beside:
        compare(found)
    return found


def patterns(campaign):
    """Returns, by name, the fills that run at once, as (count, options) of `fill`, and the bytes that a webhook
    takes in Redis."""
    count = campaign.scale(PATTERN_COUNT, PATTERN_COUNT_QUICK)
    large = campaign.scale(LARGE_COUNT, LARGE_COUNT_QUICK)
    usual = {"connections": FILL_CONNECTIONS}
    flood = {"products": count * 9 // 10 // EACH, "connections": FLOOD_CONNECTIONS}
    others = {"shops": 200, "shop_first": 1, "products": 600, "product_first": 10_000_000,
              "connections": OTHER_CONNECTIONS}
    shops = campaign.scale(20_000, 1_000)
    return {
        "1 shop": ([(count, {"shops": 1, "products": count // EACH, **usual})], WEBHOOK_BYTES),
        "200 shops × 3 products": ([(count, {"shops": 200, "products": 600, **usual})], WEBHOOK_BYTES),
        f"100 shops, {count // 2:,} products": ([(count, {"shops": 100, "products": count // 2, **usual})], WEBHOOK_BYTES),
        f"{shops:,} shops": ([(count, {"shops": shops, "products": shops, **usual})], WEBHOOK_BYTES),
        "a flood beside 200 shops": ([(count * 9 // 10, flood), (count // 10, others)], WEBHOOK_BYTES),
        "100 shops, 1 MB bodies": ([(large, {"shops": 100, "products": 200, "size": LARGE_BYTES, **usual})],
                                   LARGE_WEBHOOK_BYTES),
    }


def one_pattern(campaign, name, program, fills, each_bytes):
    """Fills a queue and drains it by a downstreamer, which is (name, path or None for the one of this release).
    Returns a row."""
    count, directory = sum(part for part, _ in fills), campaign.directory
    maxmemory = count * each_bytes + SPARE_BYTES
    check_room(campaign, maxmemory)
    # One shop may have the whole queue.
    whole = {"SHOP_MAX_QUEUED": "100"}
    with servers.redis("always", directory, "--maxmemory", str(maxmemory)) as redis:
        with servers.receiver(redis, campaign.secret, directory, **whole) as (_, port):
            with ThreadPoolExecutor(len(fills)) as pool:
                filling = [pool.submit(fill.run, port, part, campaign.secret, 120 + part / FILL_RATE_MIN, **options)
                           for part, options in fills]
                for one in filling:
                    one.result()
        with servers.backend(directory) as backend:
            drained = drain(campaign, redis, backend, count, program[1])
    stats = drained["stats"]
    row = {"pattern": name, "downstreamer": program[0], "webhooks": count, "delivered": stats["requests"],
           "per_second": stats["requests"] / max(stats["seconds_first_to_last"], 1e-3),
           "first_after_s": stats["first_at"] - drained["started"],
           **{f"{part}_cpu_us": drained["cpu"][part] / count * 1e6 for part in ("downstreamer", "redis", "backend")},
           "downstreamer_mib": max(one["downstreamer_rss_bytes"] for one in drained["samples"]) / 2**20,
           "out_of_order_or_twice": stats["disordered"] + stats["repeated"]}
    campaign.say(f"{name}{' ' + program[0] if program[0] else ''}: {row['per_second']:,.0f}/s, downstreamer {row['downstreamer_cpu_us']:.1f} µs, "
                 f"Redis {row['redis_cpu_us']:.1f} µs a delivery")
    return row


def judge_patterns(found):
    rows = found.rows["patterns"]
    found.at_most("patterns: queued and not delivered once",
                  sum(abs(row["webhooks"] - row["delivered"]) for row in rows), 0)
    found.at_most("patterns: out of their product's order, or twice",
                  sum(row["out_of_order_or_twice"] for row in rows), 0)
    found.bars("patterns", "CPU of a delivery by pattern", "µs", {
        row["pattern"]: {"downstreamer": row["downstreamer_cpu_us"], "Redis": row["redis_cpu_us"]} for row in rows
        if "MB" not in row["pattern"] and not row["downstreamer"]})


def compare(found):
    """Adds the ratios to the other release: medians of the rounds."""
    rows = found.rows["patterns"]

    def middle(pattern, name, figure):
        return median(figure(row) for row in rows if (row["pattern"], row["downstreamer"]) == (pattern, name))

    def cpu(row):
        return row["downstreamer_cpu_us"] + row["redis_cpu_us"]

    found.rows["beside"] = [
        {"pattern": pattern, "rate_ratio": middle(pattern, "", per_second) / middle(pattern, "beside", per_second),
         "cpu_us": middle(pattern, "", cpu), "cpu_us_beside": middle(pattern, "beside", cpu),
         "cpu_ratio": middle(pattern, "", cpu) / middle(pattern, "beside", cpu)}
        for pattern in dict.fromkeys(row["pattern"] for row in rows)]


def per_second(row):
    return row["per_second"]


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


def drain(campaign, redis, backend, count, program=None):
    asker, started = sampler.Asker(redis.unix_socket), time.time()
    pids = {"redis": redis.child.pid, "backend": servers.stats(backend)["pid"]}
    before = {name: machine.cpu_seconds(pid) for name, pid in pids.items()}
    said = deadline = time.monotonic()
    deadline += 60 + count / DRAIN_RATE_MIN
    program = Path(program) if program else servers.RELEASE / "downstreamer"
    with servers.downstreamer(redis, backend, campaign.directory, program=program) as child:
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
