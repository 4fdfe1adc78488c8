"""The highest rate at which the queue does not grow: an open loop of webhooks of which no two are alike
goes through the receiver, Redis and the downstreamer to a fast backend, with fsync before each answer. A
search by short probes finds the rate; a long run at this rate (`--sustained-seconds`) must hold it. Then
nginx passes the same load straight to the same backend, and as much as it can: no queue, no signature check, no
disk. At the end, a backlog must shrink to nothing while 0.7 of the rate that was held goes on to come in. The load
generator, the backend and all other processes share the cores, with the weights of the systemd units where groups for
processor time can be made."""

import time
from dataclasses import dataclass
from statistics import median

from harness import groups, machine, nginx, sampler, servers
from harness.campaign import Findings
from harness.servers import Failed

from . import catchup

RATE_FIRST, RATE_LEAST, RATE_MOST = 2_000, 100, 200_000
# The search ends when the rates that hold and that do not differ by less.
PRECISION = 0.03
# A queue is flat if its median over the last fifth exceeds that over the first by less than arrives in this time.
SLACK_SECONDS = catchup.SLACK_SECONDS
OFFERED_MIN = 0.98
# Runs at lower rates, if the long run does not hold the rate that a short probe held.
TRIES, LOWER = 4, 0.95
EMPTY_SECONDS_MAX = 600
NGINX_P99_MS = 100
OF_NGINX_MIN, END_TO_END_MS_MAX = 0.5, 100
MAXMEMORY = 4 << 30
# Size at which the receiver rewrites the AOF: 4 x the memory in use + 4 GiB.
AOF_FACTOR, AOF_EXTRA_BYTES = 4, 4 << 30
GROWTH_MIB = 64


@dataclass
class Cell:
    """A running cell: the socket of its Redis, its processes by name, the ports of receiver and backend, and that
    of the downstreamer's metrics."""

    unix_socket: str
    pids: dict
    port: int
    backend: int
    metrics: int


def run(campaign):
    found, directory = Findings(), campaign.directory
    with servers.backend(directory) as backend:
        with (
            servers.redis("always", directory, "--maxmemory", str(MAXMEMORY)) as redis,
            servers.downstreamer(redis, backend, directory) as drain,
            servers.receiver(redis, campaign.secret, directory) as (receiver, port),
        ):
            pids = {"receiver": receiver.pid, "downstreamer": drain.pid, "redis": redis.child.pid,
                    "backend": servers.stats(backend)["pid"]}
            cell = Cell(redis.unix_socket, pids, port, backend, drain.admin)
            with groups.as_units(pids) as weights:
                rate, probes = search(campaign, cell)
                runs, samples = hold(campaign, cell, rate)
        beside, most, of_nginx = through_nginx(campaign, backend, runs[-1]["asked_per_second"])
    findings(found, [*probes, *of_nginx], runs, samples, beside)
    compare(found, most)
    if campaign.sustained_rate:
        found.remarks.append("The rate was given, not searched for.")
    remark(found, probes, rate, "Spillway")
    remark(found, of_nginx, most, "nginx")
    shrink(found, *catchup.catch_up(campaign, runs[-1]["asked_per_second"]))
    found.figures["processor_weights"] = weights or "none: the kernel divides by thread"
    return found


def search(campaign, cell):
    """Doubles the rate until the queue grows, then halves the distance. Returns the highest rate at which it
    was flat, and a row for each probe."""
    if campaign.sustained_rate:
        return campaign.sustained_rate, []
    seconds, low, high, rate, rows = campaign.scale(10, 2), 0, None, RATE_FIRST, []
    while rate <= campaign.scale(RATE_MOST, RATE_FIRST):
        row, _ = probe(campaign, cell, rate, seconds)
        rows.append(row)
        campaign.say(words(row))
        low, high = (rate, high) if row["flat"] else (low, rate)
        if high is not None and high - low <= max(PRECISION * low, RATE_LEAST):
            break
        rate = 2 * rate if high is None else (low + high) // 2
    if low == 0:
        raise Failed(f"the queue grows even at {high:,}/s")
    return low, rows


def hold(campaign, cell, rate):
    """Runs for long, and again at lower rates as long as the queue grows. Returns the rows, and the samples of
    the last one."""
    rows = []
    for _ in range(TRIES):
        row, samples = probe(campaign, cell, rate, campaign.sustained_seconds)
        rows.append(row)
        campaign.say(words(row))
        if row["flat"]:
            break
        rate = int(rate * LOWER)
    return rows, samples


def words(row):
    return (f"{row['asked_per_second']:,}/s for {row['seconds']} s: {row['accepted_per_second']:,.0f}/s accepted, "
            f"{row['delivered_per_second']:,.0f}/s delivered, backlog {row['backlog_start']:,} to "
            f"{row['backlog_end']:,}{', flat' if row['flat'] else ''}")


def probe(campaign, cell, rate, seconds):
    """Offers a rate to an empty cell. Returns the figures and the samples."""
    wait_until_empty(cell)
    servers.forget(cell.backend)
    usage = machine.Usage(cell.pids)
    every = min(1.0, seconds / 20)
    with sampler.Sampler(cell.unix_socket, cell.pids, every, "http") as watch:
        paced = campaign.offer(cell.port, rate, seconds)
        stats = servers.stats(cell.backend)
    # At once, because a long run of webhooks that are dropped would be wasted.
    servers.check_dropped(cell.metrics)
    accepted = paced["answered"].get("200", 0)
    samples = [row for row in watch.samples if row["seconds"] <= seconds]
    fifth = max(1, len(samples) // 5)
    backlog = [row["waiting"] for row in samples]
    start, end = median(backlog[:fifth]), median(backlog[-fifth:])
    row = {"through": "Spillway", "asked_per_second": rate, "seconds": seconds, **rates(paced, stats),
           "backlog_start": int(start), "backlog_end": int(end), **latencies(paced, stats),
           **usage.each_us(accepted), "generator_cpu_us": paced["cpu_us_per_request"]}
    row["missed"] = missed({"answers": row["not_200"] > 0, "offered": row["offered_per_second"] < OFFERED_MIN * rate,
                            "backlog": end - start > SLACK_SECONDS * rate})
    row["flat"] = not row["missed"]
    return row, samples


def missed(checks):
    """Returns the names of the checks that are true: why a rate was not held."""
    return " ".join(name for name, is_missed in checks.items() if is_missed)


def remark(found, rows, held, name):
    """Adds a remark if the search that found the rate `held` ended because the load generator offered less than it was
    asked for."""
    above = [row for row in rows if row["missed"] and row["asked_per_second"] > (held or 0)]
    lowest = min(above, key=lambda row: row["asked_per_second"], default=None)
    if lowest and lowest["missed"] == "offered":
        found.remarks.append(f"The search for the highest rate of {name} ended at {lowest['asked_per_second']:,}/s because "
                             "the load generator offered less.")


def rates(paced, stats):
    """Returns the rates over the time in which the load was sent, and in which the backend received."""
    accepted = paced["answered"].get("200", 0)
    return {"offered_per_second": paced["offered_per_second"],
            "accepted_per_second": accepted * paced["offered_per_second"] / max(paced["offered"], 1),
            "not_200": paced["asked"] - accepted,
            "delivered_per_second": stats["requests"] / max(stats["seconds_first_to_last"], 1e-3)}


def latencies(paced, stats):
    sent = stats["since_triggered_us"]
    return {"answer_p50_ms": paced["latency_ms"]["p50"], "answer_p99_ms": paced["latency_ms"]["p99"],
            "end_to_end_p50_ms": sent["p50"] / 1e3, "end_to_end_p99_ms": sent["p99"] / 1e3}


def wait_until_empty(cell):
    """Waits until nothing waits. Returns the seconds."""
    asker, began = sampler.Asker(cell.unix_socket), time.monotonic()
    try:
        while (waiting := asker.waiting()) > 0:
            if time.monotonic() - began > EMPTY_SECONDS_MAX:
                raise Failed(f"{waiting:,} still wait after {EMPTY_SECONDS_MAX} s")
            time.sleep(0.1)
    finally:
        asker.close()
    return time.monotonic() - began


def through_nginx(campaign, backend, rate):
    """Offers the same rate to nginx. Returns the same figures, as far as nginx has them, and the highest rate that
    it passes on."""
    seconds = min(60, campaign.sustained_seconds)
    with nginx.proxy(backend, campaign.directory) as (child, port):
        pids = {"nginx": child.pid, "backend": servers.stats(backend)["pid"]}
        with groups.as_units(pids):
            return beside_and_most(campaign, backend, rate, seconds, port, pids)


def beside_and_most(campaign, backend, rate, seconds, port, pids):
    campaign.offer(port, rate, 1)
    servers.forget(backend)
    usage = machine.Usage(pids)
    paced = campaign.offer(port, rate, seconds)
    stats = servers.stats(backend)
    row = {"through": "nginx", "asked_per_second": rate, "seconds": seconds, **rates(paced, stats),
           **latencies(paced, stats), **usage.each_us(paced["answered"].get("200", 0)),
           "generator_cpu_us": paced["cpu_us_per_request"]}
    return row, *most_of_nginx(campaign, port, rate)


def most_of_nginx(campaign, port, rate):
    """Searches as `search` does. nginx has no queue that could grow: a rate is held if all is offered and answered
    200, and p99 is that of a queue that is flat. A rate that is not held is tried again once. Returns the rate, or
    `None` if none was held, and the probes."""
    seconds, low, high, rows = campaign.scale(5, 1), None, None, []
    while RATE_LEAST <= rate <= campaign.scale(RATE_MOST, rate):
        is_held = any(is_held_by_nginx(campaign, port, rate, seconds, rows) for _ in range(2))
        low, high = (rate, high) if is_held else (low, rate)
        if low is not None and high is not None and high - low <= max(PRECISION * low, RATE_LEAST):
            break
        if high is None:
            rate *= 2
        else:
            rate = (low + high) // 2 if low is not None else rate // 2
    return low, rows


def is_held_by_nginx(campaign, port, rate, seconds, rows):
    paced = campaign.offer(port, rate, seconds)
    reasons = missed({"answers": paced["answered"].get("200", 0) < paced["asked"],
                      "offered": paced["offered_per_second"] < OFFERED_MIN * rate,
                      "p99": paced["latency_ms"]["p99"] > NGINX_P99_MS})
    rows.append({"through": "nginx", "asked_per_second": rate, "seconds": seconds,
                 "offered_per_second": paced["offered_per_second"], "answer_p99_ms": paced["latency_ms"]["p99"],
                 "missed": reasons})
    campaign.say(f"nginx, {rate:,}/s: {'not held: ' + reasons if reasons else 'held'}, "
                 f"p99 {paced['latency_ms']['p99']:.1f} ms")
    return not reasons


def findings(found, probes, runs, samples, beside):
    row = runs[-1]
    quarter = max(1, len(samples) // 4)
    memory = [one["memory_bytes"] / 2**20 for one in samples]
    kept = [sampler.kept_bytes(one["appended"] - one["waiting"]) / 2**20 for one in samples]
    largest_aof = max(one["aof_bytes"] for one in samples)
    bound = AOF_FACTOR * max(memory) * 2**20 + AOF_EXTRA_BYTES
    growth = lambda values: median(values[-quarter:]) - median(values[:quarter])
    grown_kept = growth(kept)
    found.figures = {**row, "aof_largest_mib": largest_aof / 2**20, "aof_bound_mib": bound / 2**20,
                     "redis_memory_most_mib": max(memory), "redis_memory_grown_mib": growth(memory),
                     "fingerprints_and_history_grown_mib": grown_kept,
                     **{f"{name}_rss_most_mib": max(one[f"{name}_rss_bytes"] for one in samples) / 2**20
                        for name in ("receiver", "downstreamer", "redis")}}
    found.at_most("growth of the backlog, first to last fifth", row["backlog_end"] - row["backlog_start"],
                  SLACK_SECONDS * row["asked_per_second"])
    found.at_most("answers that are not 200", row["not_200"], 0)
    found.at_least("offered ÷ asked for", row["offered_per_second"] / row["asked_per_second"], OFFERED_MIN)
    found.at_least("delivered ÷ accepted", row["delivered_per_second"] / row["accepted_per_second"], OFFERED_MIN)
    found.at_most("growth of Redis memory except fingerprints and history, first to last quarter",
                  growth(memory) - grown_kept, GROWTH_MIB, "MiB")
    written = sum(max(0, after["aof_bytes"] - before["aof_bytes"]) for before, after in zip(samples, samples[1:]))
    if written > bound:
        found.at_most("largest AOF ÷ what our rewrites allow", largest_aof / bound, 1)
    found.read(
        f"For {row['seconds']} s, {row['accepted_per_second']:,.0f}/s were accepted and "
        f"{row['delivered_per_second']:,.0f}/s delivered; the backlog was {row['backlog_start']:,} at the start and "
        f"{row['backlog_end']:,} at the end. From sending to the backend took {row['end_to_end_p50_ms']:.1f} ms (p50) "
        f"and {row['end_to_end_p99_ms']:.1f} ms (p99), through nginx {beside['end_to_end_p50_ms']:.1f} and "
        f"{beside['end_to_end_p99_ms']:.1f} ms. nginx neither stores nor checks anything.")
    found.rows = {"runs": [*runs, beside], "probes": probes, "samples": samples}
    found.plot("backlog", f"Webhooks that wait at {row['asked_per_second']:,}/s", "seconds", "webhooks",
               {"backlog": [(one["seconds"], one["waiting"]) for one in samples]})
    sampler.plot(found, samples)


def compare(found, most):
    """Puts the rate beside the highest of nginx."""
    part = found.figures["accepted_per_second"] / most if most else None
    found.figures |= {"nginx_most_per_second": most, "of_nginx": part}
    found.at_least("sustained ÷ the most that nginx passes on", part, OF_NGINX_MIN)
    found.at_most("p99 from sending to the backend", found.figures["end_to_end_p99_ms"], END_TO_END_MS_MAX, "ms")
    if most:
        found.read(f"The most that nginx passes on to the same backend, with p99 ≤ {NGINX_P99_MS} ms, is {most:,}/s: "
                   f"Spillway sustains {part:.2f} of it.")


def shrink(found, row, samples):
    """Adds how a backlog shrank while webhooks came in."""
    found.figures |= {"catch_up_per_second": row["asked_per_second"], "catch_up_backlog": row["backlog_start"],
                      "catch_up_empty_after_s": row["empty_after_s"], "catch_up_answer_p99_ms": row["answer_p99_ms"]}
    found.at_most("left of the backlog, with intake at 0.7 of the rate", row["backlog_end"],
                  catchup.SLACK_SECONDS * row["asked_per_second"])
    found.at_most("answers that are not 200 meanwhile", row["not_200"], 0)
    found.at_least("offered ÷ asked for meanwhile", row["offered_part"], OFFERED_MIN)
    found.at_most("p99 of the answers meanwhile", row["answer_p99_ms"], catchup.ANSWER_MS_MAX, "ms")
    found.read(f"With {row['asked_per_second']:,}/s coming in, a backlog of {row['backlog_start']:,} "
               + (f"was gone after {row['empty_after_s']:.0f} s." if row["empty_after_s"] else
                  f"shrank to {row['backlog_end']:,}."))
    found.rows["catch-up"] = samples
    found.plot("catch-up", f"A backlog, while {row['asked_per_second']:,}/s come in", "seconds", "webhooks",
               {"backlog": [(one["seconds"], one["waiting"]) for one in samples]})
