"""Half of saturation, fsync before each answer, open loop: the latency of a sender under normal load.
Saturation is that of 64 connections in a closed loop, measured just before on the same cell. Latency
counts from the time a webhook was due; the lateness of the generator is shown separately. The reference
on the disk is one append and fdatasync of 64 KiB, about the size of a commit under load."""

from harness import load, servers, vegeta
from harness.campaign import Findings

CONNECTIONS = 64


def run(campaign):
    found = Findings()
    seconds = campaign.scale(30, 3)
    with servers.redis("always", campaign.directory) as redis:
        with servers.receiver(redis, campaign.secret, campaign.directory) as (child, port):
            pids = {"server": child.pid, "redis": redis.child.pid}
            settings = campaign.load(campaign.scale(10, 2))
            saturation = load.measure(
                port, pids, redis, CONNECTIONS, settings, campaign.requests())["per_second"]
            campaign.say(f"saturation {saturation:,.0f}/s; now half of it for {seconds} s")
            paced, hits = campaign.pace(port, saturation / 2, seconds)
    campaign.measure_disk()
    result = {**vegeta.summary(hits, seconds), "offered_per_second": paced["offered_per_second"]}
    fdatasync = campaign.fdatasync_ms(64 << 10)
    lateness = paced["lateness_ms"]
    found.figures = {"saturation_per_second": saturation, **result, "fdatasync_64k_ms": fdatasync,
                     **{f"generator_lateness_{name}_ms": ms for name, ms in lateness.items()},
                     "generator_cpu_us": paced["cpu_us_per_request"]}
    wrong = sum(count for status, count in result["statuses"].items() if status != "200")
    found.at_most("p50 ÷ fdatasync", result["accepted_p50_ms"] / fdatasync, 3)
    found.at_most("p99 ÷ fdatasync", result["accepted_p99_ms"] / fdatasync, 10)
    found.at_most("answers that are not 200", wrong, 0)
    found.at_least("offered ÷ asked for", result["offered_per_second"] / (saturation // 2), 0.98)
    found.read(f"At half of saturation, {result['offered_per_second']:,.0f}/s, a sender waits "
               f"{result['accepted_p50_ms']:.1f} ms (p50) and {result['accepted_p99_ms']:.1f} ms (p99); "
               f"one fdatasync of 64 KiB takes {fdatasync:.2f} ms. The generator was itself "
               f"{lateness['p50']:.2f} ms (p50) and {lateness['p99']:.2f} ms (p99) late.")
    percents = [*range(1, 100), 99.9]
    ordered = sorted(latency for _, _, latency, _ in hits)
    points = [(p, ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] * 1e3) for p in percents]
    found.rows["latency"] = [{"percentile": p, "ms": ms} for p, ms in points]
    found.plot("latency", "Latency at half of saturation", "percentile", "ms", {"latency": points})
    return found
