//! The trial that `make run` starts: one command starts everything here and sends one webhook.

use std::process::Command;
use std::time::Instant;

use stories::backend::Backend;
use stories::behaviour::Behaviour;
use stories::report::say;
use stories::{binaries, machine, port};

fn trial(directory: &std::path::Path) -> Command {
    let mut command = Command::new(binaries::ours("spillway"));
    command
        .args(["dev", "--oneshot"])
        .current_dir(directory)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("LISTEN", port::free().to_string())
        .env("RECEIVER_ADMIN_LISTEN", port::free().to_string())
        .env("DOWNSTREAMER_ADMIN_LISTEN", port::free().to_string())
        .env("DEMO_LISTEN", port::free().to_string());
    command
}

#[test]
fn a_trial_delivers_its_sample_and_ends_well_again_and_again() {
    let _slots = machine::shared();
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let began = Instant::now();
        let output = trial(directory.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}{complaints}");
        assert!(text.contains("delivered"), "{text}");
        say(&format!("trial: delivered and ended in {:?}", began.elapsed()));
    }
    assert!(directory.path().join("run").is_dir(), "its state is in ./run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trial_whose_backend_refuses_the_sample_fails_and_names_the_status() {
    let _slots = machine::shared();
    let backend = Backend::start().await;
    backend.behave(|_| Behaviour::status(422));
    let directory = tempfile::tempdir().unwrap();
    let mut command = trial(directory.path());
    command.env("DOWNSTREAM_APP_URL", backend.url());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaints}");
    assert!(complaints.contains("is a dead letter (status 422)"), "{complaints}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!text.contains("settled"), "{text}");
}

#[test]
fn a_trial_that_finds_its_port_taken_says_what_to_set() {
    let _slots = machine::shared();
    let directory = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = trial(directory.path()).env("LISTEN", address).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&output.stderr).contains("LISTEN"));
}
