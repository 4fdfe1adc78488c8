#!/usr/bin/env python3
"""Draws the results of `make endure-shops` and `make endure-lanes`.

  bench/endurance.py DIRECTORY

DIRECTORY holds one-percent.json or big-lanes.json, as the stories write them. Pages and charts are
written there: one-percent.md, one-percent-<shops>-p99.svg, one-percent-<shops>-stream.svg, big-lanes.md.
Windows and samples are then removed from the JSON, because the charts show them.
"""

import json
import sys
from pathlib import Path

from harness import plot

# Figures of a phase: name, heading, divisor, decimals.
FIGURES = [("p50_ms", "p50 (ms)", 1, 1), ("p99_ms", "p99 (ms)", 1, 1),
           ("undelivered", "undelivered", 1, 0),
           ("packs_per_second", "packs/s", 1, 0), ("packs_max", "packs in the main stream", 1, 0),
           ("stream_bytes_max", "main stream (MiB)", 1 << 20, 1),
           ("index_bytes_max", "index (MiB)", 1 << 20, 1),
           ("resident_bytes_max", "downstreamer (MiB)", 1 << 20, 0),
           ("lane_webhooks_max", "webhooks in lanes", 1, 0),
           ("lanes_blocked_max", "blocked lanes", 1, 0)]
SHOPS = """# One percent fails, one hangs, one is paused, one is over its rate

`make endure-shops`: {rate:,} webhooks a second, signed, no two alike, over all shops in turn, through the
receiver; a backend that takes 5 ms. In the *bad* phase one shop in a hundred is answered 500, one gets no
answer within `DELIVERY_TIMEOUT` (4 s), one is paused by `spillway pause --shop`, and one sends more than
`SHOP_MAX_RATE`. The downstreamer gets SIGTERM after a third of it and SIGKILL after two. p50 and p99 are
those of the healthy shops, from the receiver's 200 to the delivery, without the first 5 s of each phase and
without the time from 1 s before each signal until 5 s after they had caught up. Load, servers, Redis and backend share the cores.
"""
LANES = """# Large lanes, and many of them

`make endure-lanes`: everything is stored while it is paused, moves into lanes, and stays there over
SIGTERM and SIGKILL of the downstreamer, the operator's verbs and `resume`. Twenty healthy shops send a
hundred webhooks a second meanwhile. *Without lanes*: the same webhooks delivered from the main stream.
Load, servers, Redis and backend share the cores.
"""


def row(cells):
    return "| " + " | ".join(cells) + " |"


def phase_table(phases):
    lines = [row(["phase", *(heading for _, heading, _, _ in FIGURES)]),
             "|" + "---|" * (len(FIGURES) + 1)]
    for phase in phases:
        shown = [f"{phase[name] / divisor:,.{decimals}f}" for name, _, divisor, decimals in FIGURES]
        lines.append(row([phase["phase"], *shown]))
    return lines


def shops_charts(directory, name, run):
    if not any(phase.get("samples") for phase in run["phases"]):
        return
    stem = f"one-percent-{name.split()[0].replace(',', '')}"
    waits, streams = {}, {}
    for phase in run["phases"]:
        windows, samples = phase.pop("windows", []), phase.pop("samples", [])
        begin = windows[0]["at"] if windows else 0.0
        for part in ("p50", "p99"):
            waits[f"{phase['phase']}, {part}"] = [(one["at"] - begin, one[f"{part}_ms"])
                                                 for one in windows if not one["is_away"]]
        begin = samples[0]["at"] if samples else 0.0
        streams[phase["phase"]] = [(one["at"] - begin, one["packs"]) for one in samples]
    note = "windows of 10 s; none where no downstreamer led"
    draw(directory, f"{stem}-p99", plot.lines(f"Healthy shops of {name}: 200 to delivery", "s", "ms",
                                              waits, note=note))
    draw(directory, f"{stem}-stream", plot.lines(f"Main stream, {name}", "s", "packs", streams))


def draw(directory, stem, chart):
    (directory / f"{stem}.svg").write_text(chart)


def shops_page(directory, runs):
    lines = [SHOPS.format(rate=next(iter(runs.values()))["rate"])]
    for name, run in runs.items():
        shops_charts(directory, name, run)
        stem = f"one-percent-{name.split()[0].replace(',', '')}"
        calm, bad, _ = (phase["seconds"] for phase in run["phases"])
        lines += [f"## {name}", "", *phase_table(run["phases"]), "",
                  f"The bad phase took {bad:,.0f} s, a calm one {calm:,.0f} s, `PARK_AFTER` was {run['park_after_seconds']:.0f} s. "
                  f"Of {run['accepted']:,} webhooks {run['delivered']:,} were delivered, "
                  f"{run['repeats']} of them again, in order per resource; all were "
                  f"{run['healed_seconds']:.0f} s after the shops were healed, and no key of a lane was "
                  "left.", "", "Promises broken: " + ("; ".join(run["broken"]) or "none") + ".", "",
                  f"![waiting times]({stem}-p99.svg)", "", f"![main stream]({stem}-stream.svg)", ""]
    return "\n".join(lines)


def lanes_page(stories):
    columns = [{one["figure"]: shown(one["value"]) for one in story["figures"]} for story in stories.values()]
    figures = dict.fromkeys(figure for column in columns for figure in column)
    lines = [LANES, row(["figure", *stories]), "|" + "---|" * (len(columns) + 1)]
    lines += [row([figure, *(column.get(figure, "") for column in columns)]) for figure in figures]
    broken = [f"{name}: {what}" for name, story in stories.items() for what in story["broken"]]
    return "\n".join([*lines, "", "Promises broken: " + ("; ".join(broken) or "none") + ".", ""])


def shown(value):
    if not isinstance(value, (int, float)):
        printable = (one for one in str(value) if one.isprintable() and ord(one) < 127 and one != "|")
        return "".join(printable)[:80]
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1_000 else f"{value:,.3f}"


def main():
    directory = Path(sys.argv[1])
    shops, lanes = directory / "one-percent.json", directory / "big-lanes.json"
    if shops.is_file():
        runs = json.loads(shops.read_text())
        (directory / "one-percent.md").write_text(shops_page(directory, runs))
        shops.write_text(json.dumps(runs, indent=2) + "\n")
    if lanes.is_file():
        (directory / "big-lanes.md").write_text(lanes_page(json.loads(lanes.read_text())))


if __name__ == "__main__":
    main()
