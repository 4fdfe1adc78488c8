"""One, two and three cells behind nginx, which hashes by shop as in ops/nginx/cells.conf, with fsync before each answer
and closed loops of 64 and 256 connections. All cells, nginx and the load generator share the cores and the disk of
one machine, so on few cores more cells add little: the scenario shows what a further cell costs there, and that each gets its
share. Cells are meant for machines of their own."""

import time
from contextlib import ExitStack

from harness import load, machine, nginx, servers, wrk
from harness.campaign import Findings
from harness.servers import Failed

CONNECTIONS = [64, 256]
CELLS = [1, 2, 3]
SHOPS = 1_000
SHARE_MIN = 0.5


def run(campaign):
    found, rows = Findings(), []
    for connections in campaign.scale(CONNECTIONS, CONNECTIONS[:1]):
        for count in CELLS:
            row = measure(campaign, count, connections)
            rows.append(row)
            campaign.say(f"{count} with {connections} connections: {row['per_second']:,.0f}/s, CPU "
                         f"{row['cells_cpu_us']:.1f} µs and nginx {row['nginx_cpu_us']:.1f} µs, p99 "
                         f"{row['p99_ms']:.1f} ms, shares {row['shares']}")
    found.at_most("answers that are not 200", sum(row["not_200"] for row in rows), 0)
    found.at_least("webhooks of the cell with the fewest ÷ an even share", min(row["least_share"] for row in rows),
                   SHARE_MIN)
    judge(found, rows)
    return found


def measure(campaign, count, connections):
    """Starts that many cells and nginx, and measures one closed loop."""
    requests = campaign.requests(shops=SHOPS)
    with ExitStack() as stack:
        cells = [start(campaign, stack) for _ in range(count)]
        front, port = stack.enter_context(nginx.by_shop([cell["port"] for cell in cells], campaign.directory))
        pids = {"cells": [pid for cell in cells for pid in cell["pids"]], "nginx": nginx.workers(front)}
        wrk.run(port, connections, load.WARM_UP_SECONDS, campaign.wrk_threads, requests)
        cpu, taken = seconds(pids), accepted(cells)
        result = wrk.run(port, connections, campaign.scale(8, 1), campaign.wrk_threads, requests)
        # Answered webhooks are stored; unanswered ones may still be under way.
        time.sleep(0.3)
        cpu = {name: after - cpu[name] for name, after in seconds(pids).items()}
        taken = [after - before for after, before in zip(accepted(cells), taken)]
    return row_of(count, connections, result, cpu, taken)


def start(campaign, stack):
    """Starts Redis and a receiver that runs as long as the stack."""
    redis = stack.enter_context(servers.redis("always", campaign.directory))
    child, port = stack.enter_context(servers.receiver(redis, campaign.secret, campaign.directory))
    return {"port": port, "admin": child.admin, "pids": [child.pid, redis.child.pid]}


def seconds(pids):
    return {name: sum(machine.cpu_seconds(pid) for pid in own) for name, own in pids.items()}


def accepted(cells):
    return [servers.counter(cell["admin"], "spillway_accepted_total") for cell in cells]


def row_of(count, connections, result, cpu, taken):
    answered = result["requests"] - result["non_2xx"]
    if answered == 0:
        raise Failed(f"nothing was accepted: {result}")
    broken = sum(result[error] for error in ("connect", "read", "write", "timeout"))
    return {"cells": count, "connections": connections, "per_second": answered / result["seconds"],
            "not_200": result["non_2xx"] + broken, "cells_cpu_us": cpu["cells"] / answered * 1e6,
            "nginx_cpu_us": cpu["nginx"] / answered * 1e6, "p50_ms": result["p50_us"] / 1e3,
            "p99_ms": result["p99_us"] / 1e3, "least_share": min(taken) * count / max(sum(taken), 1),
            "shares": "/".join(f"{part / max(sum(taken), 1) * 100:.0f}" for part in taken) + " %"}


def judge(found, rows):
    connections = sorted({row["connections"] for row in rows})
    of = {(row["connections"], row["cells"]): row for row in rows}
    ratio = lambda at, count, key: of[at, count][key] / of[at, CELLS[0]][key]
    found.figures = {f"{count}_by_1_{words}_at_{at}": ratio(at, count, key) for at in connections
                     for count in CELLS[1:] for words, key in [("rate", "per_second"), ("cpu", "cells_cpu_us")]}
    most = CELLS[-1]
    parts = [f"{ratio(at, most, 'per_second'):.2f} × the rate at {ratio(at, most, 'cells_cpu_us'):.2f} × the CPU of "
             f"receiver and Redis with {at} connections" for at in connections]
    found.read(f"On this machine three cells together make {' and '.join(parts)}, against one alone; nginx adds "
               f"{max(row['nginx_cpu_us'] for row in rows):.1f} µs for each webhook at most.")
    found.rows["cells"] = rows
    by = lambda key: {f"{at} connections": [(row["cells"], row[key]) for row in rows if row["connections"] == at]
                      for at in connections}
    found.plot("rate", "Cells behind nginx on one machine", "cells", "webhooks per second", by("per_second"), even_x=True)
    found.plot("cpu", "CPU of receivers and Redis with cells behind nginx", "cells", "µs per webhook",
               by("cells_cpu_us"), even_x=True)
