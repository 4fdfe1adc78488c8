"""Writes the results of the scenarios: JSON, CSV and SVG for each, and one Markdown report from all
JSON files of the directory, so that scenarios can be run one by one."""

import csv
import json


def write(directory, name, about, findings, run):
    """Writes the files of one scenario."""
    directory.mkdir(parents=True, exist_ok=True)
    raw = {"scenario": name, "about": about, **run, "figures": findings.figures,
           "verdicts": findings.verdicts, "remarks": findings.remarks, "reading": findings.reading,
           "plots": [f"{name}-{plot}.svg" for plot in findings.plots],
           "tables": {table: f"{name}-{table}.csv" for table in findings.rows},
           "rows": findings.rows}
    (directory / f"{name}.json").write_text(json.dumps(raw, indent=1) + "\n")
    for table, rows in findings.rows.items():
        write_csv(directory / f"{name}-{table}.csv", rows)
    for plot, svg in findings.plots.items():
        (directory / f"{name}-{plot}.svg").write_text(svg)
    for page, text in findings.pages.items():
        (directory / f"{page}.md").write_text(text)


def write_csv(path, rows):
    heads = list(dict.fromkeys(key for row in rows for key in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, heads)
        writer.writeheader()
        writer.writerows(rows)


def report(directory, order):
    """Writes characterize.md and returns its text."""
    files = [directory / f"{name}.json" for name in order]
    found = [json.loads(file.read_text()) for file in files if file.exists()]
    lines = ["# How the receiver behaves under load", "",
             "Written by `bench/characterize.py`; bench/README.md says what is measured and how.", ""]
    lines += ["| criterion | measured | threshold | |", "|---|---|---|---|"]
    lines += [verdict_row(one["scenario"], verdict) for one in found for verdict in one["verdicts"]]
    for one in found:
        lines += section(one)
    text = "\n".join(lines) + "\n"
    (directory / "characterize.md").write_text(text)
    return text


def verdict_row(scenario, verdict):
    limit = f"{verdict['sign']} {shown(verdict['limit'])} {verdict['unit']}".strip()
    measured = f"{shown(verdict['measured'])} {verdict['unit']}".strip()
    word = "pass" if verdict["passed"] else "**FAIL**"
    return f"| {scenario}: {verdict['what']} | {measured} | {limit} | {word} |"


def section(one):
    lines = ["", f"## {one['scenario']}", "", one["about"], ""]
    if one["quick"]:
        lines += ["*A quick run: too short to conclude anything from.*", ""]
    if one["reading"]:
        lines += [" ".join(["**Reading.**", *one["reading"]]), ""]
    facts = {**one["machine"], "fdatasync": disk_words(one["fdatasync"]), "at": one["at"]}
    lines += ["; ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()), ""]
    lines += [f"- {remark}" for remark in one["remarks"]]
    lines += ["", "| figure | |", "|---|---|"]
    lines += [f"| {key.replace('_', ' ')} | {shown(value)} |" for key, value in one["figures"].items()]
    lines += [""] + [f"![{plot}]({plot})\n" for plot in one["plots"]]
    for table, file in one["tables"].items():
        lines += small_table(one["rows"][table], file)
    return lines


# Longer tables are only shown as plots.
ROWS_SHOWN_MAX = 20


def small_table(rows, file):
    if not rows or len(rows) > ROWS_SHOWN_MAX:
        return [f"Raw: `{file}`", ""]
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = ["| " + " | ".join(head.replace("_", " ") for head in heads) + " |"]
    lines += ["|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(shown(row.get(head)) for head in heads) + " |" for row in rows]
    return [*lines, "", f"Raw: `{file}`", ""]


def disk_words(disks):
    return "; then ".join(map(medians, disks))


def medians(disk):
    return ", ".join(f"{row['bytes'] >> 10} KiB {row['p50_us'] / 1e3:.2f} ms" for row in disk)


def shown(value):
    if value is None:
        return "–"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {shown(part)}" for key, part in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
