#!/usr/bin/env python3
"""Measures the receiver under load, one scenario after the other, and checks thresholds.

  bench/characterize.py [--quick] [--sustained-seconds N] [--sustained-rate N] [--flood-seconds N] [SCENARIO…]

bench/README.md explains each scenario. --quick takes seconds, proves that the scenarios run, and
writes to target/characterize-quick instead of bench/results.
"""

import argparse
import datetime
import importlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import findings, machine
from harness.campaign import Campaign, fail
from harness.servers import RELEASE, ROOT, Failed, alone

SCENARIOS = ["half", "breakpoint", "spike", "sustained", "flood", "backlog", "overload", "sizes", "connections", "tls",
             "traces", "secrets", "receivers", "cells", "forged", "endtoend", "fairness", "effect", "drain", "verbs",
             "coalesce", "archive", "soak"]
# Run only if named: they need a Kafka broker, and binaries built with librdkafka.
KAFKA_SCENARIOS = ["kafka"]
BINARIES = ["generate", "fill", "pace", "fdatasync", "baseline", "backend", "request-receiver",
            "downstreamer", "archiver", "spillway"]
# Longest run of one load.
SECONDS_MAX = 3_600
KAFKA_BINARIES = ["fill", "fdatasync", "produce", "request-receiver", "kafka_producer"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO",
                        help=", ".join(SCENARIOS + KAFKA_SCENARIOS))
    parser.add_argument("--quick", action="store_true", help="seconds each; proves nothing but that it runs")
    seconds(parser, "sustained", 60, "long run of sustained; 600 for a figure to publish")
    seconds(parser, "flood", 120, "the flood of flood")
    parser.add_argument("--sustained-rate", type=int, metavar="N", default=int(os.environ.get("SUSTAINED_RATE") or 0),
                        help="rate of the long run of sustained, in place of a search (SUSTAINED_RATE)")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.scenarios if name not in SCENARIOS + KAFKA_SCENARIOS]:
        parser.error(f"{unknown[0]} is none of {', '.join(SCENARIOS + KAFKA_SCENARIOS)}")
    return chosen


def seconds(parser, name, usual, words):
    """Adds the duration of a scenario, which the environment may name as well (`make characterize`)."""
    variable = f"{name.upper()}_SECONDS"

    def within(text):
        if not text.isdecimal() or not 1 <= int(text) <= SECONDS_MAX:
            raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {SECONDS_MAX}")
        return int(text)

    parser.add_argument(f"--{name}-seconds", type=within, default=os.environ.get(variable) or str(usual),
                        metavar="N", help=f"{words} ({variable}, {usual} if not given)")


def check_tools(scenarios):
    binaries = KAFKA_BINARIES if set(scenarios) & set(KAFKA_SCENARIOS) else []
    if not scenarios or set(scenarios) - set(KAFKA_SCENARIOS):
        binaries = [*BINARIES, *binaries]
    tools = ["wrk", "redis-server", "redis-cli"]
    if not scenarios or {"sustained", "cells"} & set(scenarios):
        tools.append("nginx")
    missing = [tool for tool in tools if not shutil.which(tool)]
    missing += [f"target/release/{name}" for name in binaries if not (RELEASE / name).exists()]
    if missing:
        raise Failed("missing: " + ", ".join(missing) + "; `make characterize` builds the binaries, "
                     "`apt-get install wrk redis-server redis-tools nginx` brings the rest")


def raise_file_limit():
    """Raises the limit of open files for this process and its children: each connection is a file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def results_directory(quick, facts):
    today = datetime.date.today().isoformat()
    usual = f"{ROOT}/target/characterize-quick" if quick else (
        f"{ROOT}/bench/results/{today}-{facts['cores']}c")
    return Path(os.environ.get("RESULTS") or usual)


def run_one(name, campaign, facts, results):
    """Runs a scenario and writes its files. Returns True if every threshold was met."""
    module = importlib.import_module(f"scenarios.{name}")
    campaign.scenario = name
    campaign.say("begins")
    campaign.disks.clear()
    campaign.measure_disk()
    found = module.run(campaign)
    if remark := campaign.disk_remark():
        found.remarks.append(remark)
        campaign.say(remark)
    run = {"quick": campaign.quick, "machine": facts, "fdatasync": campaign.disks,
           "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
    findings.write(results, name, " ".join(module.__doc__.split()), found, run)
    # Written after each scenario, so that an interrupted run keeps its results.
    findings.report(results, SCENARIOS + KAFKA_SCENARIOS)
    for verdict in found.verdicts:
        word = "pass" if verdict["passed"] else "FAIL"
        campaign.say(f"{word}  {verdict['what']}: {findings.shown(verdict['measured'])} "
                     f"(threshold {verdict['sign']} {findings.shown(verdict['limit'])} {verdict['unit']})")
    return all(verdict["passed"] for verdict in found.verdicts)


def main(chosen):
    check_tools(chosen.scenarios)
    raise_file_limit()
    base = Path(os.environ.get("BENCH_DIR") or ROOT / "target")
    base.mkdir(parents=True, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="characterize-", dir=base)
    facts = machine.facts()
    results = results_directory(chosen.quick, facts)
    campaign = Campaign(directory, chosen.quick, chosen.sustained_seconds, chosen.flood_seconds)
    campaign.sustained_rate = chosen.sustained_rate
    broken, missed = [], []
    try:
        for name in chosen.scenarios or SCENARIOS:
            try:
                if not run_one(name, campaign, facts, results):
                    missed.append(name)
            except (Failed, OSError, subprocess.SubprocessError) as failure:
                campaign.say(f"BROKEN: {failure}")
                broken.append(name)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if results.is_dir():
        print(f"written to {os.path.relpath(results)}/characterize.md")
    if missed:
        print(f"thresholds missed in: {', '.join(missed)}")
    if broken:
        fail(f"could not be run: {', '.join(broken)}")
    return 0 if chosen.quick or not missed else 2


if __name__ == "__main__":
    try:
        chosen = arguments()
        with alone():
            sys.exit(main(chosen))
    except Failed as failure:
        fail(failure)
    except KeyboardInterrupt:
        sys.exit(130)
