"""Secrets by shop from an endpoint that takes 200 ms, each valid for 2 s: 5,000 webhooks a second of 1,000
shops, beside the same secrets in files, and beside a receiver that looks up only what is too old. Then
the endpoint hangs for 5 minutes. Then a stranger names a million shops. At last closed loops of 10 to 255
senders, with files and with an endpoint that takes several shops in a request. wrk and pace are used, because
siege sends the same headers with each request and so names one shop alone. Every shop has the same secret;
the receiver does not know."""

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from statistics import median

from harness import machine, servers, wrk
from harness.campaign import Findings
from harness.servers import RELEASE
from harness.vegeta import p_ms

SHOPS = 1000
RATE = 5000
TTL = 2
SENDERS = [10, 25, 50, 100, 255]
# Shops that a stranger names, and connections that name them.
NAMED, STRANGERS = 1_000_000, 128
# Good webhooks beside them: as many for each shop as without them.
GOOD_RATE, GOOD_SHOPS = 2500, 500
LOOKUPS_A_SECOND = 100
KINDS = {"files": "secrets in files", "endpoint": "endpoint", "together": "endpoint, several shops in a request",
         "late": "endpoint, not looked up early"}
# Kinds that closed loops of senders compare.
ASKED = ["files", "together"]

# Names a new shop with each request, signed with nothing.
STRANGER = """
local n = 0
function setup(thread) thread:set("slice", tostring(thread)) end
function init() wrk.method = "POST"; wrk.body = "{}" end
function delay() return 8 end
function request()
   n = n + 1
   wrk.headers["X-Shopify-Shop-Domain"] = "s" .. n .. slice:sub(-6) .. ".example.com"
   wrk.headers["X-Shopify-Topic"] = "products/update"
   wrk.headers["X-Shopify-Hmac-Sha256"] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
   return wrk.format()
end
"""


def run(campaign):
    found = Findings()
    rounds, seconds = campaign.scale(3, 1), campaign.scale(15, 3)
    rows = []
    for number in range(rounds):
        for kind in KINDS:
            rows.append({"round": number, "kind": kind, **steady(campaign, kind, seconds)})
            campaign.say(f"{KINDS[kind]}: p99 {rows[-1]['p99_ms']:.1f} ms, "
                         f"{rows[-1]['times_least']:.2f} x the least lookups")
    found.rows["steady"] = rows
    middle = lambda kind, key: median(row[key] for row in rows if row["kind"] == kind)
    found.figures = {f"{kind}_{key}": middle(kind, key) for kind in KINDS
                     for key in ("p50_ms", "p99_ms", "times_least", "waited_share")}
    found.at_most("p99 ÷ that with files", middle("endpoint", "p99_ms") / middle("files", "p99_ms"), 1.2)
    found.at_most("lookups ÷ the least possible", middle("endpoint", "times_least"), 1.3)
    found.at_least("p99 ÷ that with files, not looked up early",
                   middle("late", "p99_ms") / middle("files", "p99_ms"), 5)
    found.at_most("answers that are not 200", sum(row["not_200"] for row in rows), 0)
    found.read(f"At {RATE:,} webhooks a second of {SHOPS:,} shops, p99 is {middle('endpoint', 'p99_ms'):.1f} ms with the "
               f"endpoint, {middle('files', 'p99_ms'):.1f} ms with files, and {middle('late', 'p99_ms'):.0f} ms if "
               f"nothing is looked up early; lookups are {middle('endpoint', 'times_least'):.2f} × the least possible.")
    outage(campaign, found)
    strangers(campaign, found)
    senders(campaign, found)
    return found


@contextmanager
def started(campaign, kind, rate=10_000):
    """Runs a receiver with secrets by shop. Yields it, its port, Redis, and the endpoint's process."""
    directory = campaign.directory
    settings = {"SHOP_SECRETS_TTL": f"{TTL}s", "SHOP_SECRETS_RATE": str(rate)}
    program = RELEASE / ("examples/late_secrets" if kind == "late" else "request-receiver")
    with servers.redis("everysec", directory) as redis, \
            servers.secrets(directory, campaign.secret, "200ms", kind == "together") as (endpoint, url):
        if kind == "files":
            settings = {"SHOP_SECRETS_DIR": str(files(campaign))}
        else:
            settings["SHOP_SECRETS_URL"] = url
        with servers.receiver(redis, "", directory, program, **settings) as (child, port):
            yield child, port, redis, endpoint


def files(campaign):
    directory = campaign.directory / "shop-secrets"
    directory.mkdir(exist_ok=True)
    for shop in range(SHOPS):
        (directory / f"shop-{shop:04}.myshopify.com").write_text(campaign.secret)
    return directory


def lookups(child):
    name = "spillway_secret_lookups_total"
    return sum(servers.counter(child.admin, name, f'"{outcome}"') for outcome in ("found", "unknown", "failed"))


def steady(campaign, kind, seconds):
    with started(campaign, kind) as (child, port, _, _):
        campaign.pace(port, RATE, 2 * TTL, SHOPS)
        before = lookups(child)
        _, hits = campaign.pace(port, RATE, seconds, SHOPS)
        made = lookups(child) - before
    waited = sum(1 for _, _, latency, _ in hits if latency >= 0.05)
    return {"p50_ms": p_ms(hits, 50), "p99_ms": p_ms(hits, 99),
            "times_least": made / (SHOPS * seconds / TTL), "waited_share": waited / len(hits),
            "not_200": sum(1 for _, status, _, _ in hits if status != 200)}


def outage(campaign, found):
    """The endpoint hangs: it is stopped, so that lookups end by their time-out."""
    seconds = campaign.scale(300, 8)
    with started(campaign, "endpoint") as (_, port, _, endpoint):
        # Every shop is known by then: one that is not can't be looked up.
        campaign.pace(port, RATE, 3 * TTL, SHOPS)
        os.kill(endpoint.pid, signal.SIGSTOP)
        try:
            _, hits = campaign.pace(port, 1000, seconds, SHOPS)
        finally:
            os.kill(endpoint.pid, signal.SIGCONT)
    refused = sum(1 for _, status, _, _ in hits if status != 200)
    found.figures |= {"outage_webhooks": len(hits), "outage_p99_ms": p_ms(hits, 99)}
    found.at_most(f"not 200 while the endpoint hangs for {seconds} s", refused, 0)
    found.read(f"While the endpoint hung for {seconds} s, {len(hits):,} webhooks were answered, {refused} not with 200; "
               f"p99 {p_ms(hits, 99):.1f} ms.")
    campaign.say(f"the endpoint hung for {seconds} s: {refused} not answered 200")


def strangers(campaign, found):
    script = campaign.directory / "stranger.lua"
    script.write_text(STRANGER)
    rows = []
    for kind in ("files", "endpoint"):
        rows.append({"kind": kind, **attacked(campaign, kind, script)})
        campaign.say(f"stranger, {KINDS[kind]}: good p99 {rows[-1]['p99_ms']:.1f} ms, "
                     f"{rows[-1]['named']:,} shops named, {rows[-1]['lookups']:,} lookups")
    found.rows["strangers"] = rows
    ours = [row for row in rows if row["kind"] == "endpoint"]
    middle = lambda kind, key: median(row[key] for row in rows if row["kind"] == kind)
    found.figures |= {"named_shops": sum(row["named"] for row in ours),
                      "stranger_grown_mib": middle("endpoint", "grown_mib")}
    found.at_least("shops named by strangers", sum(row["named"] for row in ours), campaign.scale(NAMED, 1000))
    found.at_most("good p99 ÷ that with files, both with strangers",
                  middle("endpoint", "p99_ms") / middle("files", "p99_ms"), 1.2)
    found.at_most("strangers' lookups ÷ their bound",
                  max(row["lookups"] / row["lookups_max"] for row in ours), 1)
    found.at_most("memory of the receiver meanwhile", middle("endpoint", "grown_mib"), 16, "MiB")
    found.at_most("good ones not answered 200", sum(row["not_200"] for row in rows), 0)
    found.read(f"Strangers named {sum(row['named'] for row in ours):,} shops; the receiver looked "
               f"{sum(row['lookups'] for row in ours):,} of them up and grew by {middle('endpoint', 'grown_mib'):.1f} MiB.")


def attacked(campaign, kind, script):
    """Good webhooks beside a stranger's. All good shops are known before."""
    seconds = campaign.scale(130, 4)
    with started(campaign, kind, LOOKUPS_A_SECOND) as (child, port, _, _):
        campaign.pace(port, GOOD_RATE, 6 * TTL, GOOD_SHOPS)
        memory = machine.resident_bytes(child.pid)
        line = ["wrk", "-t1", f"-c{STRANGERS}", f"-d{seconds}s", "-s", str(script), f"http://127.0.0.1:{port}"]
        begun = time.monotonic()
        stranger = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        try:
            _, hits = campaign.pace(port, GOOD_RATE, seconds, GOOD_SHOPS)
        finally:
            out = stranger.communicate(timeout=60)[0]
        took = time.monotonic() - begun
        unknown = sum(servers.counter(child.admin, "spillway_secret_lookups_total", f'"{outcome}"')
                      for outcome in ("unknown", "failed"))
        grown = machine.resident_bytes(child.pid) - memory
    named = next(int(line.split()[0]) for line in out.splitlines() if " requests in " in line)
    return {"p50_ms": p_ms(hits, 50), "p99_ms": p_ms(hits, 99), "named": named,
            "lookups": unknown, "lookups_max": LOOKUPS_A_SECOND * (took + 10),
            "grown_mib": grown / 2**20, "not_200": sum(1 for _, status, _, _ in hits if status != 200)}


def senders(campaign, found):
    rows = []
    requests = campaign.requests(shops=SHOPS)
    for connections in campaign.scale(SENDERS, [10]):
        for number in range(campaign.scale(6, 1)):
            # In turn first: who runs first of two may run at another speed.
            for kind in ASKED[:: 1 if number % 2 else -1]:
                with started(campaign, kind) as (child, port, redis, endpoint):
                    entry = closed_loop(campaign, child, port, redis, endpoint, connections, requests)
                rows.append({"connections": connections, "round": number, "kind": kind, **entry})
        campaign.say(f"{connections} senders: {ratio(rows, connections, 'together'):.3f} × the rate with files")
    found.rows["senders"] = rows
    for connections in campaign.scale(SENDERS, [10]):
        for kind in ASKED:
            found.figures[f"{kind}_per_second_{connections}"] = middle_rate(rows, connections, kind)
        found.at_least(f"rate ÷ that with files, several shops in a request, {connections} senders",
                       ratio(rows, connections, "together"), 0.97)
    found.bars("rate", "Signed webhooks answered by number of senders", "webhooks per second", {
        f"{connections} senders": {KINDS[kind]: middle_rate(rows, connections, kind) for kind in ASKED}
        for connections in campaign.scale(SENDERS, [10])}, "medians; the load generator shares the cores")


def closed_loop(campaign, child, port, redis, endpoint, connections, requests):
    """Measures in the middle of one run. It begins while an open loop keeps every shop in use: with none looked
    up, each of a few senders would wait for one lookup after the other, and no shop would be used twice in `TTL`."""
    seconds = campaign.scale(8, 2)
    processes = {"server": child.pid, "redis": redis.child.pid, "endpoint": endpoint.pid}
    warm_up = threading.Thread(target=campaign.pace, args=(port, 2000, 4 * TTL, SHOPS))
    warm_up.start()
    time.sleep(2 * TTL)
    with wrk.running(port, connections, 10 * TTL + 2 * seconds, campaign.wrk_threads, requests):
        warm_up.join()
        time.sleep(TTL)
        before, began = look(child, processes), time.monotonic()
        time.sleep(seconds)
        after, took = look(child, processes), time.monotonic() - began
    grown = {key: after[key] - before[key] for key in after}
    return {"per_second": grown["accepted"] / took, "not_200": grown["refused"],
            "lookups_per_second": grown["lookups"] / took,
            **{f"{name}_cpu_us": grown[name] / grown["accepted"] * 1e6 for name in processes}}


def look(child, processes):
    received = lambda outcome: servers.counter(child.admin, "spillway_received_total", f'"{outcome}"')
    return {"accepted": received("accepted"), "lookups": lookups(child),
            "refused": received("secrets_unavailable") + received("bad_signature"),
            **{name: machine.cpu_seconds(pid) for name, pid in processes.items()}}


def middle_rate(rows, connections, kind):
    return median(row["per_second"] for row in rows
                  if row["connections"] == connections and row["kind"] == kind)


def ratio(rows, connections, kind):
    """Median of the ratios of each round, since rounds differ by more than kinds do."""
    rates = {(row["round"], row["kind"]): row["per_second"] for row in rows if row["connections"] == connections}
    return median(rate / rates[number, "files"] for (number, of), rate in rates.items() if of == kind)
