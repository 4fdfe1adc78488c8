"""Half of saturation for a long time (SOAK_SECONDS, 600 unless set), fsync before each answer, open
loop, while the downstreamer drains to a fast backend. Finds errors, slowness or memory growth that appear
only with time. Saturation is that of 64 connections in a closed loop of wrk, measured just before on the same
cell while it drains. The load generator, the receiver, Redis, the downstreamer and the backend share
the cores."""

import os
from array import array
from statistics import median

from harness import load, sampler, servers, vegeta
from harness.campaign import Findings
from harness.servers import Failed

CONNECTIONS = 64
SECONDS_MAX = 7 * 24 * 3600
# With a few MiB, a fifth is less than the slack of the allocator.
SPARE_BYTES = 8 << 20
GROWTH, SLOWER = 1.2, 1.5
SAY_SECONDS = 30


def soak_seconds():
    text = os.environ.get("SOAK_SECONDS") or "600"
    if not text.isdecimal() or not 10 <= int(text) <= SECONDS_MAX:
        raise Failed(f"SOAK_SECONDS={text} is not a number from 10 to {SECONDS_MAX}")
    return int(text)


def run(campaign):
    seconds, directory = campaign.scale(soak_seconds(), 10), campaign.directory
    with (
        servers.redis("always", directory) as redis,
        servers.backend(directory) as backend,
        servers.downstreamer(redis, backend, directory) as drain,
        servers.receiver(redis, campaign.secret, directory) as (child, port),
    ):
        pids = {"receiver": child.pid, "downstreamer": drain.pid}
        settings = campaign.load(campaign.scale(10, 1))
        saturation = load.measure(port, {**pids, "redis": redis.child.pid}, redis, CONNECTIONS, settings,
                                  campaign.requests())["per_second"]
        campaign.say(f"saturation while it drains {saturation:,.0f}/s; half of it for {seconds} s")
        every = max(1.0, seconds / 1200)
        with sampler.Sampler(redis.unix_socket, pids, every) as watch:
            sent = offer(campaign, campaign.stream(port, saturation / 2, seconds), seconds, watch)
    return findings(sent, watch.samples, seconds, saturation)


class Sent:
    """Latencies in ms and answers that are not 200, by second of sending. A long soak has millions:
    four bytes each."""

    def __init__(self):
        self.start, self.latencies, self.wrong = None, {}, {}

    def note(self, at, status, latency):
        self.start = at if self.start is None else self.start
        second = max(0, int(at - self.start))
        self.latencies.setdefault(second, array("f")).append(latency * 1e3)
        if status != 200:
            self.wrong[second] = self.wrong.get(second, 0) + 1

    def between(self, start, end):
        parts = [part for second, part in self.latencies.items() if start <= second < end]
        return [latency for part in parts for latency in part]

    def count(self):
        return sum(map(len, self.latencies.values()))


def offer(campaign, hits, seconds, watch):
    sent, said = Sent(), 0
    for at, status, latency, _ in hits:
        sent.note(at, status, latency)
        if at - sent.start >= said + SAY_SECONDS:
            said += SAY_SECONDS
            row = watch.samples[-1]
            campaign.say(f"{said} of {seconds} s, {sum(sent.wrong.values())} not 200, receiver "
                         f"{row['receiver_rss_bytes'] >> 20} MiB, downstreamer "
                         f"{row['downstreamer_rss_bytes'] >> 20} MiB")
    return sent


def findings(sent, samples, seconds, saturation):
    found, fifth = Findings(), seconds / 5
    first = vegeta.percentile(sent.between(0, fifth), 90)
    last = vegeta.percentile(sent.between(4 * fifth, seconds + 1), 90)
    count, wrong = sent.count(), sum(sent.wrong.values())
    found.figures = {"seconds": seconds, "saturation_per_second": saturation, "sent": count,
                     "offered_per_second": count / seconds, "not_200": wrong,
                     "p90_first_fifth_ms": first, "p90_last_fifth_ms": last}
    found.at_least("offered ÷ asked for", count / seconds / (saturation / 2), 0.95)
    found.at_most("answers that are not 200", wrong, 0)
    found.at_most("p90 of the last fifth ÷ first", last and last / first, SLOWER)
    for name in ("receiver", "downstreamer"):
        second, fifth_one = (resident(samples, name, part, seconds) for part in (1, 4))
        found.figures[f"{name}_second_fifth_mib"] = second / 2**20
        found.figures[f"{name}_last_fifth_mib"] = fifth_one / 2**20
        found.at_most(f"{name}'s resident memory, last fifth", fifth_one / 2**20,
                      (GROWTH * second + SPARE_BYTES) / 2**20, "MiB")
    found.read(f"{count:,} webhooks in {seconds:,} s, {wrong} of them not answered 200; "
               f"the p90 went from {first:.1f} to {last:.1f} ms, the receiver from "
               f"{found.figures['receiver_second_fifth_mib']:.0f} to "
               f"{found.figures['receiver_last_fifth_mib']:.0f} MiB, the downstreamer from "
               f"{found.figures['downstreamer_second_fifth_mib']:.0f} to "
               f"{found.figures['downstreamer_last_fifth_mib']:.0f} MiB.")
    found.rows = {"seconds": by_second(sent, seconds), "samples": samples}
    plots(found)
    return found


def resident(samples, name, part, seconds):
    """Returns the median of a fifth of the run, counted from 0. The last one extends to the end."""
    low, high = part * seconds / 5, (part + 1) * seconds / 5 if part < 4 else float("inf")
    chosen = [row[f"{name}_rss_bytes"] for row in samples if low <= row["seconds"] < high]
    return median(chosen or [samples[-1][f"{name}_rss_bytes"]])


def by_second(sent, seconds):
    """Returns the rows for the plots, at most 600."""
    step = max(1, seconds // 600)
    rows = []
    for start in range(0, seconds, step):
        latencies = sent.between(start, start + step)
        wrong = sum(count for second, count in sent.wrong.items() if start <= second < start + step)
        rows.append({"second": start, "offered_per_second": len(latencies) / step, "not_200": wrong,
                     **{f"p{p}_ms": vegeta.percentile(latencies, p) for p in (50, 90, 99)}})
    return rows


def plots(found):
    rows, samples = found.rows["seconds"], found.rows["samples"]
    found.plot("latency", "Latency over a long time", "seconds", "ms (logarithmic)",
               {f"p{p}": [(row["second"], row[f"p{p}_ms"]) for row in rows] for p in (50, 90, 99)},
               log_y=True)
    found.plot("memory", "Memory over a long time", "seconds", "MiB", {
        name: [(row["seconds"], row[key] / 2**20) for row in samples]
        for name, key in (("receiver", "receiver_rss_bytes"), ("downstreamer", "downstreamer_rss_bytes"),
                          ("Redis", "memory_bytes"))})
