//! All stories, in one program: it is built in 0.6 of the time that one for each file takes.
//!
//! `make test` runs each module in a process of its own, several at the same time. To run
//! one, with all programs built before: `cargo run -p xtask -- lanes`.

mod adaptive;
mod alerts;
mod answers;
mod apps;
mod archive;
mod archive_exactly_once;
mod archive_locked;
mod barriers;
mod big_lanes;
mod broken_log;
mod bursts;
mod cells;
mod chaos;
mod circuit_breaker;
mod coalesce;
mod crash;
mod dead;
mod duplicates;
mod events;
mod fairness;
mod fidelity;
mod first_hour;
mod forget;
mod forget_archiver;
mod forget_kafka;
mod forget_load;
mod forget_replay;
mod full;
mod harness;
mod hostile;
mod hostile_backend;
mod https;
mod in_flight;
mod kafka_beside_http;
mod kafka_consumers;
mod kafka_exactly_once;
mod kafka_faults;
mod kafka_formats;
mod kafka_mock;
mod kafka_takeover;
mod lanes;
mod lanes_full;
mod listen;
mod metrics;
mod migration;
mod nginx;
mod one_percent;
mod order;
mod package;
mod pages;
mod pause;
mod prometheus;
mod redis_access;
mod replay;
mod restart;
mod restore;
mod restore_archive;
mod retry_time;
mod routes;
mod sentinel;
mod settings;
mod shop_secrets;
mod shop_share;
mod shutdown;
mod spill;
mod spill_disk;
mod spill_load;
mod stall;
mod statuses;
mod supervisor;
mod suppress;
mod takeover;
mod tls;
mod together;
mod torn_aof;
mod traces;
mod trial;
mod units;
mod upgrade;
mod verbs;

// The stories' senders and backends take as much processor time as what they test.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
