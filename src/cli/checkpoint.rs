//! `memspy pause` and `memspy resume`: a job's GPU memory goes to the host and comes back.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::render::{self, MoveReport};
use crate::sampler::{MoveError, Moved, Mover, Outcome};
use crate::target::ProcessError;

use super::args::{Pause, Resume};
use super::flame::into_io;
use super::{hints, say};

/// Longest sleep without looking whether to end.
const SLICE: Duration = Duration::from_millis(50);
/// Between two questions whether the job is still paused.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// Runs `memspy pause`.
pub(super) fn pause(words: &Pause) -> Result<()> {
    let pid = words.pid;
    // From here on Ctrl-C only asks: between two steps of the driver memspy may not just end.
    let stop = watch()?;
    let mover = Mover::of(pid).map_err(|error| refused("pause", pid, error))?;
    let begin = || {
        say(&format!(
            "this changes process {pid}: its CUDA calls will wait, its GPU memory moves to the host"
        ));
    };
    let moved = mover
        .away(words.lock_timeout, words.keep_free, &stop, begin)
        .map_err(|error| refused("pause", pid, error))?;
    let what = format!("paused process {pid}: {}", command(&mover));
    let paused = Instant::now();
    let printed = print(pid, &what, "paused", &moved, words.json);
    let Some(time) = words.time else {
        say(&format!("it waits in its next CUDA call; to let it go on: memspy resume -p {pid}"));
        return printed;
    };
    let way_back = format!("if memspy is killed: memspy resume -p {pid}");
    say(&format!("resuming it after {} s, or on Ctrl-C; {way_back}", time.as_secs_f64()));
    // A closed standard output is no reason to leave the job paused, but to end.
    let mut checked = Instant::now();
    while printed.is_ok() && paused.elapsed() < time && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(SLICE.min(time.saturating_sub(paused.elapsed())));
        if checked.elapsed() >= CHECK_EVERY {
            checked = Instant::now();
            if !mover.is_away() {
                break;
            }
        }
    }
    if !mover.process().is_alive() {
        return Err(anyhow!("process {pid} ended while it was paused"));
    }
    match mover.back() {
        Ok(moved) => {
            let what = format!("resumed process {pid}");
            print(pid, &what, "running", &moved, words.json).and(printed)
        }
        Err(MoveError::Running { .. }) => {
            say(&format!("process {pid} was resumed by another program meanwhile"));
            printed
        }
        Err(error) => Err(refused("resume", pid, error)),
    }
}

/// Runs `memspy resume`.
pub(super) fn resume(words: &Resume) -> Result<()> {
    let pid = words.pid;
    // A step of the driver is not to be left half done.
    let _stop = watch()?;
    let mover = Mover::of(pid).map_err(|error| refused("resume", pid, error))?;
    let moved = mover.back().map_err(|error| refused("resume", pid, error))?;
    let what = format!("resumed process {pid}: {}", command(&mover));
    print(pid, &what, "running", &moved, words.json)
}

/// Watches for signals that would end memspy; however many come, it ends in order.
fn watch() -> Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot watch for Ctrl-C")?;
    }
    Ok(stop)
}

fn command(mover: &Mover) -> String {
    mover.process().command().unwrap_or_default().join(" ")
}

fn print(pid: u32, what: &str, state: &str, moved: &Moved, json: bool) -> Result<()> {
    let steps: Vec<(&str, Duration)> =
        [("lock", moved.lock), ("transfer", moved.transfer), ("unlock", moved.unlock)]
            .into_iter()
            .filter_map(|(what, took)| Some((what, took?)))
            .collect();
    let report = MoveReport {
        pid,
        devices: &moved.devices,
        process_host: moved.process_host,
        host_available: moved.host_available,
        steps: &steps,
    };
    let mut out = io::stdout().lock();
    let written = match json {
        true => render::move_json(&mut out, &report, state).map_err(into_io),
        false => writeln!(out, "{}", render::visible(what))
            .and_then(|()| render::move_text(&mut out, &report)),
    };
    written.and_then(|()| out.flush()).context("cannot write to standard output")
}

/// The error of an attempt to `action` (pause, resume) process `pid`, with what to do next.
fn refused(action: &str, pid: u32, error: MoveError) -> anyhow::Error {
    let advice = advice(action, pid, &error);
    anyhow!("cannot {action} process {pid}: {}; {advice}", with_figures(&error))
}

/// An error in words; sizes are for the face to write.
fn with_figures(error: &MoveError) -> String {
    match error {
        MoveError::HostMemory { needed, moved, host } => format!(
            "{error}: {} would move, {} have to be available, {} are ({})",
            render::bytes(*moved),
            render::bytes(*needed),
            render::bytes(host.available),
            host.limit
        ),
        MoveError::DeviceMemory { needed, free, .. } => format!(
            "{error}: the process had {} there, {} are free",
            render::bytes(*needed),
            render::bytes(*free)
        ),
        MoveError::Paused { since: Some(since), .. } => {
            let then = chrono::Local::now() - *since;
            format!("{error}, since {}", then.format("%Y/%m/%d %H:%M:%S"))
        }
        MoveError::Paused { since: None, .. } => {
            format!("{error}, since when is unknown (another program may have done it)")
        }
        other => other.to_string(),
    }
}

fn advice(action: &str, pid: u32, error: &MoveError) -> String {
    match error {
        MoveError::Process(ProcessError::NotFound { .. }) => {
            "'memspy devices' lists the processes on the GPUs".to_owned()
        }
        MoveError::Process(ProcessError::Denied { .. }) => hints::denied(pid),
        MoveError::Process(_) => "'memspy devices' lists the processes on the GPUs".to_owned(),
        MoveError::Gpu(_) => "'nvidia-smi' tells whether a driver is loaded".to_owned(),
        MoveError::DriverTooOld { .. } => "update the driver".to_owned(),
        MoveError::Driver(error) if error.is_denied() => hints::denied(pid),
        MoveError::Driver(_) => "'memspy devices' tells what the driver says".to_owned(),
        MoveError::NoCuda { .. } => {
            "'memspy devices' lists the processes that have GPU memory".to_owned()
        }
        MoveError::HostMemory { .. } => {
            "free host memory, or lower --keep-free".to_owned()
        }
        MoveError::DeviceMemory { .. } => {
            "it stays paused: 'memspy devices' tells who uses the GPU; free it and resume again".to_owned()
        }
        MoveError::Paused { .. } => format!("to let it go on: memspy resume -p {pid}"),
        MoveError::Locked { .. } => {
            format!("if no other pause is under way, let it go on: memspy resume -p {pid}")
        }
        MoveError::Running { .. } => "there is nothing to do".to_owned(),
        MoveError::Failed { .. } => "restart it from its own checkpoint".to_owned(),
        MoveError::AtWork { .. } => format!("wait a moment and {action} again"),
        MoveError::Step { source, outcome: Outcome::Runs } if source.is_unsupported() => {
            "the driver cannot move all that this process uses (memory shared between processes, managed memory, \
             some NCCL transports)"
                .to_owned()
        }
        MoveError::Step { source, outcome: Outcome::Waits { away: true } }
            if source.is_out_of_memory() =>
        {
            format!("free GPU memory ('memspy devices' tells who uses it), then: memspy resume -p {pid}")
        }
        MoveError::Step { outcome, .. } | MoveError::Interrupted { outcome } => match outcome {
            Outcome::Runs if matches!(error, MoveError::Step { .. }) => {
                "pause it at another time, or with a longer --lock-timeout".to_owned()
            }
            Outcome::Runs | Outcome::Ended => "there is nothing left to do".to_owned(),
            Outcome::Waits { .. } | Outcome::Unknown(_) => {
                format!("to let it go on: memspy resume -p {pid}")
            }
            Outcome::Failed => "restart it from its own checkpoint".to_owned(),
        },
    }
}
