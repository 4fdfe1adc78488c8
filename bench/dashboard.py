#!/usr/bin/env python3
"""Draws the Grafana dashboard without Grafana. Runs the queries of each panel on a live Prometheus
and draws the panels in their places.

  bench/dashboard.py PROMETHEUS_URL SECONDS OUT.svg

The panels show the last SECONDS, as lines only. `make alerts-live` draws docs/img with it.
"""

import json
import re
import sys
import time
import urllib.parse
import urllib.request
from html import escape
from math import log10
from pathlib import Path

from harness.plot import FAINT, FONTS, GRID, INK, color, number, powers, rounds

DASHBOARD = Path(__file__).resolve().parent.parent / "ops/grafana/spillway.json"
# Grafana's grid has 24 columns.
COLUMN, LINE = 60, 30
# Points across a panel, and Grafana's rate interval in seconds: at least four scrapes.
POINTS, RATE_SECONDS_MIN = 120, 10
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 32, 44
# Lines in the legend of a panel, in two rows, and letters that fit into a third of its width.
NAMED_MAX, LETTERS_MAX = 6, 25


def main(prometheus, seconds, out):
    dashboard = json.loads(DASHBOARD.read_text())
    end = time.time()
    span = (end - seconds, end, max(1, seconds / POINTS))
    panels = dashboard["panels"]
    width = 24 * COLUMN
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * LINE + 40
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             f'width="{width}" height="{height}" font-family="{FONTS}">',
             f'<rect width="{width}" height="{height}" fill="#f4f5f7"/>',
             text(12, 26, f'{dashboard["title"]}: the last {seconds:.0f} s', 18, INK, "600")]
    empty = []
    for panel in panels:
        place = panel["gridPos"]
        x, y = place["x"] * COLUMN, place["y"] * LINE + 40
        if panel["type"] == "row":
            parts.append(text(x + 12, y + 21, panel["title"], 15, INK, "600"))
            continue
        series = [one for target in panel["targets"] for one in ask(prometheus, target, span)]
        if not series:
            empty.append(panel["title"])
        size = (place["w"] * COLUMN - 8, place["h"] * LINE - 8)
        parts.append(f'<g transform="translate({x + 4} {y + 4})">{draw(panel, series, span, size)}</g>')
    Path(out).write_text("\n".join([*parts, "</svg>", ""]))
    print(f"{out}: {len(panels)} panels and rows; without data: {', '.join(empty) or 'none'}")


def ask(prometheus, target, span):
    """Returns the series of a target: (name, [(time, value)])."""
    rate = f"{max(RATE_SECONDS_MIN, round(4 * span[2]))}s"
    query = target["expr"].replace("$__rate_interval", rate).replace("$cell", ".*")
    form = urllib.parse.urlencode(
        {"query": query, "start": span[0], "end": span[1], "step": span[2]}).encode()
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range", form, timeout=30) as answer:
        rows = json.load(answer)["data"]["result"]
    name = lambda labels: re.sub(r"{{(\w+)}}", lambda key: labels.get(key[1], ""), target["legendFormat"])
    points = lambda row: [(at, float(value)) for at, value in row["values"] if value not in ("NaN", "+Inf", "-Inf")]
    return [(name(row["metric"]), points(row)) for row in rows if points(row)]


def draw(panel, series, span, size):
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults["custom"]
    if custom["stacking"]["mode"] == "normal":
        series = stack(series)
    values = [value for _, points in series for _, value in points]
    is_log = custom.get("scaleDistribution", {}).get("type") == "log"
    ticks = (powers if is_log else rounds)(values)
    high = placer(ticks, is_log, size[1])
    across = lambda at: LEFT + (at - span[0]) / (span[1] - span[0]) * (size[0] - LEFT - RIGHT)
    out = [f'<rect width="{size[0]}" height="{size[1]}" rx="4" fill="white" stroke="{GRID}"/>',
           text(10, 19, panel["title"], 13, INK, "600")]
    for tick in ticks:
        out.append(f'<line x1="{LEFT}" x2="{size[0] - RIGHT}" y1="{high(tick):.1f}" '
                   f'y2="{high(tick):.1f}" stroke="{GRID}"/>')
        out.append(text(LEFT - 6, high(tick) + 4, shown(tick, defaults["unit"]), 10, FAINT, anchor="end"))
    if not values:
        out.append(text(size[0] / 2, size[1] / 2, "no data in this time", 12, FAINT, anchor="middle"))
    for index, (_, points) in enumerate(series):
        for piece in pieces(points, span[2]):
            path = " ".join(f"{across(at):.1f},{high(value):.1f}" for at, value in piece)
            out.append(f'<polyline points="{path}" fill="none" stroke="{color(index)}" stroke-width="1.5"/>')
    return "".join([*out, *legend([name for name, _ in series], size)])


def stack(series):
    """Stacks each series on top of those before it."""
    below, out = {}, []
    for name, points in series:
        points = [(at, value + below.get(at, 0)) for at, value in points]
        below.update(points)
        out.append((name, points))
    return out


def pieces(points, step):
    """Splits a series at gaps, for example after a process was killed."""
    piece = []
    for point in points:
        if piece and point[0] - piece[-1][0] > 1.5 * step:
            yield piece
            piece = []
        piece.append(point)
    yield piece


def placer(ticks, is_log, height):
    room = height - TOP - BOTTOM
    if not is_log:
        return lambda value: height - BOTTOM - value / ticks[-1] * room
    low, top = log10(ticks[0]), log10(ticks[-1])
    return lambda value: height - BOTTOM - (log10(max(value, ticks[0])) - low) / (top - low) * room


def shown(value, unit):
    if unit == "bytes":
        for name in ("", "KiB", "MiB", "GiB"):
            if value < 1024:
                break
            value /= 1024
        else:
            name = "TiB"
        return f"{number(value)} {name}"
    if unit == "percentunit":
        return f"{value * 100:.2g} %"
    return number(value) + {"s": " s", "reqps": "/s", "ops": "/s"}.get(unit, "")


def legend(names, size):
    out = []
    for index, name in enumerate(names[:NAMED_MAX]):
        x, y = 12 + (index % 3) * (size[0] - 12) / 3, size[1] - 22 + index // 3 * 14
        more = f" and {len(names) - NAMED_MAX} more" if index == NAMED_MAX - 1 < len(names) - 1 else ""
        out.append(f'<rect x="{x:.0f}" y="{y - 7:.0f}" width="10" height="3" fill="{color(index)}"/>')
        name = name if len(name + more) <= LETTERS_MAX else name[:LETTERS_MAX - len(more) - 1] + "…"
        out.append(text(x + 14, y - 2, name + more, 10, FAINT))
    return out


def text(x, y, words, size, fill, weight="400", anchor="start"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
            f'text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>')


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1].rstrip("/"), float(sys.argv[2]), sys.argv[3])
