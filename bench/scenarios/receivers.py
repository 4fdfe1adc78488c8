"""One, two and three receivers that share one listening socket, passed as by systemd, and one Redis, with
fsync before each answer and closed loops of 64 and 256 connections. On few cores more receivers share
them and add none. The scenario shows that several receivers work, and what they cost."""

from harness import load, servers
from harness.campaign import Findings

CONNECTIONS = [64, 256]
RECEIVERS = [1, 2, 3]


def run(campaign):
    found, rows = Findings(), []
    for connections in campaign.scale(CONNECTIONS, CONNECTIONS[:1]):
        for count in RECEIVERS:
            row = measure(campaign, count, connections)
            rows.append(row)
            campaign.say(f"{count} with {connections} connections: {row['per_second']:,.0f}/s, "
                         f"CPU {row['cpu_us']:.1f} µs, p99 {row['p99_ms']:.1f} ms, shares {row['shares']}")
    found.at_most("answers that are not 200", sum(row["not_200"] for row in rows), 0)
    found.at_least("webhooks of the receiver with the fewest", min(row["fewest"] for row in rows), 1)
    first = {row["connections"]: row for row in rows if row["receivers"] == 1}
    last = {row["connections"]: row for row in rows if row["receivers"] == RECEIVERS[-1]}
    found.figures = {f"{RECEIVERS[-1]}_by_1_rate_at_{connections}":
                     last[connections]["per_second"] / first[connections]["per_second"]
                     for connections in first}
    parts = [f"{last[c]['per_second'] / first[c]['per_second']:.2f} × the rate at "
             f"{last[c]['cpu_us'] / first[c]['cpu_us']:.2f} × the CPU with {c} connections" for c in first]
    found.read(f"Three receivers on one port together make {' and '.join(parts)}, against one alone.")
    found.rows["receivers"] = rows
    by = lambda key: {f"{c} connections": [(row["receivers"], row[key]) for row in rows
                                           if row["connections"] == c] for c in first}
    found.plot("rate", "Receivers on one port", "receivers", "webhooks per second", by("per_second"),
               even_x=True)
    found.plot("latency", "p99 with receivers on one port", "receivers", "ms", by("p99_ms"), even_x=True)
    return found


def measure(campaign, count, connections):
    settings, directory = campaign.load(campaign.scale(8, 1)), campaign.directory
    with servers.redis("always", directory) as redis:
        with servers.receivers(count, redis, campaign.secret, directory) as (running, port):
            pids = {f"receiver {number}": child.pid for number, (child, _) in enumerate(running, 1)}
            entry = load.measure(port, {**pids, "redis": redis.child.pid}, redis, connections, settings,
                                 campaign.requests())
            taken = [servers.counter(admin, "spillway_accepted_total") for _, admin in running]
    entry.pop("raw")
    shares = "/".join(f"{part / sum(taken) * 100:.0f}" for part in taken)
    return {"receivers": count, "connections": connections, **entry, "fewest": min(taken),
            "shares": f"{shares} %"}
