"""Closed loops of 1 to 1,800 connections, fsync before each answer: how rate and latency go with
the number of senders. More receivers on one port need a receiver that shares its port."""

from harness import load, servers
from harness.campaign import Findings

CONNECTIONS = [1, 15, 30, 64, 255, 800, 1800]
RECEIVERS = [1, 2, 3]


def run(campaign):
    found, rows = Findings(), []
    settings, requests = campaign.load(campaign.scale(8, 1)), campaign.requests()
    for connections in campaign.scale(CONNECTIONS, [1, 64, 1800]):
        with servers.redis("always", campaign.directory) as redis:
            with servers.receiver(redis, campaign.secret, campaign.directory) as (child, port):
                pids = {"server": child.pid, "redis": redis.child.pid}
                entry = load.measure(port, pids, redis, connections, settings, requests)
        entry.pop("raw")
        rows.append({"connections": connections, **entry})
        campaign.say(f"{connections} connections: {entry['per_second']:,.0f}/s, "
                     f"p99 {entry['p99_ms']:.1f} ms")
    skipped = (f"receivers {', '.join(map(str, RECEIVERS[1:]))} on one port: skipped, "
               "the receiver does not share its port")
    campaign.say(skipped)
    found.remarks.append(skipped)
    wrong = sum(row["not_200"] for row in rows)
    found.at_most("answers that are not 200", wrong, 0)
    most, best = rows[-1]["per_second"], max(row["per_second"] for row in rows)
    found.figures = {"best_per_second": best, "at_1800_per_second": most}
    found.rows["connections"] = rows
    found.plot("rate", "Webhooks per second by connections", "connections", "per second", {
        "rate": [(row["connections"], row["per_second"]) for row in rows]}, even_x=True)
    found.plot("latency", "Latency by connections", "connections", "ms", {
        name: [(row["connections"], row[f"{name}_ms"]) for row in rows]
        for name in ("p50", "p90", "p99")}, even_x=True)
    return found
