"""One merchant's flood, second by second: the backend takes 50 ms for each webhook, 16 at once;
fifty shops send one products/update and one orders/create a second each. Thirty seconds in, one
more shop sends 20,000 products/update at 5,000/s. How many webhooks wait, and how late those of the
other shops are delivered."""

import time
from concurrent.futures import ThreadPoolExecutor

from harness import fill, plot, sampler, servers
from harness.campaign import Findings
from harness.servers import Failed

FLOOD, FLOOD_PER_SECOND = 20_000, 5_000
SHOPS, TOPICS = 50, ["products/update", "orders/create"]
WORKERS, DELAY = 16, "50ms"
FLOOD_SHOP = "shop-0000.myshopify.com"
# Of a first second with the flood: the limit has to be found again.
SLOWER_MAX = 5


def run(campaign):
    warm_up, calm, whole = campaign.scale(10, 1), campaign.scale(30, 2), campaign.scale(150, 8)
    flood = campaign.scale(FLOOD, 1000)
    directory, per_second = campaign.directory, SHOPS * len(TOPICS)
    with (
        servers.redis("always", directory) as redis,
        servers.backend(directory, DELAY, WORKERS, "--flooding-shop", FLOOD_SHOP) as backend,
        servers.downstreamer(redis, backend, directory) as _,
        servers.receiver(redis, campaign.secret, directory) as (_, port),
        fill.running(port, per_second * (warm_up + whole + 60), campaign.secret, rate=per_second,
                     shops=SHOPS, shop_first=1, topics=",".join(TOPICS), connections=10,
                     product_first=1_000_000) as others,
    ):
        time.sleep(warm_up)
        with ThreadPoolExecutor(1) as pool:
            attack = pool.submit(after, calm, fill.run, port, flood, campaign.secret, whole,
                                 rate=FLOOD_PER_SECOND, shop_first=0, connections=32)
            rows = watch(redis.unix_socket, backend, whole)
            attack.result()
        if others.poll() is not None:
            raise Failed("the other shops ended early")
    return findings(rows, calm, flood)


def after(seconds, call, *arguments, **options):
    """Calls after a while. What it raises is raised by the future's result."""
    time.sleep(seconds)
    return call(*arguments, **options)


def watch(unix_socket, backend, seconds):
    """One row a second: webhooks that wait, and what the backend received within that second."""
    asker, rows, began = sampler.Asker(unix_socket), [], time.monotonic()
    servers.forget(backend)
    for second in range(1, seconds + 1):
        time.sleep(max(0.0, began + second - time.monotonic()))
        seen = servers.stats(backend)
        servers.forget(backend)
        late = [topic["p99"] for topic in seen["others_since_received_us"].values()]
        rows.append({"seconds": second, "waiting": asker.waiting(), "delivered": seen["requests"],
                     "others_p99_ms": max(late, default=0) / 1e3})
    asker.close()
    return rows


def findings(rows, calm, flood):
    found = Findings()
    before = [row["others_p99_ms"] for row in rows if row["seconds"] < calm]
    after = [row["others_p99_ms"] for row in rows if row["seconds"] > calm]
    most = max(row["waiting"] for row in rows)
    found.figures = {"flood": flood, "most_waiting": most, "others_p99_calm_ms": max(before),
                     "others_p99_flooded_ms": max(after),
                     "others_p99_flooded_median_ms": sorted(after)[len(after) // 2]}
    found.at_most("the others' p99 in the worst second of the flood ÷ in the worst calm one",
                  max(after) / max(before), SLOWER_MAX)
    found.read(f"While up to {most:,} webhooks of one shop wait, the p99 of the {SHOPS} others, by the "
               f"second, is {sorted(after)[len(after) // 2]:.0f} ms in the median and "
               f"{max(after):.0f} ms at most; before, it was at most {max(before):.0f} ms.")
    found.rows["seconds"] = rows
    found.plots["flood"] = plot.stacked([
        plot.lines("One merchant edits 20,000 products: the queue grows",
                   "seconds", "webhooks waiting",
                   {"waiting": [(row["seconds"], row["waiting"]) for row in rows]}),
        plot.lines("The other fifty shops do not notice", "seconds",
                   "ms from received to delivered, p99 of each second",
                   {"other shops": [(row["seconds"], row["others_p99_ms"]) for row in rows]}),
    ])
    return found
