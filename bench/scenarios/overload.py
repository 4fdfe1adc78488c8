"""A Redis that is too slow for what is offered: a proxy on the unix socket delays its replies until
saturation is about 5,000/s; then an open loop offers 10,000/s, and at its end a quarter of that.
MAX_IN_FLIGHT is sized so that what waits is well under a second of saturation, MAX_CONNECTIONS so
that the sender never lacks one: refusing, not queueing, has to hold the latency down."""

import time

from harness import load, proxy, sampler, servers, vegeta
from harness.campaign import Findings

SATURATION, OFFERED, AFTER = 5_000, 10_000, 2_500
# A closed loop that fills whole packs on every shard.
CONNECTIONS = 1_000
# An open loop needs one for each request that waits; all processes stay below the file limit.
OPEN_CONNECTIONS = 8_000
MAX_IN_FLIGHT_MIB = 24
FIRST_DELAY_MS = 60.0
# A webhook counts as answered normally after the overload within this time.
NORMAL_SECONDS = 0.5


def run(campaign):
    delay, saturation = calibrate(campaign)
    campaign.say(f"replies delayed by {delay:.0f} ms: saturation {saturation:,.0f}/s")
    seconds, after_seconds = campaign.scale(30, 4), campaign.scale(10, 3)
    with cell(campaign, delay) as (redis, child, port):
        with sampler.Sampler(redis.unix_socket, {"receiver": child.pid}, 0.5) as watch:
            overload = campaign.attack(port, OFFERED, seconds, OPEN_CONNECTIONS)
            after = campaign.attack(port, AFTER, after_seconds, OPEN_CONNECTIONS)
    return findings(overload, after, watch.samples, seconds, delay, saturation)


def cell(campaign, delay):
    from contextlib import ExitStack, contextmanager

    @contextmanager
    def started():
        with ExitStack() as stack:
            redis = stack.enter_context(servers.redis("always", campaign.directory))
            slow = stack.enter_context(proxy.running(redis, delay, campaign.directory))
            settings = {"MAX_IN_FLIGHT": f"{MAX_IN_FLIGHT_MIB}MiB", "MAX_CONNECTIONS": "15000"}
            child, port = stack.enter_context(
                servers.receiver(slow, campaign.secret, campaign.directory, **settings))
            yield redis, child, port

    return started()


def calibrate(campaign):
    """Packs are full at saturation, so the rate goes with one over the delay: two steps settle it."""
    delay = FIRST_DELAY_MS
    for _ in range(2):
        saturation = measure(campaign, delay)
        delay *= saturation / SATURATION
    return delay, measure(campaign, delay)


def measure(campaign, delay):
    with cell(campaign, delay) as (redis, child, port):
        pids = {"server": child.pid, "redis": redis.child.pid}
        settings = campaign.load(campaign.scale(10, 2))
        result = load.measure(port, pids, redis, CONNECTIONS, settings, campaign.requests())
    return result["per_second"]


def findings(overload, after, samples, seconds, delay, saturation):
    found = Findings()
    result, calm = vegeta.summary(overload, seconds), vegeta.summary(after, after[-1][0] - after[0][0])
    resident = max(row["receiver_rss_bytes"] for row in samples) / 2**20
    ended = overload[-1][0]
    abnormal = [at for at, status, latency in after if status != 200 or latency > NORMAL_SECONDS]
    recovery = max(0.0, max(abnormal) - ended) if abnormal else 0.0
    other = sum(n for status, n in result["statuses"].items() if status not in ("200", "503"))
    found.figures = {"delay_ms": delay, "saturation_per_second": saturation, **result,
                     "resident_mib": resident, "recovery_seconds": recovery,
                     "statuses_after": calm["statuses"], "p99_after_ms": calm["accepted_p99_ms"],
                     "gap_to_next_load_seconds": after[0][0] - ended}
    found.at_least("offered ÷ asked for", result["offered_per_second"] / OFFERED, 0.95)
    found.at_least("accepted ÷ saturation", result["accepted_per_second"] / saturation, 0.9)
    found.at_most("p99 of refusals", result["refused_p99_ms"], 100, "ms")
    found.at_most("answers that are neither 200 nor 503", other, 0)
    found.at_most("p99 of accepted", result["accepted_p99_ms"], 1000, "ms")
    found.at_most("resident memory", resident, MAX_IN_FLIGHT_MIB + 128, "MiB")
    found.at_most("normal again after", recovery, 2, "s")
    found.rows["seconds"] = by_second(overload + after)
    found.rows["memory"] = samples
    rows = found.rows["seconds"]
    found.plot("rate", "Answers while overloaded, and after", "seconds", "per second", {
        name: [(row["second"], row[name]) for row in rows] for name in ("accepted", "refused")})
    found.plot("memory", "Resident memory of the receiver", "seconds", "MiB", {
        "resident": [(row["seconds"], row["receiver_rss_bytes"] / 2**20) for row in samples]})
    return found


def by_second(hits):
    start, rows = hits[0][0], {}
    for at, status, latency in hits:
        second = int(at - start)
        row = rows.setdefault(second, {"second": second, "accepted": 0, "refused": 0,
                                       "other": 0, "longest_ms": 0.0})
        row[{200: "accepted", 503: "refused"}.get(status, "other")] += 1
        row["longest_ms"] = max(row["longest_ms"], latency * 1e3)
    return list(rows.values())
