//! `memspy pause` and `memspy resume`.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::render::{self, CheckpointFigures, in_sentence, suggestion_on};
use crate::sampler::sleep_unless;
use crate::suspend::{CheckpointReport, Checkpointer, JobState, MoveError};
use crate::target::ProcessError;

use super::args::{PauseArgs, ResumeArgs};
use super::output::into_io;
use super::{eprint_line, hints};

const CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn pause(args: &PauseArgs) -> Result<()> {
    let pid = args.pid;
    // From here on Ctrl-C only sets a flag, so that it interrupts no step of the driver.
    let stop = watch()?;
    let mover = Checkpointer::new(pid).map_err(|error| refused("pause", pid, error))?;
    let begin = || {
        eprint_line(&format!(
            "this changes process {pid}: its CUDA calls will wait, its GPU memory moves to the host"
        ));
    };
    let moved = mover
        .suspend(args.lock_timeout, args.keep_free, &stop, begin)
        .map_err(|error| refused("pause", pid, error))?;
    let what = format!("paused process {pid}: {}", command(&mover));
    let paused = Instant::now();
    let printed = print(pid, &what, "paused", &moved, args.json);
    let Some(time) = args.time else {
        eprint_line(&format!(
            "it waits in its next CUDA call; to let it go on: memspy resume -p {pid}"
        ));
        return printed;
    };
    let way_back = format!("if memspy is killed: memspy resume -p {pid}");
    eprint_line(&format!("resuming it after {} s, or on Ctrl-C; {way_back}", time.as_secs_f64()));
    // A closed standard output resumes the job.
    let mut checked = Instant::now();
    sleep_unless(time.saturating_sub(paused.elapsed()), || {
        if checked.elapsed() >= CHECK_INTERVAL {
            checked = Instant::now();
            if !mover.is_away() {
                return true;
            }
        }
        printed.is_err() || stop.load(Ordering::Relaxed)
    });
    if !mover.is_alive() {
        return Err(anyhow!("process {pid} ended while it was paused"));
    }
    match mover.resume() {
        Ok(moved) => {
            let what = format!("resumed process {pid}");
            print(pid, &what, "running", &moved, args.json).and(printed)
        }
        Err(MoveError::Running { .. }) => {
            eprint_line(&format!("process {pid} was resumed by another program meanwhile"));
            printed
        }
        Err(error) => Err(refused("resume", pid, error)),
    }
}

pub(super) fn resume(args: &ResumeArgs) -> Result<()> {
    let pid = args.pid;
    let _stop = watch()?;
    let mover = Checkpointer::new(pid).map_err(|error| refused("resume", pid, error))?;
    let moved = mover.resume().map_err(|error| refused("resume", pid, error))?;
    let what = format!("resumed process {pid}: {}", command(&mover));
    print(pid, &what, "running", &moved, args.json)
}

fn watch() -> Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot watch for Ctrl-C")?;
    }
    Ok(stop)
}

fn command(mover: &Checkpointer) -> String {
    mover.command().join(" ")
}

fn print(pid: u32, what: &str, state: &str, moved: &CheckpointReport, json: bool) -> Result<()> {
    let steps: Vec<(&str, Duration)> =
        [("lock", moved.lock), ("transfer", moved.transfer), ("unlock", moved.unlock)]
            .into_iter()
            .filter_map(|(what, took)| Some((what, took?)))
            .collect();
    let report = CheckpointFigures {
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

fn refused(action: &str, pid: u32, error: MoveError) -> anyhow::Error {
    let advice = advice(action, pid, &error);
    anyhow!("cannot {action} process {pid}: {}; {advice}", with_figures(&error))
}

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

fn resume_command(pid: u32) -> String {
    in_sentence(&suggestion_on(pid, "resume", &[]))
}

fn advice(action: &str, pid: u32, error: &MoveError) -> String {
    match error {
        MoveError::Process(ProcessError::NotFound { .. }) => {
            "'memspy devices' lists the processes on the GPUs".to_owned()
        }
        MoveError::Process(ProcessError::Denied { .. }) => hints::denied(pid),
        MoveError::Process(_) => "'memspy devices' lists the processes on the GPUs".to_owned(),
        MoveError::Gpu(_) => "'nvidia-smi' shows whether a driver is loaded".to_owned(),
        MoveError::DriverTooOld { .. } => "update the driver".to_owned(),
        MoveError::Driver(error) if error.is_denied() => hints::denied(pid),
        MoveError::Driver(_) => "'memspy devices' shows what the driver says".to_owned(),
        MoveError::NoCuda { .. } => {
            "'memspy devices' lists the processes that have GPU memory".to_owned()
        }
        MoveError::HostMemory { .. } => {
            "free host memory, or lower --keep-free".to_owned()
        }
        MoveError::DeviceMemory { .. } => {
            "it stays paused: 'memspy devices' shows who uses the GPU; free it and resume again".to_owned()
        }
        MoveError::Paused { .. } => format!("to let it go on: {}", resume_command(pid)),
        MoveError::Locked { .. } => {
            format!("if no other pause is under way, let it go on: {}", resume_command(pid))
        }
        MoveError::Running { .. } => "there is nothing to do".to_owned(),
        MoveError::Failed { .. } => "restart it from its own checkpoint".to_owned(),
        MoveError::Busy { .. } => format!("wait a moment and {action} again"),
        MoveError::Step { source, outcome: JobState::Runs } if source.is_unsupported() => {
            "the driver cannot move all that this process uses (memory shared between processes, managed memory, \
             some NCCL transports)"
                .to_owned()
        }
        MoveError::Step { source, outcome: JobState::Waits { away: true } }
            if source.is_out_of_memory() =>
        {
            format!("free GPU memory ('memspy devices' shows who uses it), then: {}", resume_command(pid))
        }
        MoveError::Step { outcome, .. } | MoveError::Interrupted { outcome } => match outcome {
            JobState::Runs if matches!(error, MoveError::Step { .. }) => {
                "pause it at another time, or with a longer --lock-timeout".to_owned()
            }
            JobState::Runs | JobState::Ended => "there is nothing left to do".to_owned(),
            JobState::Waits { .. } | JobState::Unknown(_) => {
                format!("to let it go on: {}", resume_command(pid))
            }
            JobState::Failed => "restart it from its own checkpoint".to_owned(),
        },
    }
}
