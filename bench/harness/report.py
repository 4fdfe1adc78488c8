"""Medians with their spread, as JSON and as a Markdown table."""

import json
from statistics import median, quantiles

from . import plot

# Key in a round, heading, digits.
COLUMNS = [
    ("per_second", "webhooks/s", 0),
    ("cpu_us", "CPU µs", 1),
    ("server_cpu_us", "of it server", 1),
    ("redis_cpu_us", "of it Redis", 1),
    ("p50_ms", "p50 ms", 2),
    ("p90_ms", "p90 ms", 2),
    ("p99_ms", "p99 ms", 2),
    ("memory_bytes", "Redis memory B", 0),
    ("aof_bytes", "AOF B", 0),
]


def summarize(rounds):
    """Groups rounds by connections and system: {key: (median, lowest, highest)}."""
    groups = {}
    for entry in rounds:
        groups.setdefault((entry["connections"], entry["system"]), []).append(entry)
    return {group: figures(entries) for group, entries in groups.items()}


def figures(entries):
    result = {"not_200": sum(entry["not_200"] for entry in entries), "rounds": len(entries)}
    for key, _, _ in COLUMNS:
        values = [entry[key] for entry in entries if entry.get(key) is not None]
        if values:
            result[key] = (median(values), min(values), max(values))
    return result


def ratio(summary, connections, system, key):
    """Returns the ratio of a system's median to the baseline's with as many connections."""
    base = summary.get((connections, "baseline"))
    return summary[connections, system][key][0] / base[key][0] if base else None


def markdown(machine, disk, settings, rounds):
    summary = summarize(rounds)
    lines = ["# Ingest at saturation", ""]
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in machine.items()]
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in settings.items()]
    lines += ["", "Each figure is the median of its rounds (lowest–highest). CPU is per webhook",
              "answered 200, from the operating system's accounting; the load generator's is not",
              "in it. Memory and AOF bytes are per webhook stored. × compares with the baseline.", ""]
    heads = ["connections", "system", "× rate", "× CPU"] + [head for _, head, _ in COLUMNS]
    lines += [row(heads + ["not 200"]), row(["---"] * (len(heads) + 1))]
    for (connections, system), group in summary.items():
        cells = [str(connections), system]
        for key in ("per_second", "cpu_us"):
            times = ratio(summary, connections, system, key)
            cells.append(f"{times:.2f}" if times else "–")
        cells += [cell(group.get(key), digits) for key, _, digits in COLUMNS]
        lines.append(row(cells + [str(group["not_200"])]))
    if pairs := beside(rounds):
        lines += ["", "Beside another receiver, in the same rounds and in turn first: medians of the ratios of",
                  "each round (their middle half).", ""]
        lines += [row(["connections", "system", "× rate", "× CPU"]), row(["---"] * 4), *pairs]
    lines += ["", "![rate and CPU by system and connections](saturation.svg)"]
    lines += ["", "The disk: append + fdatasync in the directory of the queue.", ""]
    lines += [row(["bytes", "median µs", "p99 µs", "longest µs"]), row(["---"] * 4)]
    keys = ("bytes", "p50_us", "p99_us", "longest_us")
    lines += [row([str(size[key]) for key in keys]) for size in disk]
    return "\n".join(lines) + "\n"


def beside(rounds):
    """Returns rows with the ratios of the receiver's figures to those of the receiver that it ran beside:
    medians of the ratios of each round, and the middle half of these."""
    of = {(entry["connections"], entry["system"], entry["round"]): entry for entry in rounds}
    pairs = {}
    for (connections, system, number), entry in of.items():
        if other := of.get((connections, system + BESIDE, number)):
            pairs.setdefault((connections, system), []).append((entry, other))
    rows = []
    for (connections, system), both in sorted(pairs.items()):
        times = [[entry[key] / other[key] for entry, other in both] for key in ("per_second", "cpu_us")]
        rows.append(row([str(connections), system, *map(spread, times)]))
    return rows


def spread(values):
    """Returns the median and the middle half of values."""
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


def cell(figure, digits):
    if figure is None:
        return "–"
    middle, low, high = (f"{value:,.{digits}f}" for value in figure)
    return f"{middle} ({low}–{high})"


def row(cells):
    return "| " + " | ".join(cells) + " |"


# Names of the systems in the plots.
NAMES = {"baseline": "bare server", "always": "fsync before each answer",
         "everysec": "fsync each second", "none": "fsync never"}
# Suffix of the name of a system with another receiver.
BESIDE = " beside"


def name(system):
    return NAMES[system.removesuffix(BESIDE)] + (", beside" if system.endswith(BESIDE) else "")


def plots(summary):
    """Draws bars of rate and of CPU, by connections and system, one chart above the other."""
    rates, costs = {}, {}
    for (connections, system), group in summary.items():
        head, shown = f"{connections} connections", name(system)
        rates.setdefault(head, {})[shown] = group["per_second"][0]
        # Medians do not add up, so the height of the bar is the figure in the table.
        server, whole = group["server_cpu_us"][0], group["cpu_us"][0]
        parts = [("server", server)]
        if "redis_cpu_us" in group:
            parts.append(("Redis", whole - server))
        costs.setdefault(head, {})[shown] = parts
    note = "medians; the load generator shares the cores"
    charts = [plot.bars("Signed webhooks answered at saturation", "webhooks per second", rates, note),
              plot.bars("CPU per webhook", "µs", costs, note)]
    return plot.stacked(charts)


def write(directory, machine, disk, settings, rounds):
    """Writes saturation.json (every round), saturation.svg and saturation.md. Returns the text of
    saturation.md."""
    directory.mkdir(parents=True, exist_ok=True)
    raw = {"machine": machine, "settings": settings, "fdatasync": disk, "rounds": rounds}
    (directory / "saturation.json").write_text(json.dumps(raw, indent=1) + "\n")
    (directory / "saturation.svg").write_text(plots(summarize(rounds)))
    text = markdown(machine, disk, settings, rounds)
    (directory / "saturation.md").write_text(text)
    return text
