#!/usr/bin/env python3
"""Sizes cells by calculation: how many, how large, and what breaks first.

  bench/sizing.py                        every table, for the rates of bench/sizing.json
  bench/sizing.py --rates 120000         for a peak of your own, in webhooks a second
  bench/sizing.py --set peak_minutes=30 --set machine_memory=64
  bench/sizing.py --set body_bytes=50000 another size of bodies; memory, AOF and CPU follow from the measured sizes
  bench/sizing.py --cells 1 --rates 5000 --set peak_minutes=60 --set backend_share=0.04 --set base_share=0.01
                                         one cell: 5,000/s for an hour, 200/s to the backend, 50/s outside the peak
  bench/sizing.py --slow                 the costs of a slow hour on an AMD EPYC
  bench/sizing.py --shares 60000         who gets the processor at that offered load on two cores, if each unit has
                                         its CPUWeight= (--cores 4; --weight receiver=400)
  bench/sizing.py --write                writes the tables into docs/sizing.md
  bench/sizing.py --check                exits with 1 if the page, a source or the arithmetic is wrong

bench/sizing.json has every input with its unit: `measured` names the page of bench/results and the words that
hold the figure, `assumed` is yours to set. `slow` has the costs for --slow, `sizes` and `delivery_sizes` those of
other bodies. A new measurement: change value, source and quote, and run --write.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parent.parent
INPUTS, PAGE = ROOT / "bench/sizing.json", ROOT / "docs/sizing.md"
GIB, MIB = 1 << 30, 1 << 20
MICROSECONDS = 1e6
HOURS_A_MONTH = 730
# A pack is closed at so many bytes, before compression.
PACK_BYTES = MIB
# With one cell, each change of it stops all intake.
CELLS_MIN = 2
CELLS_MAX = 10_000
# DELIVERY_THREADS=auto is one thread on machines of up to so many cores, and a thread for each core on larger ones.
ONE_THREAD_CORES = 4
# A backlog that is not empty by then is not computed further.
SIMULATED_SECONDS_MAX = 7 * 86_400
# Inputs that may be 0: nothing arrives outside the peak, or a price does not count.
MAY_BE_0 = {"base_share", "price_core", "price_memory", "price_disk"}
BEGIN, END = "<!-- sizing.py: {} -->\n", "<!-- sizing.py: end -->"


class Wrong(Exception):
    """An input with which nothing can be computed. The text says what to change."""


def read_inputs(path, changes=(), is_slow=False):
    """Returns the file, its values by name with those of `changes` (NAME=VALUE), and what follows from the body's size."""
    file = json.loads(path.read_text(encoding="utf-8"))
    both = {**file["measured"], **file["assumed"]}
    values = {name: one["value"] for name, one in both.items()}
    if is_slow:
        values.update({name: slow_value(file, name) for name in file["slow"]})
    chosen = {}
    for change in changes:
        name, _, value = change.partition("=")
        if name not in values:
            raise Wrong(f"--set {change}: no input of that name in bench/sizing.json")
        chosen[name] = number(change, value)
    values.update(chosen)
    for name, value in values.items():
        if value < 0 or value == 0 and name not in MAY_BE_0:
            raise Wrong(f"{name} is {value:g}: set it above 0")
    followed = by_body(file, values, chosen)
    return file, SimpleNamespace(**{**values, **followed}), followed


def slow_value(file, name):
    """Returns a cost of the slow hour: as measured, or a multiple of the usual one."""
    one = file["slow"][name]
    return one["value"] if "value" in one else file["measured"][name]["value"] * one["times"]


def number(what, text):
    try:
        return float(text)
    except ValueError:
        raise Wrong(f"{what}: write NAME=NUMBER") from None


# --- The size of the body -------------------------------------------------------------------------

# Costs that grow with the body, each with the column of measured sizes that it grows like.
GROW = {"memory_bytes": "memory_bytes", "aof_bytes": "aof_bytes", "receiver_us": "cpu_us", "redis_ingest_us": "cpu_us",
        "redis_ingest_small_us": "cpu_us", "downstreamer_us": "downstreamer_us",
        "downstreamer_threads_us": "downstreamer_us", "redis_delivery_us": "redis_delivery_us",
        "record_bytes": "wire_bytes", "kafka_producer_us": "kafka", "redis_kafka_us": "kafka", "broker_us": "kafka"}
# Rates that fall as the costs grow.
FALL = {"cell_max": "second_us", "downstreamer_max": "downstreamer_us", "kafka_producer_max": "kafka"}


def by_body(file, values, chosen):
    """Returns the inputs that follow from `--set body_bytes`: all that depend on it, except those that are set too."""
    measured, body = file["measured"]["body_bytes"]["value"], values["body_bytes"]
    names = [name for name in (*GROW, *FALL) if name not in chosen]
    if body == measured or not names:
        return {}
    least, most = (pick(one["body_bytes"] for one in file["sizes"]["rows"]) for pick in (min, max))
    if not least <= body <= most:
        raise Wrong(f"body_bytes is {body:,.0f}, and costs were measured from {least:,} to {most:,} bytes: choose a size "
                    f"between these, or set all that depends on it too: {', '.join(names)}")
    times = growth(file, values, measured, body)
    return {name: values[name] * times[GROW[name]] if name in GROW else values[name] / times[FALL[name]]
            for name in names}


def growth(file, values, measured, body):
    """Returns by how much each column of the measured sizes is larger for this body than for the measured one."""
    wire = (body + values["header_bytes"]) / (measured + values["header_bytes"])
    # Nobody measured Kafka with other bodies: as if all of the cost grew with the record, and none fell.
    times = {"wire_bytes": wire, "kafka": max(1, wire)}
    for rows in (file["sizes"]["rows"], file["delivery_sizes"]["rows"]):
        names = [name for name in rows[0] if name not in ("body_bytes", "quote")]
        columns = {name: [(one["body_bytes"], one[name]) for one in rows] for name in names}
        if "per_second" in columns:
            columns["second_us"] = [(size, MICROSECONDS / rate) for size, rate in columns.pop("per_second")]
        times.update({name: between(points, body) / between(points, measured) for name, points in columns.items()})
    return times


def between(points, at):
    """Returns the value on the straight lines through the points; outside of them, that of the nearest one."""
    points = sorted(points)
    at = min(max(at, points[0][0]), points[-1][0])
    for (left, low), (right, high) in zip(points, points[1:]):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    raise AssertionError("BUG: `at` is beyond the last point")


# --- The backlog over time ------------------------------------------------------------------------


def simulate(values, kind, peak):
    """Plays a peak second by second. Returns the backlog at the end of each second from the peak's begin on,
    until it is empty."""
    share, drain = f"{kind}_share", peak * takes(values, kind)
    base, length = peak * values.base_share, round(values.peak_minutes * 60)
    if drain <= base:
        raise Wrong(f"{base:,.0f}/s arrive outside a peak of {peak:,.0f}/s (base_share={values.base_share:g}), and only "
                    f"{drain:,.0f}/s leave the queue ({share}={takes(values, kind):g}), so it never empties: add --set "
                    f"base_share=N with your load outside the peak divided by the peak, below {takes(values, kind):g}, "
                    f"such as --set base_share={takes(values, kind) / 4:.2g}; or raise {share}")
    backlog, course = 0.0, []
    for second in range(SIMULATED_SECONDS_MAX):
        arrived = peak if second < length else base
        backlog = max(0.0, backlog + arrived - drain)
        course.append(backlog)
        if second >= length and backlog == 0:
            return course
    raise Wrong(f"the queue is not empty {SIMULATED_SECONDS_MAX // 86_400} days after the peak")


# --- A cell ---------------------------------------------------------------------------------------


def redis_us(values, small=False):
    """Time of Redis' only thread for a webhook stored: CPU, and its part of the wait for the disk, once for a pack."""
    cpu = values.redis_ingest_small_us if small else values.redis_ingest_us
    packed = in_pack(values, small)
    return cpu + fsync_us(values, packed * values.aof_bytes) / packed


def in_pack(values, small=False):
    """Returns the webhooks of a pack: as many as connections bring, and no more than fit into one."""
    brought = values.pack_small_webhooks if small else values.pack_webhooks
    return max(1, min(brought, PACK_BYTES // (values.body_bytes + values.header_bytes)))


def fsync_us(values, size):
    """Returns the time of an append and fdatasync of so many bytes, from those of 64 KiB and 1 MiB."""
    return between([(64 << 10, values.fsync_small_us), (MIB, values.fsync_us)], size)


def takes(values, kind):
    """Returns the share of the peak that the consumer takes, which is never more than there is."""
    return min(1, values.backend_share if kind == "backend" else values.kafka_share)


def downstreamer(values, cores):
    """Returns a downstreamer on so many cores with DELIVERY_THREADS=auto: its CPU for a delivery (µs), and its highest
    rate. One thread has one core. Several have the cores. Neither has more than was measured on two."""
    if cores <= ONE_THREAD_CORES:
        return SimpleNamespace(us=values.downstreamer_us,
                               most=min(MICROSECONDS / values.downstreamer_us, values.downstreamer_max))
    by_cores = cores * MICROSECONDS / values.downstreamer_threads_us
    return SimpleNamespace(us=values.downstreamer_threads_us, most=min(by_cores, values.downstreamer_max))


def consumer(values, kind, cores):
    """Returns the consumer's name, its CPU and Redis' for a webhook (µs), and its highest rate."""
    if kind == "backend":
        return SimpleNamespace(name="downstreamer", redis_us=values.redis_delivery_us,
                               **vars(downstreamer(values, cores)))
    return SimpleNamespace(name="kafka_producer", us=values.kafka_producer_us, redis_us=values.redis_kafka_us,
                           most=values.kafka_producer_max)


def maxmemory(values, waiting):
    """Returns GiB for so many webhooks and the dead letters."""
    return (waiting * values.memory_bytes / GIB + values.dead_max) * values.memory_reserve


def cell(values, kind, peak, backlog, cells):
    """Returns what the fullest of so many cells needs. Whether the downstreamer has one thread depends on the cores."""
    small = cell_of(values, kind, peak, backlog, cells, ONE_THREAD_CORES)
    fits = small.machine_cores <= ONE_THREAD_CORES and max(small.use.values()) <= 1
    if kind != "backend" or fits or values.machine_cores <= ONE_THREAD_CORES:
        return small
    return cell_of(values, kind, peak, backlog, cells, values.machine_cores)


def cell_of(values, kind, peak, backlog, cells, cores):
    """Returns what the fullest of so many cells needs, if its consumer runs on a machine with so many cores."""
    drain = consumer(values, kind, cores)
    part = min(1, values.imbalance / cells)
    rate, out = peak * part, peak * takes(values, kind) * part
    wire = values.body_bytes + values.header_bytes
    need = SimpleNamespace(cells=cells, kind=kind, rate=rate, out=out, consumer=drain)
    need.receiver = rate * values.receiver_us / MICROSECONDS
    need.redis = (rate * redis_us(values) + out * drain.redis_us) / MICROSECONDS
    need.consumer_cores = out * drain.us / MICROSECONDS
    # Redis has one thread and gets a whole core: its wait for the disk is not another's time.
    need.cores = (need.receiver + need.consumer_cores) / values.headroom + 1
    least = ONE_THREAD_CORES + 2 if kind == "backend" and cores > ONE_THREAD_CORES else 2
    need.machine_cores = max(least, 2 * math.ceil(need.cores / 2))
    need.backlog = backlog * part
    need.maxmemory = math.ceil(maxmemory(values, need.backlog))
    need.memory = math.ceil(max(need.maxmemory * values.memory_factor, 2 * need.maxmemory + 1))
    need.space = math.ceil((values.aof_factor + 1) * need.maxmemory + 5)
    need.disk = rate * values.aof_bytes / 1e6
    need.gbit_in, need.gbit_out = (one * wire * 8 / 1e9 for one in (rate, out))
    need.use = {
        "Redis' core": need.redis / values.headroom,
        "cores": need.cores / values.machine_cores,
        "memory": need.memory / values.machine_memory,
        "network": max(need.gbit_in, need.gbit_out) / values.machine_network / values.headroom,
        "disk bandwidth": need.disk / values.machine_disk / values.headroom,
        "disk space": need.space / values.machine_space,
        drain.name: out / drain.most / values.headroom,
    }
    return need


def plan(values, kind, peak, count=None):
    """Returns so many cells, or the fewest of which none needs more than a machine has."""
    course = simulate(values, kind, peak)
    for cells in [count] if count else range(CELLS_MIN, CELLS_MAX):
        need = cell(values, kind, peak, max(course), cells)
        if count or max(need.use.values()) <= 1:
            break
    else:
        raise Wrong(f"{CELLS_MAX:,} cells are too few for {peak:,.0f}/s: the machine of bench/sizing.json is too small")
    need.peak, need.course = peak, course
    need.by_use = sorted(need.use.items(), key=lambda one: -one[1])
    hourly = need.machine_cores * values.price_core + need.memory * values.price_memory
    need.cost = cells * (hourly * HOURS_A_MONTH + need.space * values.price_disk)
    need.brokers = brokers(values, peak) if kind == "kafka" else None
    return need


def brokers(values, peak):
    """Returns what Kafka needs for the records of all cells."""
    rate, base = peak * takes(values, "kafka"), peak * values.base_share
    written = rate * values.record_bytes * values.replicas
    read = rate * values.record_bytes * (values.replicas - 1 + values.reader_groups)
    need = {
        "cores": rate * values.broker_us * values.replicas / MICROSECONDS / values.broker_cores,
        "disk bandwidth": written / 1e6 / values.broker_disk,
        "network": max(written, read) * 8 / 1e9 / values.machine_network,
    }
    count = max(math.ceil(values.replicas), *(math.ceil(one / values.headroom) for one in need.values()))
    seconds = values.retention_hours * 3600
    peaks = math.ceil(values.retention_hours / 24 * values.peaks_a_day)
    records = base * seconds + peaks * (peak - base) * values.peak_minutes * 60
    space = records * values.record_bytes * values.replicas / values.headroom / GIB
    partitions = max(rate * values.record_bytes / 1e6 / values.partition_rate, rate / values.reader_rate, count)
    hourly = values.broker_cores * values.price_core + values.broker_memory * values.price_memory
    return SimpleNamespace(
        count=count, first=max(need, key=need.get), partitions=count * math.ceil(partitions / count),
        written=written / 1e6 / count, read=read / 1e6 / count, space=math.ceil(space / count),
        cost=count * hourly * HOURS_A_MONTH + space * values.price_disk)


# --- Shares of a machine --------------------------------------------------------------------------

UNITS = {"receiver": "spillway-receiver", "redis": "spillway-redis", "downstreamer": "spillway-downstreamer"}


def weights():
    """Returns CPUWeight= of the units; systemd's default is 100."""
    found = {}
    for name, unit in UNITS.items():
        text = (ROOT / f"ops/systemd/{unit}.service").read_text(encoding="utf-8")
        weight = re.search(r"^CPUWeight=(\d+)", text, re.MULTILINE)
        found[name] = int(weight[1]) if weight else 100
    return found


def fill(demands, weight, cores):
    """Divides the cores by weight. What one doesn't use, the others get: shares of a work-conserving scheduler."""
    given, left = {}, cores
    open_ones = dict(demands)
    while open_ones:
        total = sum(weight[name] for name in open_ones)
        sated = [name for name, demand in open_ones.items() if demand <= left * weight[name] / total]
        if not sated:
            given.update({name: left * weight[name] / total for name in open_ones})
            break
        for name in sated:
            given[name] = open_ones.pop(name)
            left -= given[name]
    return given


def shares(values, offered, cores, weight):
    """Returns stored and delivered a second and the shares, while a backlog waits for a backend that answers at
    once. Where Redis can't do what is asked of it, intake and delivery are slowed alike."""
    low, high = 0.0, 1.0
    found = at_pace(values, offered, cores, weight, high)
    if found.is_enough:
        return found
    for _ in range(40):
        middle = (low + high) / 2
        found = at_pace(values, offered, cores, weight, middle)
        low, high = (middle, high) if found.is_enough else (low, middle)
    return at_pace(values, offered, cores, weight, low)


def at_pace(values, offered, cores, weight, pace):
    """Divides the cores if intake and delivery ask for this part of what they want."""
    drain = downstreamer(values, cores)
    wanted = {"receiver": pace * offered * values.receiver_us / MICROSECONDS,
              "downstreamer": pace * drain.most * drain.us / MICROSECONDS}
    found = SimpleNamespace(stored=pace * offered, delivered=pace * drain.most)
    for _ in range(60):
        work = (found.stored * values.redis_ingest_us + found.delivered * values.redis_delivery_us) / MICROSECONDS
        found.given = fill({**wanted, "redis": work}, weight, cores)
        stored = found.given["receiver"] * MICROSECONDS / values.receiver_us
        delivered = found.given["downstreamer"] * MICROSECONDS / drain.us
        found.stored, found.delivered = (found.stored + stored) / 2, (found.delivered + delivered) / 2
    # The wait for the disk is time of Redis' thread, and no processor's.
    waiting = found.stored * (redis_us(values) - values.redis_ingest_us) / MICROSECONDS
    found.is_enough = found.given["redis"] >= work * 0.999 and work + waiting <= 1
    return found


def shares_table(values, offered, cores, weight):
    lines = [f"{cores:g} cores; CPUWeight= " + ", ".join(f"{name} {one:g}" for name, one in weight.items()), "",
             "| offered/s | stored/s | delivered/s | receiver | Redis | downstreamer |", "|---|---|---|---|---|---|"]
    for rate in [offered * step / 4 for step in (1, 2, 3, 4)]:
        found = shares(values, rate, cores, weight)
        parts = " | ".join(f"{found.given[name]:.2f}" for name in UNITS)
        lines.append(f"| {rate:,.0f} | {found.stored:,.0f} | {found.delivered:,.0f} | {parts} |")
    drain = downstreamer(values, cores)
    threads = "one thread, so one core" if cores <= ONE_THREAD_CORES else "a thread for each core (measured on two)"
    lines += ["", f"The downstreamer has {threads}: {drain.most:,.0f}/s at most. The receiver decrypts TLS.",
              "Left out: the backend, a load generator, other consumers and the kernel's work for the network. On the same "
              "cores,", "each of them takes its part, so less is stored and delivered. A bound, not a measurement."]
    return "\n".join(lines) + "\n"


# --- Tables ---------------------------------------------------------------------------------------


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def amount(value):
    """Two digits or three: 0.42, 3.1, 42, 139,000."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def digits(value):
    """Three digits, and all that stand before the point: 3, 45.2, 3,736."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def plain(value):
    """A number of the inputs, as it stands there."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.12g}"


def duration(seconds):
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def limits_table(values):
    """Highest rate of one cell by each part that ends it."""
    room = values.headroom
    wire = (values.body_bytes + values.header_bytes) * 8
    most = values.machine_memory / values.memory_factor
    waiting = (most / values.memory_reserve - values.dead_max) * GIB / values.memory_bytes
    one, more = (downstreamer(values, cores) for cores in (ONE_THREAD_CORES, 2 * ONE_THREAD_CORES))
    single = "a cell has one, with one thread: " + (
        f"{digits(one.us)} µs on one core" if one.most < values.downstreamer_max else f"{room:g} of what was measured")

    def redis(small, pack):
        cpu = values.redis_ingest_small_us if small else values.redis_ingest_us
        all_us = redis_us(values, small)
        return (f"{amount(room * MICROSECONDS / all_us)}/s",
                f"{digits(cpu)} µs of CPU, {amount(all_us - cpu)} µs of waiting for the disk, once for a pack of "
                f"{in_pack(values, small):.0f} {pack}")

    rows = [
        ("Redis' only thread, 256 connections", *redis(False, "webhooks: a bound, no such pack was measured")),
        ("the same, 64 connections", *redis(True, "webhooks; packs grow with the load")),
        ("network", f"{amount(room * values.machine_network * 1e9 / wire)}/s",
         f"{values.machine_network:g} Gbit/s, {amount(wire / 8)} bytes each"),
        ("receiver", f"{amount(room * MICROSECONDS / values.receiver_us)}/s for each core",
         f"{digits(values.receiver_us)} µs, which covers TLS"),
        ("disk", f"{amount(room * values.machine_disk * 1e6 / values.aof_bytes)}/s",
         f"{values.machine_disk:g} MB/s, {values.aof_bytes:,.0f} bytes each"),
        (f"downstreamer, up to {ONE_THREAD_CORES} cores", f"{amount(room * one.most)}/s delivered", single),
        ("downstreamer, more cores", f"{amount(room * more.most)}/s delivered",
         f"{digits(more.us)} µs on several threads; {room:g} of what was measured on two cores"),
        ("kafka_producer", f"{amount(room * values.kafka_producer_max)}/s written",
         f"a cell has one; {room:g} of what was measured"),
        ("memory", f"{amount(waiting / 1e6)} million waiting",
         f"{values.machine_memory:g} GiB, of which {most:.0f} are `maxmemory`"),
    ]
    return table(["part of a cell", "limit", "by"], rows)


def within_measured(values, plan):
    """Returns the cells, at least those of the plan, of which the fullest takes in no more than `cell_max`."""
    if plan.cells == 1 and plan.peak <= values.cell_max:
        return 1
    return max(plan.cells, math.ceil(plan.peak * values.imbalance / values.cell_max))


def too_small(plan):
    """Returns a line for each part of a given number of cells that needs more than the machine has."""
    return [f"{plan.peak:,.0f}/s is too much for --cells {plan.cells}: {name} is at {use:.0%} of its limit. Plan more "
            "cells, or a larger machine where that is its memory, cores, network or disk (--set machine_memory=N, …)."
            for name, use in plan.by_use if use > 1]


def sizes_table(values, kind, rates, count=None):
    plans = [plan(values, kind, rate, count) for rate in rates]

    def row(name, text):
        return [name, *(text(one) for one in plans)]

    first = plans[0].consumer.name
    to = "to the backend" if kind == "backend" else "into Kafka"
    rows = [
        row(f"{to}", lambda one: f"{one.peak * takes(values, kind):,.0f}/s"),
        row("cells, as asked for" if count else "cells, by calculation", lambda one: f"{one.cells}"),
        row("breaks first (of its limit)", lambda one: f"{one.by_use[0][0]} ({one.by_use[0][1]:.0%})"),
        row("breaks next", lambda one: f"{one.by_use[1][0]} ({one.by_use[1][1]:.0%})"),
        row("intake of the fullest cell", lambda one: f"{amount(one.rate)}/s"),
        row("receiver, cores", lambda one: amount(one.receiver)),
        row("Redis, of its one core", lambda one: amount(one.redis)),
        row(f"{first}, cores", lambda one: amount(one.consumer_cores)),
        row("cores of a cell, with headroom", lambda one: f"{one.machine_cores}"),
        row("waiting in the fullest cell at most", lambda one: f"{amount(one.backlog / 1e6)} million"),
        row("`maxmemory`", lambda one: f"{one.maxmemory} GiB"),
        row("memory of a cell", lambda one: f"{one.memory} GiB"),
        row("disk of a cell, space", lambda one: f"{one.space} GiB"),
        row("disk of a cell, written", lambda one: f"{amount(one.disk)} MB/s"),
        row("network of a cell, in and out", lambda one: f"{amount(one.gbit_in)} and {amount(one.gbit_out)} Gbit/s"),
    ]
    if kind == "kafka":
        rows += [
            row("brokers", lambda one: f"{one.brokers.count}"),
            row("their number is set by", lambda one: one.brokers.first),
            row("partitions", lambda one: f"{one.brokers.partitions}"),
            row("a broker, written and read", lambda one: f"{amount(one.brokers.written)} and {amount(one.brokers.read)} MB/s"),
            row("a broker, space", lambda one: f"{amount(one.brokers.space)} GiB"),
            row("price of the brokers, a month", lambda one: amount(one.brokers.cost)),
        ]
    rows.append(row("price of the cells, a month", lambda one: amount(one.cost)))
    rows.append(row(f"instead: cells, if none may take in more than {values.cell_max:,.0f}/s (`cell_max`)",
                    lambda one: f"{within_measured(values, one)}"))
    made = table([f"peak of {values.peak_minutes:g} minutes", *(f"{rate:,.0f}/s" for rate in rates)], rows)
    return "".join([made, *(f"\n{line}\n" for one in plans for line in too_small(one))])


def backlog_table(values, rates, count=None):
    plans = [plan(values, kind, rate, count) for kind in ("backend", "kafka") for rate in rates]
    length = round(values.peak_minutes * 60)
    moments = [length // 2, length, *(length + 60 * minutes for minutes in (20, 50, 110, 170))]

    def at(one, second):
        return f"{amount(one.course[second - 1] / 1e6)} M" if second <= len(one.course) and one.course[second - 1] else "0"

    rows = [[f"{second // 60} min", *(at(one, second) for one in plans)] for second in moments]
    rows.append(["empty after", *(duration(len(one.course)) for one in plans)])
    rows.append(["the last of the peak waits", *(duration(max(one.course) / (one.peak * takes(values, one.kind))) for one in plans)])
    names = {"backend": "backend", "kafka": "Kafka"}
    return table(["since the peak began", *(f"{one.peak:,.0f}/s, {names[one.kind]}" for one in plans)], rows)


def measured_table(file):
    rows = []
    for key, one in file["measured"].items():
        page = one["source"]
        name = page.removeprefix("bench/results/")
        rows.append([f"`{key}`", one["about"], f"{plain(one['value'])} {one['unit']}", f"[{name}](../{page})"])
    return table(["measured", "", "", "page"], rows)


def assumed_table(file):
    rows = [[f"`{name}`", one["about"], f"{plain(one['value'])} {one['unit']}".strip()]
            for name, one in file["assumed"].items()]
    return table(["assumed", "", ""], rows)


def slow_table(file):
    rows = []
    for name, one in file["slow"].items():
        usual = file["measured"][name]
        page = one.get("source", "")
        link = f"[{page.removeprefix('bench/results/')}](../{page})" if page else f"× {one['times']:g}, not measured"
        both = (f"{plain(value)} {usual['unit']}" for value in (usual["value"], slow_value(file, name)))
        rows.append([f"`{name}`", *both, link])
    return table(["slow hour", "usual", "`--slow`", "page"], rows)


def blocks(file, values, rates, count=None):
    """Returns the tables by the name of their place on the page."""
    return {
        "limits": limits_table(values),
        "backend": sizes_table(values, "backend", rates, count),
        "kafka": sizes_table(values, "kafka", rates, count),
        "backlog": backlog_table(values, rates, count),
        "measured": measured_table(file),
        "slow": slow_table(file),
        "assumed": assumed_table(file),
    }


def filled(text, made):
    """Returns the page with each table in its place."""
    for name, lines in made.items():
        begin = BEGIN.format(name)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(END)
        if not found or not closed:
            raise Wrong(f"docs/sizing.md has no place for the table: {begin.strip()} … {END}")
        text = f"{before}{begin}\n{lines}\n{END}{after}"
    return text


# --- The check ------------------------------------------------------------------------------------


def problems(file, values, rates):
    """Returns what is wrong with the sources, the arithmetic and the page."""
    found = [problem for one in sources(file) for problem in source_problems(*one)]
    found += arithmetic(values, rates)
    found += body_arithmetic(file)
    text = PAGE.read_text(encoding="utf-8")
    if filled(text, blocks(file, values, rates)) != text:
        found.append("docs/sizing.md is old; write it with: bench/sizing.py --write")
    return found


def sources(file):
    """Yields name, page, quote and figures of all that was measured."""
    slow = {f"slow {name}": one for name, one in file["slow"].items() if "value" in one}
    for name, one in {**file["measured"], **slow}.items():
        yield name, one["source"], one["quote"], [one["value"]]
    for name in ("sizes", "delivery_sizes"):
        for row in file[name]["rows"]:
            figures = [value for key, value in row.items() if key not in ("body_bytes", "quote")]
            yield f"{name} of {row['body_bytes']} bytes", file[name]["source"], row["quote"], figures


def source_problems(name, source, quote, figures):
    """Yields what is wrong with a quote: its page, or the figures in it."""
    page = ROOT / source
    if not page.is_file():
        yield f"{name}: there is no {source}"
    elif quote not in page.read_text(encoding="utf-8"):
        yield f"{name}: {source} does not contain {quote!r}"
    quoted = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.?\d*", quote)]
    for figure in figures:
        if figure not in quoted:
            yield f"{name}: {figure} is not in its quote {quote!r}"


def arithmetic(values, rates):
    """Compares what is computed with what can be known otherwise."""
    found = []

    def expect(is_true, text):
        if not is_true:
            found.append(text)

    for kind in ("backend", "kafka"):
        for peak in rates:
            share = takes(values, kind)
            one, length = plan(values, kind, peak), round(values.peak_minutes * 60)
            expected = peak * (1 - share) * length
            expect(abs(max(one.course) - expected) < 1, f"{kind} {peak}: the highest backlog is not {expected:,.0f}")
            empty = length + expected / (peak * (share - values.base_share))
            expect(abs(len(one.course) - empty) <= 1, f"{kind} {peak}: empty after {len(one.course)}, not {empty:.0f} s")
            expect(max(one.use.values()) <= 1, f"{kind} {peak}: more is used than a machine has")
            fewer = one.cells > CELLS_MIN and cell(values, kind, peak, max(one.course), one.cells - 1)
            expect(not fewer or max(fewer.use.values()) > 1, f"{kind} {peak}: a cell less would do")
            held = min(1, values.imbalance / one.cells) * expected * values.memory_bytes / GIB + values.dead_max
            expect(one.maxmemory >= held * values.memory_reserve, f"{kind} {peak}: {one.maxmemory} GiB hold too little")
            is_one = one.kind == "backend" and one.machine_cores <= ONE_THREAD_CORES
            expect(not is_one or one.consumer_cores <= 1, f"{kind} {peak}: one thread has {one.consumer_cores} cores")
        alone = plan(values, kind, rates[0], 1)
        is_whole = alone.cells == 1 and alone.rate == rates[0]
        expect(is_whole, f"{kind}: a single cell takes in {alone.rate:,.0f}/s of {rates[0]:,}")
    found += shares_arithmetic(values)
    equal = fill({"a": 5.0, "b": 0.5, "c": 5.0}, {"a": 300, "b": 100, "c": 100}, 2.0)
    expect(equal == {"a": 1.2, "b": 0.4, "c": 0.4}, f"shares of 2 cores: {equal}")
    idle = fill({"a": 0.5, "b": 1.0}, {"a": 1000, "b": 1}, 2.0)
    expect(idle == {"a": 0.5, "b": 1.0}, f"with free cores each gets what it asks for, not {idle}")
    return found


def body_arithmetic(file):
    """Returns what is wrong with the inputs that follow from the size of the body."""
    found = []
    base = next(one for one in file["sizes"]["rows"] if one["body_bytes"] == file["measured"]["body_bytes"]["value"])
    for size in file["sizes"]["rows"]:
        _, values, _ = read_inputs(INPUTS, [f"body_bytes={size['body_bytes']}"])
        for name, column in (("memory_bytes", "memory_bytes"), ("aof_bytes", "aof_bytes"), ("receiver_us", "cpu_us")):
            expected = file["measured"][name]["value"] * size[column] / base[column]
            if not math.isclose(getattr(values, name), expected):
                found.append(f"{name} at {size['body_bytes']:,} bytes is {getattr(values, name)}, not {expected}")
    return found


def shares_arithmetic(values):
    """Returns what is wrong with the shares of two cores and four."""
    found = []
    for cores in (2.0, 4.0):
        one = shares(values, 60_000, cores, dict.fromkeys(UNITS, 100))
        if sum(one.given.values()) > cores * 1.001 or one.given["downstreamer"] > 1.001:
            found.append(f"shares of {cores:g} cores: {one.given}")
    return found


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=INPUTS, help="a file in place of bench/sizing.json")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another value of an input")
    parser.add_argument("--slow", action="store_true", help="the costs of a slow hour on an AMD EPYC")
    parser.add_argument("--cells", type=int, metavar="N", help="plan so many cells; 1 is a single cell, without imbalance")
    parser.add_argument("--rates", metavar="N,N", help="peaks, in webhooks a second")
    parser.add_argument("--shares", type=float, metavar="N", help="who gets the processor, up to N offered a second")
    parser.add_argument("--cores", type=float, default=2, help="cores for --shares")
    parser.add_argument("--weight", action="append", default=[], metavar="NAME=N", help="another CPUWeight= for --shares")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/sizing.md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if docs/sizing.md is old")
    return parser.parse_args()


def run(args):
    if (args.write or args.check) and (args.set or args.rates or args.slow or args.cells or args.figures != INPUTS):
        raise Wrong("--write and --check are for bench/sizing.json as it is: change the file")
    if args.cells is not None and not 1 <= args.cells <= CELLS_MAX:
        raise Wrong(f"--cells {args.cells}: plan from 1 to {CELLS_MAX:,} cells")
    file, values, followed = read_inputs(args.figures, args.set, args.slow)
    rates = [number("--rates", one) for one in args.rates.split(",")] if args.rates else file["rates"]
    if min(rates) <= 0:
        raise Wrong("--rates: each peak must be above 0")
    if followed:
        print(f"With a body of {values.body_bytes:,.0f} bytes, by the measured sizes: "
              + ", ".join(f"{name}={amount(value)}" for name, value in followed.items()) + "\n")
    if args.shares:
        weight = weights()
        for change in args.weight:
            name, _, value = change.partition("=")
            if name not in weight:
                raise Wrong(f"--weight {change}: the names are {', '.join(weight)}")
            weight[name] = number(f"--weight {change}", value)
        print(shares_table(values, args.shares, args.cores, weight), end="")
    elif args.check:
        found = problems(file, values, rates)
        print("\n".join(found) if found else "docs/sizing.md is what bench/sizing.json gives")
        return 1 if found else 0
    elif args.write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(file, values, rates)), encoding="utf-8")
        print("written to docs/sizing.md")
    else:
        made = blocks(file, values, rates, args.cells)
        # The tables of inputs have those of the file.
        changed = ("measured", "slow", "assumed") if args.set or args.slow else ()
        print("\n".join(lines for name, lines in made.items() if name not in changed), end="")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(run(arguments()))
    except Wrong as wrong:
        sys.exit(f"sizing: {wrong}")
