"""A steady open loop at 20 % of saturation. After 10 s a second one requests 80,000/s for 10 s, and 20 s
follow. The rate that the spike really offers is limited by vegeta, which shares the cores with the
receiver and has at most 1,000 connections; the figures show it. The p90 of the steady load in windows of
half a second shows the effect on other senders, and the end of it."""

import time
from concurrent.futures import ThreadPoolExecutor

from harness import load, servers, vegeta
from harness.campaign import Findings

# With more connections the spike offers less, because opening them uses its cores.
CONNECTIONS, STEADY_CONNECTIONS, SPIKE_CONNECTIONS = 64, 1_000, 1_000
STEADY_PART, SPIKE = 0.2, 80_000
# The steady load opens its connections in this time, which does not count as "before".
OPENING_SECONDS = 1
WINDOW_SECONDS = 0.5
BACK_FACTOR, BACK_SECONDS = 3, 2


def run(campaign):
    before, spike, after = campaign.scale((10, 10, 20), (4, 3, 5))
    directory = campaign.directory
    with servers.redis("always", directory) as redis:
        with servers.receiver(redis, campaign.secret, directory) as (child, port):
            pids = {"server": child.pid, "redis": redis.child.pid}
            settings = campaign.load(campaign.scale(10, 1))
            saturation = load.measure(
                port, pids, redis, CONNECTIONS, settings, campaign.requests())["per_second"]
            rate = int(saturation * STEADY_PART)
            campaign.say(f"saturation {saturation:,.0f}/s; steady {rate:,}/s, spike {SPIKE:,}/s asked")
            whole = before + spike + after
            with (
                campaign.prepared(port, rate, whole, STEADY_CONNECTIONS, "-steady") as steady,
                campaign.prepared(port, SPIKE, spike, SPIKE_CONNECTIONS) as flood,
                ThreadPoolExecutor(1) as beside,
            ):
                running = beside.submit(steady.run)
                time.sleep(before)
                launched = time.time()
                flood.run()
                running.result()
                return findings(steady.hits(), flood.hits(), launched, saturation, spike)


def findings(steady, flood, launched, saturation, seconds):
    found = Findings()
    start, begin, end = steady[0][0], flood[0][0], flood[-1][0]
    calm = [hit for hit in steady if start + OPENING_SECONDS <= hit[0] < launched]
    usual = vegeta.p_ms(calm, 90)
    rest = [hit for hit in steady if hit[0] >= end]
    back = recovery(rest, end, usual * BACK_FACTOR)
    settled = vegeta.p_ms([hit for hit in rest if hit[0] >= end + BACK_SECONDS], 90)
    everything = sorted(steady + flood)
    counts = vegeta.counts(everything)
    during = [hit for hit in everything if begin <= hit[0] < end]
    offered = len(during) / (end - begin)
    found.figures = {
        "saturation_per_second": saturation, "asked_per_second": SPIKE,
        "spike_offered_per_second": offered, **{f"all_{kind}": n for kind, n in counts.items()},
        **{f"spike_{kind}": n for kind, n in vegeta.counts(during).items()},
        "spike_p50_ms": vegeta.p_ms(during, 50), "spike_p99_ms": vegeta.p_ms(during, 99),
        "p90_before_ms": usual, "p90_settled_ms": settled, "back_after_seconds": back}
    found.at_most("not answered", counts["unanswered"], 0)
    found.at_most("answers that are neither 200 nor 503", counts["other"], 0)
    found.at_most(f"p90 back within {BACK_FACTOR} × after", back, BACK_SECONDS, "s")
    found.at_most(f"p90 from {BACK_SECONDS} s after on ÷ before",
                  settled and settled / usual, BACK_FACTOR)
    found.read(f"Of {SPIKE:,}/s asked for, {offered:,.0f}/s were offered beside the steady load, "
               f"{offered / saturation:.1f} × saturation; {counts['accepted']:,} webhooks were accepted, "
               f"{counts['refused']:,} refused, {counts['unanswered']:,} not answered.")
    if back is not None:
        found.read(f"The steady sender's p90 was {usual:.1f} ms before, and back within three times "
                   f"that {back:.1f} s after the spike.")
    found.rows["windows"] = windows(everything, steady, start)
    plots(found)
    return found


def recovery(rest, end, limit):
    """Returns the seconds from the end of the spike to the end of the first window with a p90 in the limit."""
    for since, hits in vegeta.by_step(rest, WINDOW_SECONDS, end):
        if vegeta.p_ms(hits, 90) <= limit:
            return since + WINDOW_SECONDS
    return None


def windows(everything, steady, start):
    of_steady = dict(vegeta.by_step(steady, WINDOW_SECONDS, start))
    rows = []
    for since, hits in vegeta.by_step(everything, WINDOW_SECONDS, start):
        row = {"seconds": since, **{kind: n / WINDOW_SECONDS for kind, n in vegeta.counts(hits).items()}}
        own = of_steady.get(since, [])
        rows.append({**row, **{f"steady_p{p}_ms": vegeta.p_ms(own, p) for p in (50, 90, 99)}})
    return rows


def plots(found):
    rows = found.rows["windows"]
    over = lambda key: [(row["seconds"], row[key]) for row in rows]
    found.plot("rate", "A spike: how webhooks were answered", "seconds", "webhooks sent per second",
               {kind: over(kind) for kind in ("accepted", "refused", "unanswered")})
    found.plot("latency", "A spike: latency of the steady sender", "seconds", "ms (logarithmic)",
               {f"p{p}": over(f"steady_p{p}_ms") for p in (50, 90, 99)}, log_y=True)
