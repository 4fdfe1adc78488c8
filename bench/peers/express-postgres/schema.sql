CREATE TABLE webhooks (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    id uuid PRIMARY KEY,
    received_at timestamptz NOT NULL DEFAULT now(),
    headers jsonb NOT NULL,
    body bytea NOT NULL
);
