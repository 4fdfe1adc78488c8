"""Writes the results of `make peers`: every round as JSON, a table and a plot, and the figures of docs/compare.md."""

import json
from statistics import median

from . import plot, report
from .peers import PEERS
from .servers import Failed

BEGIN = "<!-- Figures, written by `make peers`. -->"
END = "<!-- End of the figures. -->"
# Key in a round, heading, digits.
COLUMNS = [("per_second", "webhooks/s", 0), ("cpu_us", "CPU µs", 1), ("p50_ms", "p50 ms", 2), ("p99_ms", "p99 ms", 2)]
DELIVERY = [("delivered_per_second", "delivered/s", 0), ("delivery_cpu_us", "CPU µs", 1)]
KEYS = [*COLUMNS, *DELIVERY, ("server_cpu_us", "server", 1), ("memory_bytes", "memory", 0)]


def words(entry):
    out = (f"{entry['per_second']:,.0f}/s, CPU {entry['cpu_us']:.1f} µs, p50 {entry['p50_ms']:.2f} ms, "
           f"p99 {entry['p99_ms']:.2f} ms, not 200: {entry['not_200']}")
    if "stored" in entry:
        out += f", stored {entry['stored']:,} of {entry['answered']:,} answered"
    if "delivered_per_second" in entry:
        out += f"; delivered {entry['delivered_per_second']:,.0f}/s, CPU {entry['delivery_cpu_us']:.1f} µs"
    return out


def summarize(raw):
    """Returns the figures of each system: (median, lowest, highest), and what is missing in its store."""
    groups = {}
    for entry in raw["rounds"]:
        groups.setdefault(entry["system"], []).append(entry)
    return {name: figures(entries) for name, entries in groups.items()}


def figures(entries):
    out = {"not_200": sum(entry["not_200"] for entry in entries), "missing": missing(entries)}
    for key, _, _ in KEYS:
        values = [entry[key] for entry in entries if key in entry]
        if values:
            out[key] = (median(values), min(values), max(values))
    return out


def missing(entries):
    """Returns how many webhooks were answered 200 and are not in the store, and None without a store."""
    if "stored" not in entries[0]:
        return None
    return sum(max(0, entry["answered"] - entry["stored"]) for entry in entries)


def stored(group):
    if group["missing"] is None:
        return "stores nothing"
    # Requests that were cut off when the load ended may be stored, and hide as many that are missing.
    return f"**{group['missing']:,} are not stored**" if group["missing"] else "all, except what was cut off"


def tables(raw):
    """Returns the generated part of the page, without the plot."""
    summary, settings = summarize(raw), raw["settings"]
    checks = lambda name: "yes" if raw["signature"][name] else "no"
    lines = [f"{settings['connections']} connections, {settings['rounds']} rounds of {settings['seconds']} s; medians "
             "(lowest–highest). CPU is per webhook, of the server and its store.", ""]
    if settings["quick"]:
        lines[:0] = ["*A quick run: too short to conclude anything from.*", ""]
    heads = ["", *[head for _, head, _ in COLUMNS], "not 200", "signature", "of those answered 200, in the store"]
    lines += [report.row(heads), report.row(["---"] * len(heads))]
    for name, group in summary.items():
        cells = [report.cell(group.get(key), digits) for key, _, digits in COLUMNS]
        lines.append(report.row([PEERS[name].title, *cells, f"{group['not_200']:,}", checks(name), stored(group)]))
    lines += ["", *delivery(summary), *on_disk(raw), *versions(raw)]
    return "\n".join(lines) + "\n"


def delivery(summary):
    heads = ["delivery", *[head for _, head, _ in DELIVERY]]
    rows = [report.row([PEERS[name].title, *[report.cell(group[key], digits) for key, _, digits in DELIVERY]])
            for name, group in summary.items() if "delivered_per_second" in group]
    return [report.row(heads), report.row(["---"] * len(heads)), *rows, ""] if rows else []


def on_disk(raw):
    summary = summarize(raw)
    heads = ["", "on the disk when 200 is answered", "Redis memory of a webhook that waits"]
    rows = [report.row([PEERS[name].title, PEERS[name].durable, memory(group)]) for name, group in summary.items()]
    note = ("Spillway's packs are compressed, the others' strings are not. The bodies of the load are generated, and similar "
            "bodies compress better than real ones: expect more than this for Spillway.")
    return [report.row(heads), report.row(["---"] * len(heads)), *rows, "", note, ""]


def memory(group):
    return f"{group['memory_bytes'][0]:,.0f} B" if "memory_bytes" in group else "–"


def versions(raw):
    disk = next(size["p50_us"] for size in raw["fdatasync"] if size["bytes"] == 65536) / 1e3
    facts = raw["machine"]
    lines = [report.row(["", "versions"]), report.row(["---"] * 2)]
    lines += [report.row([PEERS[name].title, words]) for name, words in raw["versions"].items()]
    lines += ["", f"{raw['date']}, {facts['cores']} cores of {facts['processor']}, {facts['memory_gib']} GiB, Linux "
              f"{facts['kernel']}, one fdatasync of 64 KiB {disk:.2f} ms; {facts['redis'].partition(' sha=')[0]}; "
              f"{facts['wrk']}; commit {facts['commit']}."]
    if raw["left_out"]:
        reasons = [f"{PEERS[name].title} ({why_left_out(PEERS[name].path, reason)})" for name, reason in raw["left_out"].items()]
        lines += ["", "Left out of this run: " + "; ".join(reasons) + "."]
    return lines


def why_left_out(path, reason):
    """Returns the reason for readers of the page, who do not know the variable that gives a system's path."""
    if reason == f"`{path}` names no program":
        return f"not installed on the machine of this run; `{path}` gives its path"
    return reason


def plots(raw):
    """Draws bars of the rate and of the CPU, one chart above the other."""
    summary = summarize(raw)
    rates = {PEERS[name].title: [("", group["per_second"][0])] for name, group in summary.items()}
    costs = {}
    for name, group in summary.items():
        # Medians do not add up, so the length of the bar is the figure in the table.
        server, whole = group["server_cpu_us"][0], group["cpu_us"][0]
        parts = [("server", server)]
        costs[PEERS[name].title] = [*parts, ("store", whole - server)] if group["missing"] is not None else parts
    note = "medians; the load generator shares the cores"
    return plot.stacked([plot.rows("Webhooks answered 200 per second", rates, note),
                         plot.rows("CPU per webhook, µs", costs, note)])


def write(directory, raw, docs):
    """Writes peers.json, peers.md and peers.svg, and the figures of the page in `docs`. Returns the tables."""
    directory.mkdir(parents=True, exist_ok=True)
    text, drawn = tables(raw), plots(raw)
    (directory / "peers.json").write_text(json.dumps(raw, indent=1) + "\n")
    (directory / "peers.svg").write_text(drawn)
    head = ("# Spillway beside other receivers\n\n"
            "Written by `make peers`; bench/README.md says what is measured and how.\n\n")
    (directory / "peers.md").write_text(f"{head}{text}\n![rate and CPU](peers.svg)\n")
    if docs:
        (docs / "img" / "compare.svg").write_text(drawn)
        page = docs / "compare.md"
        image = "![Webhooks per second and CPU per webhook](img/compare.svg)"
        page.write_text(filled(page.read_text(), f"{text}\n{image}\n"))
    return text


def filled(page, text):
    """Returns the page with the text between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise Failed(f"docs/compare.md has lost its marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"
