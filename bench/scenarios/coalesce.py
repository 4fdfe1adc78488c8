"""A hundred thousand updates of a thousand products are stored as fast as possible. The backend takes
50 ms for each, 16 at once, and COALESCE_TOPICS=products/update delivers the newest state of each product.
The number of deliveries and the time are compared with those of delivering every update."""

import time

from harness import fill, sampler, servers
from harness.campaign import Findings
from harness.servers import Failed

UPDATES, PRODUCTS = 100_000, 1_000
WORKERS, DELAY, MOST_PER_SECOND = 16, "50ms", 16 / 0.050
CONNECTIONS = 50
SECONDS_MAX, DELIVERED_MAX = 180, 0.1


def run(campaign):
    updates, products = campaign.scale(UPDATES, 10_000), campaign.scale(PRODUCTS, 100)
    directory = campaign.directory
    with (
        servers.redis("always", directory) as redis,
        servers.backend(directory, DELAY, WORKERS) as backend,
        servers.downstreamer(redis, backend, directory,
                             COALESCE_TOPICS="products/update"),
        servers.receiver(redis, campaign.secret, directory) as (_, port),
    ):
        began = time.monotonic()
        stored = fill.run(port, updates, campaign.secret, SECONDS_MAX, products=products, shops=10,
                          connections=CONNECTIONS)
        rows = empty(redis, backend, updates, began)
        seconds, stats = time.monotonic() - began, servers.stats(backend)
    return findings(updates, products, stored, stats, seconds, rows)


def empty(redis, backend, updates, began):
    """Waits until all are settled. Returns a row every half second."""
    asker, rows = sampler.Asker(redis.unix_socket), []
    while not rows or rows[-1]["queued"] > 0:
        if rows:
            time.sleep(0.5)
        queued = updates - int(asker.ask("HGET {spillway}:counts trimmed") or 0)
        seconds = time.monotonic() - began
        rows.append({"seconds": seconds, "queued": queued,
                     "delivered": servers.stats(backend)["requests"]})
        if seconds > SECONDS_MAX:
            raise Failed(f"{queued:,} still queued")
    asker.close()
    return rows


def findings(updates, products, stored, stats, seconds, rows):
    found = Findings()
    singly = updates / MOST_PER_SECOND
    found.figures = {"updates": updates, "products": products,
                     "stored_per_second": stored["per_second"], "deliveries": stats["requests"],
                     "all_settled_after_s": seconds, "one_by_one_would_take_s": singly}
    found.at_most("updates that no delivery stands for", abs(updates - stats["stood_for"]), 0)
    found.at_least("products whose newest state came", stats["resources"] if
                   stats["newest_of_the_last_resource"] == updates // products else 0, products)
    found.at_most("an old state after a newer one, or twice", stats["disordered"] + stats["repeated"], 0)
    found.at_most("deliveries ÷ updates", stats["requests"] / updates, DELIVERED_MAX)
    found.read(f"{updates:,} updates of {products:,} products took {stats['requests']:,} deliveries and "
               f"{seconds:.0f} s; one by one they would take {singly:.0f} s.")
    found.rows["samples"] = rows
    found.plot("queue", "Queue and deliveries", "seconds", "webhooks", {
        name: [(row["seconds"], row[name]) for row in rows] for name in ("queued", "delivered")})
    return found
