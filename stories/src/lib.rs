//! Foundation of the stories: a private Redis, the real binaries, a backend with scripted failures,
//! clients that record what they were promised, and the check that compares the two.
//!
//! The harness knows only the external contract: settings, statuses, headers, Redis key names. It
//! shares no code with the binaries, so the same mistake cannot hide in both.
//!
//! Start reading at [`cell`], then [`ledger`] and [`check`].

pub mod answer;
pub mod app;
pub mod archive;
pub mod authority;
pub mod backend;
pub mod behaviour;
pub mod binaries;
pub mod cell;
pub mod chaos;
pub mod check;
pub mod client;
pub mod clock;
pub mod collector;
pub mod console;
pub mod console_cell;
pub mod disk;
pub mod endurance;
pub mod exactly_once;
pub mod feed;
pub mod hostile;
pub mod in_flight;
pub mod kafka_server;
pub mod kafka_topic;
pub mod latest;
pub mod ledger;
pub mod line;
pub mod load;
pub mod locked_bucket;
pub mod machine;
pub mod measure;
pub mod nginx;
pub mod page;
pub mod port;
pub mod preload;
pub mod process;
pub mod prometheus;
pub mod receipt;
pub mod redis_server;
pub mod report;
pub mod s3_server;
pub mod seed;
pub mod service;
pub mod settings_page;
pub mod settlements;
pub mod shop;
pub mod sick_disk;
pub mod size;
pub mod supervisor;
pub mod traces;
pub mod tunnel;
pub mod until;
pub mod way;
pub mod webhook;
pub mod wire;
