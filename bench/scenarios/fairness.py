"""The flood of one shop beside fifty others. The backend takes 50 ms for each webhook, 16 at once. Each of
the fifty shops sends one products/update and one orders/create per second. Measures their delays, first
without and then with 300,000 products/update of another shop, in one run."""

import time

from harness import fill, sampler, servers
from harness.campaign import Findings
from harness.servers import Failed

FLOOD, FLOOD_PER_SECOND = 300_000, 10_000
SHOPS, TOPICS = 50, ["products/update", "orders/create"]
WORKERS, DELAY = 16, "50ms"
MOST_PER_SECOND = 16 / 0.050
# Delays that the search of the limiter and the index may cause.
SLOWER_MAX, RATE_MIN = 3, 0.85
GROWTH_MIB, GROWTH_LATE_MIB = 96, 16
FLOOD_SHOP = 0


def run(campaign):
    warm_up, calm, flooded = campaign.scale(5, 1), campaign.scale(30, 3), campaign.scale(60, 5)
    directory, flood = campaign.directory, campaign.scale(FLOOD, 10_000)
    per_second = SHOPS * len(TOPICS)
    with (
        servers.redis("always", directory, "--maxmemory", str(2 << 30)) as redis,
        servers.backend(directory, DELAY, WORKERS, "--flooding-shop", domain(FLOOD_SHOP)) as backend,
        servers.downstreamer(redis, backend, directory) as drain,
        servers.receiver(redis, campaign.secret, directory) as (_, port),
        fill.running(port, per_second * (warm_up + calm + flooded + 60), campaign.secret,
                     rate=per_second, shops=SHOPS, shop_first=1, topics=",".join(TOPICS),
                     connections=10, product_first=1_000_000) as others,
    ):
        time.sleep(warm_up)
        servers.forget(backend)
        time.sleep(calm)
        before = servers.stats(backend)
        with sampler.Sampler(redis.unix_socket, {"downstreamer": drain.pid}) as watch:
            servers.forget(backend)
            began = time.monotonic()
            stored = fill.run(port, flood, campaign.secret, flooded + 60, rate=FLOOD_PER_SECOND,
                              shop_first=FLOOD_SHOP, connections=32)
            campaign.say(f"{flood:,} of one shop stored in {stored['seconds']:.0f} s")
            time.sleep(max(0.0, flooded - (time.monotonic() - began)))
            after = servers.stats(backend)
        if others.poll() is not None:
            raise Failed("the other shops ended early")
    return findings(before, after, stored, watch.samples, flood)


def domain(shop):
    return f"shop-{shop:04}.myshopify.com"


def findings(before, after, stored, samples, flood):
    found = Findings()
    per_second = after["requests"] / after["seconds_first_to_last"]
    memory = [row["downstreamer_rss_bytes"] / 2**20 for row in samples]
    full = next(row["seconds"] for row in samples if row["seconds"] >= min(
        stored["seconds"], samples[-1]["seconds"]))
    late = [row["downstreamer_rss_bytes"] / 2**20 for row in samples if row["seconds"] >= full]
    found.figures = {"flood": flood, "flood_stored_per_second": stored["per_second"],
                     "flood_delivered_meanwhile": after["of_flooding_shop"],
                     "delivered_per_second": per_second,
                     "downstreamer_before_mib": memory[0], "downstreamer_most_mib": max(memory)}
    points = {"without": [], "with the flood": []}
    for topic in TOPICS:
        calm, flooded = (stats["others_since_received_us"][topic] for stats in (before, after))
        for p in ("p50", "p99", "max"):
            found.figures[f"{topic}_{p}_ms"] = calm[p] / 1e3
            found.figures[f"{topic}_{p}_flooded_ms"] = flooded[p] / 1e3
        found.at_most(f"{topic} of the others, p99 with the flood ÷ without",
                      flooded["p99"] / calm["p99"], SLOWER_MAX)
        found.read(f"With {flood:,} of one shop waiting, {topic} of the {SHOPS} others is with the "
                   f"backend {flooded['p99'] / 1e3:.0f} ms (p99) after it was received, without them "
                   f"{calm['p99'] / 1e3:.0f} ms.")
        points["without"].append((topic, calm["p99"] / 1e3))
        points["with the flood"].append((topic, flooded["p99"] / 1e3))
    found.at_least("delivered ÷ what the backend can take", per_second / MOST_PER_SECOND, RATE_MIN)
    found.at_most("growth of the downstreamer by the flood", max(memory) - memory[0], GROWTH_MIB, "MiB")
    found.at_most("growth of the downstreamer once it is stored", max(late) - late[0], GROWTH_LATE_MIB,
                  "MiB")
    found.rows["samples"] = samples
    found.bars("p99", "Received to delivered of the others, p99", "ms", {
        topic: {name: dict(points[name])[topic] for name in points} for topic in TOPICS})
    found.plot("memory", "Memory of the downstreamer", "seconds", "MiB",
               {"resident": [(row["seconds"], row["downstreamer_rss_bytes"] / 2**20) for row in samples]})
    return found
