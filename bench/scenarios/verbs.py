"""The operator's commands on a queue of a million: the times of status, top, list, drop and explain. Checks
that a sampled top is within its stated error of the exact one, and that a drop is exact."""

import json
import os
import subprocess
import time

from harness import fill, machine, servers
from harness.campaign import Findings
from harness.servers import RELEASE, Failed

from .drain import SPARE_BYTES, WEBHOOK_BYTES, check_room

COUNT, SHOPS, CONNECTIONS, FILL_RATE_MIN = 1_000_000, 100, 50, 3_000
SECONDS_MAX = 2.0
DROPPED_WITHIN = 60
DROPPED = "shop-0007.myshopify.com"


def run(campaign):
    found, count = Findings(), campaign.scale(COUNT, 20_000)
    maxmemory = count * WEBHOOK_BYTES + SPARE_BYTES
    check_room(campaign, maxmemory)
    with servers.redis("always", campaign.directory, "--maxmemory", str(maxmemory)) as redis:
        with servers.receiver(redis, campaign.secret, campaign.directory) as (_, port):
            register(redis)
            filled = fill.run(port, count, campaign.secret, 60 + count / FILL_RATE_MIN,
                              products=count // 10, shops=SHOPS, connections=CONNECTIONS)
        campaign.say(f"{count:,} queued at {filled['per_second']:,.0f}/s")
        look(found, redis, count)
        with servers.backend(campaign.directory, "1s", 1) as backend:
            with servers.downstreamer(redis, backend, campaign.directory) as child:
                drop(found, redis, count, child)
    return found


def register(redis):
    told(redis, "consumers", "add", "http")


def told(redis, *arguments):
    """Returns the output of a command and its time in seconds."""
    began = time.monotonic()
    done = subprocess.run(
        [str(RELEASE / "spillway"), *arguments], capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "REDIS_URL": f"unix://{redis.unix_socket}"})
    if done.returncode:
        raise Failed(f"spillway {' '.join(arguments)}: {done.stderr[-500:]}")
    return done.stdout, time.monotonic() - began


def asked(redis, *arguments):
    text, seconds = told(redis, *arguments, "-o", "json")
    return json.loads(text), seconds


def look(found, redis, count):
    _, seconds = asked(redis, "status")
    found.at_most("status", seconds, SECONDS_MAX, "s")
    exact, seconds = asked(redis, "top", "--exact", "--limit", str(SHOPS))
    found.figures["top_exact_s"] = seconds
    true = {row["name"]: row["waiting"] for row in exact["rows"]}
    found.at_most("exact top: off by", abs(sum(true.values()) - count), 0)
    for by in ("shop", "topic", "resource"):
        top, seconds = asked(redis, "top", "--by", by, "--limit", str(SHOPS))
        found.at_most(f"top --by {by}", seconds, SECONDS_MAX, "s")
        found.figures[f"top_by_{by}_read"] = top["read"] / top["waiting"]
        if by == "shop":
            within = [abs(row["waiting"] - true[row["name"]]) <= row["may_be_off_by"]
                      for row in top["rows"]]
            off = [abs(row["waiting"] / true[row["name"]] - 1) for row in top["rows"]]
            found.at_least("shops within what top says it may be off by", sum(within) / len(within), 0.9)
            found.figures["top_most_off"] = max(off)
    listed, seconds = told(redis, "queue", "list", "--limit", "20")
    found.figures["queue_list_20_s"] = seconds
    identity = listed.splitlines()[1].split()[-2]
    _, seconds = asked(redis, "explain", identity)
    found.figures["explain_by_shopify_id_s"] = seconds
    found.figures["webhooks"] = count


def drop(found, redis, count, child):
    cpu = machine.cpu_seconds(child.pid)
    dropped, seconds = asked(redis, "queue", "drop", "--shop", DROPPED, "--yes")
    found.figures |= {"drop_s": seconds, "drop_matched": dropped["matched"],
                      "drop_downstreamer_cpu_s": machine.cpu_seconds(child.pid) - cpu}
    # Webhooks that the consumer has not read yet are dropped when it reads them.
    deadline = time.monotonic() + DROPPED_WITHIN
    while True:
        status, _ = asked(redis, "status")
        done = status["consumers"][0]["dropped"]
        if done >= dropped["matched"] - 1 or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    found.at_most("dropped and matched differ by", abs(dropped["matched"] - done), 1)
    found.at_most("matched and stored of the shop differ by",
                  abs(dropped["matched"] - count // SHOPS), 1)
    left, _ = asked(redis, "top", "--exact", "--shop", DROPPED)
    found.at_most("of the shop left waiting", sum(row["waiting"] for row in left["rows"]), 1)
    found.figures["waiting_after"] = status["consumers"][0]["waiting"]
    found.read(f"`queue drop --shop` of {dropped['matched']:,} among {count:,}: {seconds:.1f} s.")
