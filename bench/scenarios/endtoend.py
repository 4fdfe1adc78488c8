"""From accepted to delivered: webhooks at a fixed rate go through the receiver, Redis and the
downstreamer to a simulated backend, which measures the delay of each. The same rate directly to the
backend is the comparison. Closed loops of 64 connections in both configurations show the highest rate of
delivery while as much is received. Then a queue is drained to a backend that takes 50 ms for each, one
delivery at a time and 64 at a time."""

import json
import time
import urllib.request

from harness import sampler, servers, vegeta, wrk
from harness.campaign import Findings

RATE = 2_000
CONNECTIONS = 64
CONCURRENCIES = [1, 64]
BACKEND_DELAY = "50ms"
# 64 at a time, 50 ms each, is 1,280/s and 64 times one at a time. Most of that must be reached.
SPEED_UP_MIN = 48


def run(campaign):
    seconds = campaign.scale(30, 3)
    straight, straight_rate = to_backend(campaign, seconds)
    accepted, arrived = through(campaign, seconds)
    late = {key: value / 1e3 for key, value in arrived["since_received_us"].items() if key != "count"}
    most = closed_loop(campaign)
    campaign.say(f"closed loop: {most['accepted_per_second']:,.0f}/s accepted, "
                 f"{most['delivered_per_second']:,.0f}/s delivered meanwhile, "
                 f"straight to the backend {straight_rate:,.0f}/s")
    drains = [drain_rate(campaign, concurrency) for concurrency in CONCURRENCIES]
    return findings(straight, straight_rate, accepted, arrived, late, most, drains)


def findings(straight, straight_rate, accepted, arrived, late, most, drains):
    found = Findings()
    missing = accepted["statuses"].get("200", 0) - arrived["requests"]
    speed_up = drains[1]["per_second"] / drains[0]["per_second"]
    found.figures = {
        "rate": RATE, "straight_p50_ms": straight["accepted_p50_ms"],
        "straight_p99_ms": straight["accepted_p99_ms"], "answer_p50_ms": accepted["accepted_p50_ms"],
        "answer_p99_ms": accepted["accepted_p99_ms"],
        **{f"accepted_to_delivered_{key}_ms": value for key, value in late.items()},
        "delivered_at_rate_per_second": arrived["requests"] / arrived["seconds_first_to_last"],
        "straight_closed_loop_per_second": straight_rate,
        **{f"closed_loop_{key}": value for key, value in most.items()}}
    found.at_most("accepted and not delivered", missing, 0)
    found.at_least("64 at a time ÷ one at a time", speed_up, SPEED_UP_MIN)
    found.read(f"At {RATE:,}/s a webhook is answered within {accepted['accepted_p50_ms']:.1f} ms (p50) and "
               f"is with the backend {late['p50']:.1f} ms (p50) and {late['p99']:.1f} ms (p99) after it was "
               f"received; straight to the backend it takes {straight['accepted_p50_ms']:.1f} ms and "
               f"{straight['accepted_p99_ms']:.1f} ms.")
    found.read(f"At most {most['delivered_per_second']:,.0f}/s are delivered while "
               f"{most['accepted_per_second']:,.0f}/s are received, all on these cores; to a backend that "
               f"takes {BACKEND_DELAY} for each, {drains[0]['per_second']:,.0f}/s one at a time and "
               f"{drains[1]['per_second']:,.0f}/s 64 at a time, {speed_up:.0f} ×.")
    found.rows["concurrency"] = drains
    points = lambda source: [(p, source[f"accepted_p{p}_ms"]) for p in (50, 90, 99)]
    found.plot("latency", f"Latency at {RATE:,}/s", "percentile", "ms (logarithmic)", {
        "straight to the backend": points(straight), "the receiver's answer": points(accepted),
        "received to delivered": [(p, late[f"p{p}"]) for p in (50, 90, 99)]}, even_x=True, log_y=True)
    found.bars("throughput", "At most, in a closed loop of 64 connections", "webhooks per second", {
        "straight": {"answered by the backend": straight_rate},
        "through the cell": {"accepted": most["accepted_per_second"],
                             "delivered meanwhile": most["delivered_per_second"]}})
    return found


def to_backend(campaign, seconds):
    """Returns the summary of an open loop and the rate of a closed loop without the cell."""
    with servers.backend(campaign.directory) as backend:
        summary = vegeta.summary(campaign.pace(backend, RATE, seconds)[1], seconds)
        result = wrk.run(backend, CONNECTIONS, campaign.scale(8, 1), campaign.wrk_threads,
                         campaign.requests())
        return summary, (result["requests"] - result["non_2xx"]) / result["seconds"]


def through(campaign, seconds):
    directory = campaign.directory
    with (
        servers.redis("always", directory) as redis,
        servers.backend(directory) as backend,
        servers.downstreamer(redis, backend, directory),
        servers.receiver(redis, campaign.secret, directory) as (_, port),
    ):
        _, hits = campaign.pace(port, RATE, seconds)
        accepted = vegeta.summary(hits, seconds)
        deadline = time.monotonic() + 20
        while True:
            seen = stats(backend)
            if seen["requests"] >= accepted["statuses"].get("200", 0) or time.monotonic() > deadline:
                return accepted, seen
            time.sleep(0.2)


def closed_loop(campaign):
    """Returns the highest rate received, and the rate delivered in the same time."""
    directory = campaign.directory
    with (
        servers.redis("always", directory) as redis,
        servers.backend(directory) as backend,
        servers.downstreamer(redis, backend, directory),
        servers.receiver(redis, campaign.secret, directory) as (_, port),
    ):
        wrk.run(port, CONNECTIONS, 1, campaign.wrk_threads, campaign.requests())
        before, start = stats(backend)["requests"], time.monotonic()
        result = wrk.run(port, CONNECTIONS, campaign.scale(10, 2), campaign.wrk_threads,
                         campaign.requests())
        delivered = (stats(backend)["requests"] - before) / (time.monotonic() - start)
    accepted = (result["requests"] - result["non_2xx"]) / result["seconds"]
    return {"accepted_per_second": accepted, "delivered_per_second": delivered}


def stats(backend):
    with urllib.request.urlopen(f"http://127.0.0.1:{backend}/stats", timeout=5) as response:
        return json.load(response)


def drain_rate(campaign, concurrency):
    """Fills a queue, then drains it for a while."""
    seconds, directory = campaign.scale(20, 2), campaign.directory
    with servers.redis("always", directory) as redis:
        with servers.receiver(redis, campaign.secret, directory) as (_, port):
            # About thirty thousand: more than is delivered in that time.
            wrk.run(port, CONNECTIONS, campaign.scale(3, 1), campaign.wrk_threads, campaign.requests())
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
