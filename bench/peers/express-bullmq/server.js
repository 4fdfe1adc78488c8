// Express and BullMQ as their documentation shows them: check the signature, add a job, answer.
import cluster from "node:cluster";
import { createHmac, timingSafeEqual } from "node:crypto";
import express from "express";
import { Queue } from "bullmq";
import { Redis } from "ioredis";

const { PORT, WEBHOOK_SECRET, REDIS_SOCKET, WORKERS } = process.env;

if (cluster.isPrimary) {
  for (let i = 0; i < Number(WORKERS); i++) cluster.fork();
} else {
  const queue = new Queue("webhooks", { connection: new Redis(REDIS_SOCKET) });
  const app = express();
  app.post(/.*/, express.raw({ type: "*/*", limit: "16mb" }), async (request, response) => {
    const wanted = createHmac("sha256", WEBHOOK_SECRET).update(request.body).digest();
    const given = Buffer.from(request.get("x-shopify-hmac-sha256") ?? "", "base64");
    if (given.length !== wanted.length || !timingSafeEqual(given, wanted)) return response.sendStatus(401);
    const { headers } = request;
    // A job with the id of another is not added.
    await queue.add(headers["x-shopify-topic"], { headers, body: request.body.toString() }, {
      jobId: headers["x-shopify-webhook-id"],
      attempts: 10,
      backoff: { type: "exponential", delay: 1000 },
      removeOnComplete: 1000,
    });
    response.sendStatus(200);
  });
  app.listen(Number(PORT), "127.0.0.1", 4096);
}
