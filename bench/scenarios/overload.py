"""A Redis that is too slow for the load: a proxy on the unix socket delays its replies until saturation
is about 5,000/s. Then two open loops offer 10,000/s together. When one of them ends, the other one
continues at a fifth of saturation and shows the recovery. MAX_IN_FLIGHT is sized so that waiting webhooks
are well under a second of saturation, and MAX_CONNECTIONS so that the sender always has one. Refusing,
not queueing, must keep the latency low."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from harness import load, proxy, sampler, servers, vegeta
from harness.campaign import Findings

SATURATION, OFFERED, STEADY = 5_000, 10_000, 1_000
# A closed loop that fills complete packs on every shard.
CONNECTIONS = 1_000
# An open loop needs a connection per waiting request. All processes stay below the file limit.
OPEN_CONNECTIONS, STEADY_CONNECTIONS = 6_000, 3_000
# The steady load begins this much earlier, because vegeta first reads the webhooks of the flood.
LEAD_SECONDS = 2
MAX_IN_FLIGHT_MIB = 24
FIRST_DELAY_MS = 60.0
# Latency up to which a webhook after the overload counts as answered normally.
NORMAL_SECONDS = 0.5


def run(campaign):
    delay, saturation = calibrate(campaign)
    campaign.say(f"replies delayed by {delay:.0f} ms: saturation {saturation:,.0f}/s")
    seconds, after = campaign.scale(30, 4), campaign.scale(10, 2)
    with cell(campaign, delay) as (redis, child, port):
        with (
            campaign.prepared(port, STEADY, LEAD_SECONDS + seconds + after, STEADY_CONNECTIONS,
                              "-steady") as steady,
            campaign.prepared(port, OFFERED - STEADY, seconds, OPEN_CONNECTIONS) as flood,
            sampler.Sampler(redis.unix_socket, {"receiver": child.pid}, 0.5) as watch,
            ThreadPoolExecutor(1) as beside,
        ):
            running = beside.submit(steady.run)
            time.sleep(LEAD_SECONDS)
            flood.run()
            running.result()
            # Read only now, because reading uses a core and would disturb the measured recovery.
            hits = flood.hits(), steady.hits()
    return findings(*hits, watch.samples, delay, saturation)


@contextmanager
def cell(campaign, delay):
    """Runs a receiver on a Redis whose replies are delayed."""
    settings = {"MAX_IN_FLIGHT": f"{MAX_IN_FLIGHT_MIB}MiB", "MAX_CONNECTIONS": "15000"}
    directory = campaign.directory
    with (
        servers.redis("always", directory) as redis,
        proxy.running(redis, delay, directory) as slow,
        servers.receiver(slow, campaign.secret, directory, **settings) as (child, port),
    ):
        yield redis, child, port


def calibrate(campaign):
    """Finds the delay. Packs are full at saturation, so the rate is proportional to 1 / delay, and two
    steps suffice."""
    delay = FIRST_DELAY_MS
    for _ in range(campaign.scale(2, 1)):
        saturation = measure(campaign, delay)
        delay *= saturation / SATURATION
    return delay, measure(campaign, delay)


def measure(campaign, delay):
    with cell(campaign, delay) as (redis, child, port):
        pids = {"server": child.pid, "redis": redis.child.pid}
        settings = campaign.load(campaign.scale(10, 2))
        result = load.measure(port, pids, redis, CONNECTIONS, settings, campaign.requests())
    return result["per_second"]


def findings(flood, steady, samples, delay, saturation):
    """Returns the results. Rates are of the time in which both loads ran, without a second to fill up."""
    found = Findings()
    start, end = flood[0][0] + 1, flood[-1][0]
    both = [hit for hit in flood + steady if start <= hit[0] < end]
    result = vegeta.summary(both, end - start)
    result["accepted_per_second"] = vegeta.answered_per_second(flood + steady, 200, start, end)
    resident = max(row["receiver_rss_bytes"] for row in samples) / 2**20
    after = [hit for hit in steady if hit[0] >= end]
    abnormal = [at for at, status, latency, _ in after if status != 200 or latency > NORMAL_SECONDS]
    recovery = max(abnormal) - end if abnormal else 0.0
    answered = sum(result["statuses"].get(status, 0) for status in ("200", "503"))
    other = len(both) - answered
    found.figures = {"delay_ms": delay, "saturation_per_second": saturation, **result,
                     "resident_mib": resident, "recovery_seconds": recovery,
                     "asked_after": len(after)}
    found.at_least("offered ÷ asked for", result["offered_per_second"] / OFFERED, 0.95)
    found.at_least("accepted ÷ saturation", result["accepted_per_second"] / saturation, 0.9)
    found.at_most("p99 of refusals", result["refused_p99_ms"], 100, "ms")
    found.at_most("answers that are neither 200 nor 503", other, 0)
    found.at_most("p99 of accepted", result["accepted_p99_ms"], 1000, "ms")
    found.at_most("resident memory", resident, MAX_IN_FLIGHT_MIB + 128, "MiB")
    found.at_most("normal again after", recovery, 2, "s")
    found.read(f"Of {result['offered_per_second']:,.0f}/s offered to a cell that can store "
               f"{saturation:,.0f}/s, {result['accepted_per_second']:,.0f}/s were stored and answered "
               f"within {words(result['accepted_p99_ms'])} (p99), {result['refused_per_second']:,.0f}/s "
               f"refused within {words(result['refused_p99_ms'])}; resident were {resident:.0f} MiB at "
               f"most, and all was normal {recovery:.1f} s after.")
    found.rows["seconds"] = by_second(sorted(flood + steady))
    found.rows["memory"] = samples
    rows = found.rows["seconds"]
    found.plot("rate", "Answers while overloaded, and after", "seconds", "per second", {
        name: [(row["second"], row[name]) for row in rows] for name in ("accepted", "refused")})
    found.plot("memory", "Resident memory of the receiver", "seconds", "MiB", {
        "resident": [(row["seconds"], row["receiver_rss_bytes"] / 2**20) for row in samples]})
    return found


def words(milliseconds):
    return "–" if milliseconds is None else f"{milliseconds:,.0f} ms"


def by_second(hits):
    start, rows = hits[0][0], {}
    for at, status, latency, _ in hits:
        second = int(at - start)
        row = rows.setdefault(second, {"second": second, "accepted": 0, "refused": 0,
                                       "other": 0, "longest_ms": 0.0})
        row[{200: "accepted", 503: "refused"}.get(status, "other")] += 1
        row["longest_ms"] = max(row["longest_ms"], latency * 1e3)
    return list(rows.values())
