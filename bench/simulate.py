#!/usr/bin/env python3
"""Draws the results of `simulate`: the limiter compared with others, in virtual time.

  bench/simulate.py DIRECTORY

DIRECTORY holds figures.csv and curves.csv, as `simulate --out` writes them. Results go to
bench/results/<date>-<cores>c/ (or RESULTS): limits.md, limits.csv, limits.svg.
"""

import csv
import datetime
import os
import sys
from pathlib import Path

from harness import machine, plot
from harness.servers import ROOT

OURS = "spillway"
# Drawn, because a curve says more of them than a figure: a backend of a quarter, and a quota.
DRAWN = ["capacity-quarter", "quota"]


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def grouped(rows, key):
    groups = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def figure_table(rows):
    """Returns a table with a row for each scenario and figure in which not every algorithm is in range."""
    algorithms = list(grouped(rows, "algorithm"))
    lines = ["| scenario | figure | expected | " + " | ".join(algorithms) + " |",
             "|" + "---|" * (3 + len(algorithms))]
    for scenario, ones in grouped(rows, "scenario").items():
        told = {figure: cells for figure, cells in grouped(ones, "figure").items()
                if any(row["holds"] != "true" for row in cells)}
        for index, (figure, cells) in enumerate(told.items()):
            name = linked(scenario) if index == 0 else ""
            found = {row["algorithm"]: shown(row) for row in cells}
            lines.append(" | ".join([f"| {name}", figure, cells[0]["range"],
                                     *(found[one] for one in algorithms)]) + " |")
    return lines


def shown(row):
    value = float(row["worst"])
    words = "never" if value == float("inf") else f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    return words if row["holds"] == "true" else f"*{words}*"


def chart(scenario, about, rows):
    """Draws limit and goodput over time, above one another."""
    limits, goodputs = {}, {}
    for algorithm, ones in grouped(rows, "algorithm").items():
        limits[algorithm] = [(float(row["seconds"]), float(row["limit"])) for row in ones]
        goodputs[algorithm] = [(float(row["seconds"]), float(row["goodput"])) for row in ones]
        if algorithm == OURS:
            needed = [(float(row["seconds"]), float(row["needed"])) for row in ones]
            capacity = [(float(row["seconds"]), float(row["capacity"])) for row in ones]
    # Drawn last, so that the algorithms have the same colours in both. A diverging limit would
    # flatten all others.
    limits["needed"], goodputs["capacity"] = needed, capacity
    most = 4 * max(value for _, value in needed + limits[OURS])
    limits = {name: [(x, y if y <= most else None) for x, y in one] for name, one in limits.items()}
    return [plot.lines(f"{scenario}: limit", "seconds", "at once", limits, note=about),
            plot.lines(f"{scenario}: goodput", "seconds", "done a second", goodputs, note=about)]


def linked(scenario):
    return f"[{scenario}](limits.svg)" if scenario in DRAWN else scenario


def report(figures, facts):
    ours = [row for row in figures if row["algorithm"] == OURS]
    held = sum(row["holds"] == "true" for row in ours)
    scenarios = grouped(figures, "scenario")
    lines = [
        "# The limiter beside others", "",
        f"Virtual time: backends as `simulator/scenarios/` describes them, {len(scenarios)} of them,",
        "each with several seeds; the worst seed is shown, in italics what is out of the range.",
        "The range is for ours, which begins knowing nothing. `fixed 32` is a limit somebody wrote",
        "down once, AIMD adds one each round trip and halves, Vector ARC is Vector's adaptive request",
        "concurrency, re-implemented from its description. BDP is what the backend needs at once:",
        "capacity × latency of one alone.", "",
        f"Ours: {held} of {len(ours)} in range. Commit {facts['commit']}. Not shown: figures for which all four are.", ""]
    lines += figure_table(figures)
    return "\n".join(lines) + "\n"


def main(directory):
    figures, curves = read(directory / "figures.csv"), read(directory / "curves.csv")
    facts = machine.facts()
    usual = f"{ROOT}/bench/results/{datetime.date.today().isoformat()}-{facts['cores']}c"
    results = Path(os.environ.get("RESULTS") or usual)
    results.mkdir(parents=True, exist_ok=True)
    abouts = {row["scenario"]: row["about"] for row in figures}
    by_scenario = grouped(curves, "scenario")
    charts = [chart(scenario, abouts[scenario], by_scenario[scenario]) for scenario in DRAWN]
    (results / "limits.svg").write_text(plot.stacked([one for pair in charts for one in pair]))
    (results / "limits.csv").write_text((directory / "figures.csv").read_text())
    (results / "limits.md").write_text(report(figures, facts))
    print(f"written to {os.path.relpath(results)}/limits.md")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
