"""The same webhooks to a receiver without traces, and to one with traces of one webhook in a hundred, sent to a collector
that answers 200 to all. They run beside each other and have a second of load in turn, in an order that rotates, because a
machine that others share changes its speed from minute to minute; all are new in each round. `BEFORE` names another
binary to compare with, such as one without any code for traces, and `BEFORE_NAME` says what it is. CPU per webhook is the receiver's and Redis'; the
collector's is not in it."""

import os
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from harness import machine, servers, wrk
from harness.campaign import Findings

CONNECTIONS = 64
ROUNDS = 8
# Turns of each receiver in a round.
TURNS = 8
KINDS = {"before": os.environ.get("BEFORE_NAME", "the release before"), "off": "no traces", "hundredth": "traces of 1 %"}
KEYS = [("per_second", "webhooks/s", 0), ("cpu_us", "CPU µs", 2), ("server_cpu_us", "of it receiver", 2),
        ("p99_ms", "p99 ms", 2)]


def run(campaign):
    found = Findings()
    program = os.environ.get("BEFORE")
    kinds = [kind for kind in KINDS if kind != "before" or program]
    programs = {"before": Path(program)} if program else {}
    rows = []
    with collector() as (url, exports):
        sampled = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                   "OTEL_TRACES_SAMPLER_ARG": "0.01"}
        for number in range(campaign.scale(ROUNDS, 1)):
            measured = one_round(campaign, kinds, programs, sampled)
            rows += [{"round": number, **entry} for entry in measured]
            campaign.say(f"round {number + 1}: " + ", ".join(
                f"{KINDS[kind]} {median(entry['cpu_us'] for entry in measured if entry['kind'] == kind):.2f} µs"
                for kind in kinds))
    judge(found, rows, kinds, exports)
    return found


@contextmanager
def collector():
    """Runs an HTTP server that takes each export. Yields its URL, and the sizes of the exports so far in bytes."""
    sizes = []

    class Export(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            sizes.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Export) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", sizes
        server.shutdown()


def one_round(campaign, kinds, programs, sampled):
    """Runs a receiver of each kind on one Redis. Returns the figures of each turn."""
    requests, threads = campaign.requests(), campaign.load(1)["wrk_threads"]
    with ExitStack() as stack:
        redis = stack.enter_context(servers.redis("always", campaign.directory))
        running = {}
        for kind in kinds:
            program, traced = programs.get(kind, servers.RELEASE / "request-receiver"), sampled if kind == "hundredth" else {}
            running[kind] = stack.enter_context(
                servers.receiver(redis, campaign.secret, campaign.directory, program, **traced))
            wrk.run(running[kind][1], CONNECTIONS, 1, threads, requests)
        entries = []
        for turn in range(campaign.scale(TURNS, 1)):
            at = turn % len(kinds)
            for kind in kinds[at:] + kinds[:at]:
                child, port = running[kind]
                entries.append({"turn": turn, "kind": kind, **one_turn(child.pid, redis.child.pid, port, threads, requests)})
        dropped = servers.counter(running["hundredth"][0].admin, "spillway_trace_spans_dropped_total")
        return [{**entry, "dropped": dropped} for entry in entries]


def one_turn(server, redis, port, threads, requests):
    before = [machine.cpu_seconds(pid) for pid in (server, redis)]
    result = wrk.run(port, CONNECTIONS, 1, threads, requests)
    # What is under way belongs to this turn.
    time.sleep(0.1)
    cpu = [machine.cpu_seconds(pid) - was for pid, was in zip((server, redis), before)]
    good = result["requests"] - result["non_2xx"]
    return {"per_second": good / result["seconds"], "cpu_us": sum(cpu) / good * 1e6, "server_cpu_us": cpu[0] / good * 1e6,
            "p99_ms": result["p99_us"] / 1e3, "not_200": result["non_2xx"]}


def judge(found, rows, kinds, exports):
    of = lambda kind, key: [row[key] for row in sorted(rows, key=lambda row: (row["round"], row["turn"])) if row["kind"] == kind]
    ratios = lambda one, other: {key: [mine / theirs for mine, theirs in zip(of(one, key), of(other, key))]
                                 for key, _, _ in KEYS}
    pairs = {"traces of 1 % ÷ none": ratios("hundredth", "off")}
    found.at_most("CPU per webhook with traces of 1 % ÷ without, median of the turns",
                  median(pairs["traces of 1 % ÷ none"]["cpu_us"]), 1.02)
    if "before" in kinds:
        pairs[f"no traces ÷ {KINDS['before']}"] = ratios("off", "before")
        found.at_most(f"CPU per webhook without traces ÷ {KINDS['before']}, median of the turns",
                      median(pairs[f"no traces ÷ {KINDS['before']}"]["cpu_us"]), 1.01)
    found.at_most("answers that are not 200", sum(row["not_200"] for row in rows), 0)
    found.at_most("spans dropped", sum(row["dropped"] for row in rows), 0)
    found.at_least("exports that the collector took", len(exports), 1)
    found.figures = {f"{kind}_{key}": median(of(kind, key)) for kind in kinds for key, _, _ in KEYS}
    found.figures |= {f"{words}: {key}": median(values[key]) for words, values in pairs.items() for key, _, _ in KEYS}
    found.figures |= {"exports": len(exports), "export_bytes": sum(exports)}
    found.read("; ".join(f"{words}: {median(values['cpu_us']):.3f} × the CPU per webhook, {median(values['per_second']):.3f} × the rate"
                         for words, values in pairs.items()) + f". The collector took {len(exports):,} exports.")
    found.rows = {"rounds": rows}
    found.pages["traces"] = page(found, of, pairs, kinds)


def page(found, of, pairs, kinds):
    """Returns the page of this scenario."""
    span = lambda values, digits: f"{median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"
    row = lambda cells: "| " + " | ".join(cells) + " |"
    lines = ["# What traces cost the receiver", "", " ".join(__doc__.split()), ""]
    lines += ["`make characterize SCENARIOS=traces`: medians of the turns (lowest–highest), and of the ratios of each turn.", ""]
    lines += [row(["", *[head for _, head, _ in KEYS]]), row(["---"] * (len(KEYS) + 1))]
    lines += [row([KINDS[kind], *[span(of(kind, key), digits) for key, _, digits in KEYS]]) for kind in kinds]
    lines += [row([words, *[span(values[key], 3) for key, _, _ in KEYS]]) for words, values in pairs.items()]
    lines += ["", *found.reading, ""]
    lines += ["; ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.facts().items())]
    return "\n".join(lines) + "\n"
