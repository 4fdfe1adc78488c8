"""A part of `sustained`: a backlog shrinks while intake goes on at a part of the rate that was sustained."""

import time

from harness import groups, sampler, servers

from .backlog import WEBHOOK_BYTES, check_room, fill

PART = 0.7
BACKLOG = 500_000
SPARE_BYTES = 2 << 30
# Shopify waits for five seconds.
ANSWER_MS_MAX = 5_000
SLACK_SECONDS = 0.25
# The load is offered in stretches of this length until the queue is empty.
STRETCH_SECONDS, STRETCHES_MAX = 60, 15


def catch_up(campaign, rate):
    """Fills a queue before a downstreamer runs, then offers `PART` of a rate until nothing waits but what has just
    come. Returns a row of figures, and the samples."""
    asked, target = int(rate * PART), campaign.scale(BACKLOG, 5_000)
    directory = campaign.directory
    maxmemory = int(2 * target * WEBHOOK_BYTES) + SPARE_BYTES
    check_room(campaign, maxmemory)
    with (
        servers.redis("always", directory, "--maxmemory", str(maxmemory)) as redis,
        servers.backend(directory) as backend,
        servers.receiver(redis, campaign.secret, directory) as (receiver, port),
    ):
        fill(campaign, redis, port, {"receiver": receiver.pid, "redis": redis.child.pid}, target)
        with servers.downstreamer(redis, backend, directory) as drain:
            pids = {"receiver": receiver.pid, "downstreamer": drain.pid, "redis": redis.child.pid}
            each = {**pids, "backend": servers.stats(backend)["pid"]}
            with groups.as_units(each), sampler.Sampler(redis.unix_socket, pids, 1.0, "http") as watch:
                return shrink(campaign, port, asked, watch)


def shrink(campaign, port, asked, watch):
    stretch, least = campaign.scale(STRETCH_SECONDS, 2), SLACK_SECONDS * asked
    began, rows, reports, end = time.monotonic(), [], [], None
    while end is None and len(reports) < STRETCHES_MAX:
        from_second = time.monotonic() - began
        reports.append(campaign.offer(port, asked, stretch))
        # Between two stretches nothing comes in.
        rows += [row for row in watch.samples if from_second <= row["seconds"] <= from_second + stretch]
        end = next((row["seconds"] for row in rows if row["waiting"] <= least), None)
        campaign.say(f"{asked:,}/s for {time.monotonic() - began:.0f} s: {watch.samples[-1]['waiting']:,} wait")
    return {"asked_per_second": asked, "backlog_start": watch.samples[0]["waiting"],
            "backlog_end": rows[-1]["waiting"] if rows else None, "empty_after_s": end,
            "not_200": sum(one["asked"] - one["answered"].get("200", 0) for one in reports),
            "offered_part": min(one["offered_per_second"] for one in reports) / asked,
            "answer_p99_ms": max(one["latency_ms"]["p99"] for one in reports)}, watch.samples
