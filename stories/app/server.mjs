// The app of the migration test: an app as Shopify posts to it today, in one process. It requires
// TLS and its own host name as a framework does, checks the signature, works, records the webhooks
// that it has processed, and keeps the newest state of each product. webhooks.mjs is the handler
// that docs/backends.md shows. Every request is a line in the journal.

import { createHash } from "node:crypto";
import { appendFileSync, existsSync } from "node:fs";
import { createServer } from "node:http";

import { webhooks } from "./webhooks.mjs";

const { PORT, HOST_NAME, SECRETS, JOURNAL, WORKERS, WORK_MS, BUSY_FILE } = process.env;

const done = new Set();
const products = new Map();
let free = Number(WORKERS);
const waiting = [];

async function work() {
  if (free === 0) await new Promise((resolve) => waiting.push(resolve));
  else free -= 1;
  await new Promise((resolve) => setTimeout(resolve, Number(WORK_MS)));
  const next = waiting.shift();
  if (next) next();
  else free += 1;
}

// Replaces the database transaction of docs/backends.md.
async function apply({ id, shop, data }, journal) {
  await work();
  if (done.has(id)) return journal("duplicate");
  done.add(id);
  const key = `${shop}/${data.id}`;
  if ((products.get(key) ?? "") > data.updated_at) return journal("stale");
  products.set(key, data.updated_at);
  return journal("applied");
}

const server = createServer((request, response) => {
  const { headers } = request;
  const hash = createHash("sha256");
  request.on("data", (chunk) => hash.update(chunk));
  let outcome = "";
  const handle = webhooks({
    secrets: SECRETS.split(","),
    isBusy: () => existsSync(BUSY_FILE),
    apply: (webhook) => apply(webhook, (what) => (outcome = what)),
  });
  const end = response.end.bind(response);
  // The journal is written first: the sender relies on the answer from its first byte.
  response.end = () => {
    const line = {
      webhook: headers["x-shopify-webhook-id"],
      spillway: headers["spillway-id"],
      path: request.url,
      body: hash.digest("hex"),
      status: response.statusCode,
      outcome,
    };
    appendFileSync(JOURNAL, JSON.stringify(line) + "\n");
    return end();
  };
  if (headers["x-forwarded-proto"] !== "https") {
    request.resume();
    request.on("end", () => {
      const there = `https://${headers.host}${request.url}`;
      response.writeHead(301, { Location: there, "Content-Length": 0 }).end();
    });
  } else if (headers.host !== HOST_NAME) {
    request.resume();
    request.on("end", () => response.writeHead(403, { "Content-Length": 0 }).end());
  } else {
    handle(request, response);
  }
});
server.keepAliveTimeout = 65_000;
server.listen(Number(PORT), "127.0.0.1");
