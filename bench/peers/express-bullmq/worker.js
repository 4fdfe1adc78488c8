// BullMQ workers that post each job to the backend, a process for each core.
import cluster from "node:cluster";
import { Worker } from "bullmq";
import { Redis } from "ioredis";

const { BACKEND, CONCURRENCY, REDIS_SOCKET, WORKERS } = process.env;

if (cluster.isPrimary) {
  for (let i = 0; i < Number(WORKERS); i++) cluster.fork();
} else {
  new Worker("webhooks", async ({ data }) => {
    const { host, connection, "content-length": length, ...headers } = data.headers;
    const response = await fetch(BACKEND, { method: "POST", headers, body: data.body });
    await response.arrayBuffer();
    if (!response.ok) throw new Error(`the backend answered ${response.status}`);
  }, { connection: new Redis(REDIS_SOCKET, { maxRetriesPerRequest: null }), concurrency: Number(CONCURRENCY) });
}
