//! `spillway dev`: a whole cell on this machine, to try Spillway out. `make run` starts it.
//!
//! Starts a private Redis, the receiver, the downstreamer, the console and, if no backend is set, a
//! demo backend. Then it sends one signed sample through all of them. All files are in `./run`. Before
//! it exits, it stops the processes that it started, in order: receiver, downstreamer, console, Redis. Only
//! after a SIGKILL do they keep running; the next start detects them.

mod backend;
mod children;
mod demo;
mod plan;
mod ready;
mod sample;
mod signals;
mod state;
mod tell;

use std::process::ExitCode;
use std::time::Duration;

use crate::failure::Failure;
use crate::out::line;
use backend::DemoBackend;
use children::Children;
use demo::DemoSender;
use plan::DevPlan;
use sample::SampleOutcome;
use signals::Signals;
use state::CellDirectory;

pub(crate) use plan::{Arguments, CONTROL_URL};

/// Time limit of `--oneshot` for the delivery of the sample, measured from the start.
const ONESHOT_LIMIT: Duration = Duration::from_secs(60);

/// Runs the cell until a signal. With `--oneshot`, it stops once the sample is delivered.
pub(crate) async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let signals = Signals::listen()?;
    let state = CellDirectory::prepare()?;
    let plan = DevPlan::check(arguments, &state)?;
    Children::check(&[&plan.receiver()?, &plan.downstreamer()?]).await?;
    let demo = match &plan.demo_listen {
        Some(address) => {
            let sender = DemoSender::new(&plan.receiver_url(), plan.secrets()?);
            Some(DemoBackend::start(*address, plan.secrets()?, sender).await?)
        }
        None => None,
    };
    let mut children = Children::new(&state);
    let ended = supervise(&plan, &state, demo.as_ref(), &mut children, &signals).await;
    if let Err(failure) = &ended {
        // Printed before the children stop, because stopping may take a while.
        eprintln!("spillway: {failure}");
    }
    children.stop(&signals).await;
    Ok(if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts everything and supervises it until there is a reason to stop.
async fn supervise(
    plan: &DevPlan,
    state: &CellDirectory,
    demo: Option<&DemoBackend>,
    children: &mut Children<'_>,
    signals: &Signals,
) -> Result<(), Failure> {
    children.start_redis()?;
    let limit = async {
        if plan.oneshot {
            tokio::time::sleep(ONESHOT_LIMIT).await
        } else {
            std::future::pending().await
        }
    };
    tokio::pin!(limit);
    tokio::select! {
        answers = ready::redis(&plan.place) => answers?,
        failure = children.any_ends() => return Err(failure),
        () = signals.stop.cancelled() => return Ok(()),
        () = &mut limit => return Err(children.too_late("redis did not answer")),
    }
    children.start(&plan.receiver()?)?;
    children.start(&plan.downstreamer()?)?;
    if let Some(listen) = plan.console_listen {
        children.start(&plan.console(listen, demo.map(DemoBackend::control_url))?)?;
    }
    tokio::select! {
        shown = show(plan, state, demo) => shown?,
        failure = children.any_ends() => return Err(failure),
        () = signals.stop.cancelled() => return Ok(()),
        () = &mut limit => return Err(children.too_late("the sample was not delivered")),
    }
    if plan.oneshot {
        return Ok(());
    }
    tokio::select! {
        failure = children.any_ends() => Err(failure),
        () = signals.stop.cancelled() => Ok(line("\nstopping")?),
    }
}

/// Waits for the processes, prints their addresses, sends the sample and prints the result.
async fn show(
    plan: &DevPlan,
    state: &CellDirectory,
    demo: Option<&DemoBackend>,
) -> Result<(), Failure> {
    ready::process("receiver", plan.receiver_admin).await?;
    ready::process("downstreamer", plan.downstreamer_admin).await?;
    if let Some(address) = plan.console_listen {
        ready::listens("console", address).await;
    }
    tell::what_runs(plan)?;
    let webhook = sample::webhook(plan)?;
    let result = sample::deliver(plan, &webhook, demo).await?;
    let text = tell::sample(&result);
    if plan.oneshot && matches!(result.outcome, SampleOutcome::Dead { .. }) {
        return Err(Failure::Failed(text));
    }
    line(format_args!("\n{text}."))?;
    if !plan.oneshot {
        tell::what_to_try(plan, state, &webhook)?;
    }
    Ok(())
}
