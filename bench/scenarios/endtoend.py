"""From accepted to delivered: webhooks offered at a fixed rate go through the receiver, Redis and
the downstreamer to a simulated backend, which notes how late each came; the same rate straight to
that backend stands beside it. Then a queue is drained to a backend that takes 50 ms for each, one
delivery at a time and 64 at a time."""

import json
import time
import urllib.request

from harness import sampler, servers, vegeta, wrk
from harness.campaign import Findings

RATE = 2_000
CONCURRENCIES = [1, 64]
BACKEND_DELAY = "50ms"
# 64 at a time, 50 ms each, would be 1,280/s over one at a time: 64 ×. Most of that has to come.
SPEED_UP_MIN = 48


def run(campaign):
    found = Findings()
    seconds = campaign.scale(30, 3)
    straight = to_backend(campaign, seconds)
    accepted, stats = through(campaign, seconds)
    late = {key: value / 1e3 for key, value in stats["since_received_us"].items() if key != "count"}
    missing = accepted["statuses"].get("200", 0) - stats["requests"]
    rows = [drain_rate(campaign, concurrency) for concurrency in CONCURRENCIES]
    found.figures = {
        "rate": RATE, "straight_p50_ms": straight["accepted_p50_ms"],
        "straight_p99_ms": straight["accepted_p99_ms"], "answer_p50_ms": accepted["accepted_p50_ms"],
        "answer_p99_ms": accepted["accepted_p99_ms"],
        **{f"accepted_to_delivered_{key}_ms": value for key, value in late.items()}}
    found.at_most("accepted and not delivered", missing, 0)
    found.at_least("64 at a time ÷ one at a time", rows[1]["per_second"] / rows[0]["per_second"],
                   SPEED_UP_MIN)
    found.rows["concurrency"] = rows
    points = lambda prefix, source: [(p, source[f"{prefix}{p}{'_ms' if prefix else ''}"])
                                     for p in (50, 90, 99)]
    found.plot("latency", f"Latency at {RATE:,}/s", "percentile", "ms", {
        "straight to the backend": points("accepted_p", straight),
        "the receiver's answer": points("accepted_p", accepted),
        "accepted to delivered": [(p, late[f"p{p}"]) for p in (50, 90, 99)]}, even_x=True)
    return found


def to_backend(campaign, seconds):
    with servers.backend(campaign.directory) as backend:
        return vegeta.summary(campaign.attack(backend, RATE, seconds), seconds)


def through(campaign, seconds):
    directory = campaign.directory
    with (
        servers.redis("always", directory) as redis,
        servers.backend(directory) as backend,
        servers.downstreamer(redis, backend, directory),
        servers.receiver(redis, campaign.secret, directory) as (_, port),
    ):
        hits = campaign.attack(port, RATE, seconds)
        accepted = vegeta.summary(hits, seconds)
        deadline = time.monotonic() + 20
        while True:
            seen = stats(backend)
            if seen["requests"] >= accepted["statuses"].get("200", 0) or time.monotonic() > deadline:
                return accepted, seen
            time.sleep(0.2)


def stats(backend):
    with urllib.request.urlopen(f"http://127.0.0.1:{backend}/stats", timeout=5) as response:
        return json.load(response)


def drain_rate(campaign, concurrency):
    """Fills a queue, then drains it for a while."""
    seconds, directory = campaign.scale(20, 3), campaign.directory
    with servers.redis("always", directory) as redis:
        with servers.receiver(redis, campaign.secret, directory) as (_, port):
            # Thirty thousand or so: more than any drain here takes away.
            wrk.run(port, 64, campaign.scale(3, 1), campaign.wrk_threads, campaign.requests())
        asker = sampler.Asker(redis.unix_socket)
        queued = asker.appended()
        asker.close()
        with servers.backend(directory, BACKEND_DELAY) as backend:
            with servers.downstreamer(redis, backend, directory, MAX_CONCURRENCY=str(concurrency)):
                time.sleep(1)
                before, start = stats(backend)["requests"], time.monotonic()
                time.sleep(seconds)
                done = stats(backend)["requests"] - before
                rate = done / (time.monotonic() - start)
    campaign.say(f"{concurrency} at a time: {rate:,.0f}/s")
    return {"concurrency": concurrency, "queued": queued, "per_second": rate}
