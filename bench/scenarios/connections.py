"""Closed loops of 1 to 1,800 connections: rate and latency by the number of senders, for each durability
level (fsync before each answer, each second, never) and for the bare server, which stores nothing, in
turn. A single connection is answered after one commit, so its reference on the disk is one append and
fdatasync of 4 KiB."""

from harness import load, servers
from harness.campaign import Findings

CONNECTIONS = [1, 15, 30, 64, 255, 800, 1800]
SYSTEMS = {"baseline": "bare server, stores nothing", "none": "receiver, fsync never",
           "everysec": "receiver, fsync each second", "always": "receiver, fsync before each answer"}


def run(campaign):
    rows = []
    for connections in campaign.scale(CONNECTIONS, [1, 1800]):
        for system in campaign.scale(list(SYSTEMS), ["baseline", "none", "always"]):
            judged = connections == 1 and system == "always"
            if judged:
                campaign.disks.clear()
                campaign.measure_disk()
            entry = measure(campaign, system, connections)
            if judged:
                campaign.measure_disk()
            rows.append({"system": system, "connections": connections, **entry})
            campaign.say(f"{connections} connections, {system}: {entry['per_second']:,.0f}/s, "
                         f"p99 {entry['p99_ms']:.1f} ms")
    return findings(rows, campaign.fdatasync_ms(4 << 10))


def measure(campaign, system, connections):
    settings, requests = campaign.load(campaign.scale(8, 1)), campaign.requests()
    directory = campaign.directory
    if system == "baseline":
        with servers.baseline(campaign.secret, directory) as (child, port):
            entry = load.measure(port, {"server": child.pid}, None, connections, settings, requests)
    else:
        with servers.redis(system, directory) as redis:
            with servers.receiver(redis, campaign.secret, directory) as (child, port):
                pids = {"server": child.pid, "redis": redis.child.pid}
                entry = load.measure(port, pids, redis, connections, settings, requests)
    entry.pop("raw")
    return entry


def findings(rows, fdatasync):
    found = Findings()
    of = lambda system: [row for row in rows if row["system"] == system]
    alone, most = of("always")[0], of("always")[-1]
    best = max(of("always"), key=lambda row: row["per_second"])
    bare = max(row["per_second"] for row in of("baseline"))
    found.figures = {
        "best_per_second": best["per_second"], "best_at_connections": best["connections"],
        "bare_best_per_second": bare, f"at_{most['connections']}_per_second": most["per_second"],
        f"at_{most['connections']}_p99_ms": most["p99_ms"], "one_connection_p50_ms": alone["p50_ms"],
        "one_connection_p99_ms": alone["p99_ms"], "fdatasync_4k_ms": fdatasync}
    found.at_most("answers that are not 200", sum(row["not_200"] for row in rows), 0)
    found.at_most("one connection: p50 − one fdatasync", alone["p50_ms"] - fdatasync, 1, "ms")
    found.read(f"With fsync before each answer the rate is highest with {best['connections']:,} "
               f"connections, {best['per_second']:,.0f}/s, {best['per_second'] / bare:.0%} of the bare "
               f"server's best; with {most['connections']:,} it is {most['per_second']:,.0f}/s at a p99 "
               f"of {most['p99_ms']:.0f} ms.")
    found.read(f"One connection alone waits {alone['p50_ms']:.2f} ms (p50), of which one fdatasync is "
               f"{fdatasync:.2f} ms.")
    found.rows["connections"] = rows
    lines = lambda key: {name: [(row["connections"], row[key]) for row in of(system)]
                         for system, name in SYSTEMS.items() if of(system)}
    note = "5.3 KB each; the load generator shares the cores"
    found.plot("rate", "Signed webhooks answered per second", "connections (closed loop)",
               "webhooks per second", lines("per_second"), even_x=True, note=note)
    found.plot("latency", "p99 of the answer", "connections (closed loop)", "ms (logarithmic)",
               lines("p99_ms"), even_x=True, log_y=True, note=note)
    found.plot("cpu", "CPU per webhook, server and Redis", "connections (closed loop)", "µs",
               lines("cpu_us"), even_x=True, note=note)
    return found
