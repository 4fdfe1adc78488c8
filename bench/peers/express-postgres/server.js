// Express and PostgreSQL: check the signature, insert a row, answer once it is committed.
import cluster from "node:cluster";
import { createHmac, timingSafeEqual } from "node:crypto";
import express from "express";
import pg from "pg";

const { PORT, WEBHOOK_SECRET, PGHOST, PGUSER, POOL, WORKERS } = process.env;
const INSERT = {
  name: "insert",
  text: "INSERT INTO webhooks (id, headers, body) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING",
};

if (cluster.isPrimary) {
  for (let i = 0; i < Number(WORKERS); i++) cluster.fork();
} else {
  // Enough connections that the commits of all requests that wait share one fsync.
  const pool = new pg.Pool({ host: PGHOST, user: PGUSER, database: "postgres", max: Number(POOL) });
  const app = express();
  app.post(/.*/, express.raw({ type: "*/*", limit: "16mb" }), async (request, response) => {
    const wanted = createHmac("sha256", WEBHOOK_SECRET).update(request.body).digest();
    const given = Buffer.from(request.get("x-shopify-hmac-sha256") ?? "", "base64");
    if (given.length !== wanted.length || !timingSafeEqual(given, wanted)) return response.sendStatus(401);
    const { headers } = request;
    await pool.query({ ...INSERT, values: [headers["x-shopify-webhook-id"], headers, request.body] });
    response.sendStatus(200);
  });
  app.listen(Number(PORT), "127.0.0.1", 4096);
}
