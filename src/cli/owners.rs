//! `memspy tensors`, `memspy graph` and `memspy referrers`.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::analysis;
use crate::model::{OwnershipSnapshot, StackTable};
use crate::ownership::{NamedTensors, called};
use crate::render::{self, OutputError, TensorsOptions, in_sentence, suggestion_on};
use crate::sampler::{OwnerError, OwnerReading, TargetReaders, attach, read_owners, watch_owners};

use super::args::{GraphArgs, PeerTool, ReadArgs, TensorsArgs};
use super::members::{for_each_member, refuse_launcher};
use super::output::into_io;
use super::signals::StopSignals;
use super::{attached_to, eprint_detail, eprint_line, hints, output};

pub(super) fn tensors(args: &TensorsArgs) -> Result<()> {
    if args.read_args.subprocesses {
        if args.every.is_some() {
            bail!("--every works for one process only: give its pid, without --subprocesses");
        }
        return of_members(&args.read_args, true, &|read_args| {
            tensors(&TensorsArgs { read_args, ..args.clone() })
        });
    }
    let wanted = TensorsOptions {
        device: args.gpu,
        all_devices: args.all_devices,
        most: match args.limit {
            Some(0) => usize::MAX,
            Some(limit) => limit,
            None if args.each => 40,
            None => render::DEFAULT_ROWS,
        },
        each: args.each,
    };
    let mut readers = attached(args.read_args.pid, &AtomicBool::new(false))?;
    if !args.all_devices {
        refuse_launcher(&readers)?;
    }
    if let Some(every) = args.every {
        return watch(&mut readers, args, every, wanted);
    }
    let snapshot = read_snapshot(&mut readers, &args.read_args)?;
    show(&args.read_args, &snapshot, &|out, snapshot| render::tensors_text(out, snapshot, wanted))
}

/// Prints snapshots: as text the first whole, then changes; as JSON each on one line.
fn watch(
    readers: &mut TargetReaders,
    args: &TensorsArgs,
    every: Duration,
    wanted: TensorsOptions,
) -> Result<()> {
    let stop = StopSignals::watch()?.stop;
    let pid = args.read_args.pid;
    let mut before: Option<(OwnershipSnapshot, TensorsOptions)> = None;
    let mut refusal = None;
    let mut take = |read: Result<OwnerReading, OwnerError>, stacks: &StackTable, samples: &[_]| {
        let snapshot = match read {
            Ok(read) => read.snapshot,
            Err(error) if is_retryable(&error, before.is_some()) => {
                eprint_line(&format!(
                    "a snapshot was left out, memspy goes on with the next one: {error}"
                ));
                return Ok(());
            }
            Err(error) => {
                refusal = Some(error);
                stop.store(true, Ordering::Relaxed);
                return Ok(());
            }
        };
        let mut out = io::stdout().lock();
        let timestamp = chrono::Local::now().format("%Y/%m/%d %H:%M:%S%.3f").to_string();
        let place = render::place(stacks, samples);
        if !args.read_args.json {
            writeln!(out, "{timestamp}  at {}", place.as_deref().unwrap_or("an unknown line"))?;
        }
        // Later snapshots list the same devices as the first.
        let wanted =
            before.as_ref().map_or_else(|| wanted.settled(&snapshot), |(_, wanted)| *wanted);
        match (&before, args.read_args.json) {
            (_, true) => {
                render::ownership_json_line(&mut out, &snapshot, &timestamp, place.as_deref())
            }
            (None, false) => render::tensors_text(&mut out, &snapshot, wanted),
            (Some((before, _)), false) => render::changes_text(&mut out, before, &snapshot, wanted),
        }
        .map_err(into_io)?;
        out.flush()?;
        before = Some((snapshot, wanted));
        Ok(())
    };
    let watched = watch_owners(readers, args.read_args.cost.options(), every, &stop, &mut take);
    match (watched, refusal) {
        // The job's end ends the watch.
        (Ok(()), Some(error)) if before.is_none() || readers.is_alive() => Err(refused(error, pid)),
        (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Whether the next snapshot may succeed; a first error may be permanent.
fn is_retryable(error: &OwnerError, has_snapshot: bool) -> bool {
    // A job that imports may change objects for longer than a snapshot may take.
    let is_temporary =
        error.is_transient() || matches!(error, OwnerError::Moved | OwnerError::Cut { .. });
    error.is_traced() || has_snapshot && is_temporary
}

pub(super) fn graph(args: &GraphArgs) -> Result<()> {
    if args.loss.is_some() && args.like != Some(PeerTool::Trumpy) {
        bail!("--loss picks a loss for --like trumpy: modelsize knows none");
    }
    if args.read_args.subprocesses {
        return of_members(&args.read_args, true, &|read_args| {
            graph(&GraphArgs { read_args, ..args.clone() })
        });
    }
    let mut readers = attached(args.read_args.pid, &AtomicBool::new(false))?;
    refuse_launcher(&readers)?;
    let snapshot = read_snapshot(&mut readers, &args.read_args)?;
    let json = args.read_args.json;
    let write: SnapshotWriter<'_> = match args.like {
        None => {
            return show(&args.read_args, &snapshot, &|out, snapshot| {
                render::graph_text(out, snapshot)
            });
        }
        Some(PeerTool::Modelsize) if json => {
            &|out, snapshot| render::like_modelsize_json(out, snapshot)
        }
        Some(PeerTool::Modelsize) => &|out, snapshot| render::like_modelsize_text(out, snapshot),
        Some(PeerTool::Trumpy) => {
            let losses = match &args.loss {
                Some(loss) => losses_called(&snapshot, loss, args.read_args.pid)?,
                None => analysis::losses(&snapshot),
            };
            return output::write(Path::new("-"), false, |out| {
                match json {
                    true => render::like_trumpy_json(out, &snapshot, &losses),
                    false => render::like_trumpy_text(out, &snapshot, &losses),
                }
                .map_err(into_io)
            });
        }
    };
    output::write(Path::new("-"), false, |out| write(out, &snapshot).map_err(into_io))
}

fn losses_called(snapshot: &OwnershipSnapshot, word: &str, pid: u32) -> Result<Vec<usize>> {
    let mut rows = matching_tensors(snapshot, word, pid)?;
    rows.retain(|&row| snapshot.tensors[row].tensor.grad_fn.is_some());
    if rows.is_empty() {
        bail!(
            "'{word}' of process {pid} has no autograd graph: it is not the result of an operation, or is detached"
        );
    }
    Ok(rows)
}

pub(super) fn matching_tensors(
    snapshot: &OwnershipSnapshot,
    word: &str,
    pid: u32,
) -> Result<Vec<usize>> {
    match called(&snapshot.tensors, word) {
        NamedTensors::Rows(rows) if rows.is_empty() => bail!(
            "process {pid} has no tensor called '{word}': {} lists their names",
            in_sentence(&suggestion_on(
                pid,
                "tensors",
                &["--each", "--limit", "0", "--all-devices"]
            ))
        ),
        NamedTensors::Rows(rows) => Ok(rows),
        NamedTensors::Ambiguous(names) => {
            bail!(
                "'{word}' is ambiguous in process {pid}; give one of these in full: '{}'",
                names.join("', '")
            )
        }
    }
}

pub(super) fn of_members(
    args: &ReadArgs,
    all: bool,
    command: &dyn Fn(ReadArgs) -> Result<()>,
) -> Result<()> {
    for_each_member(args.pid, args.json, all, &|pid| {
        command(ReadArgs { pid, subprocesses: false, ..args.clone() })
    })
}

pub(super) fn attached(pid: u32, stop: &AtomicBool) -> Result<TargetReaders> {
    let readers = attach(pid, stop).map_err(|error| hints::attach(error, pid))?;
    eprint_detail(|| attached_to(&readers));
    Ok(readers)
}

/// Prints the stop to standard error if the output is for programs.
fn read_snapshot(readers: &mut TargetReaders, args: &ReadArgs) -> Result<OwnershipSnapshot> {
    let read = &mut || read_owners(readers, args.cost.options());
    let snapshot = with_figures(read).map_err(|error| refused(error, args.pid))?;
    if args.json {
        print_notes(&snapshot);
    }
    Ok(snapshot)
}

/// Reads once more where what references free is not known, although all else is.
pub(super) fn with_figures(
    read: &mut dyn FnMut() -> Result<OwnerReading, OwnerError>,
) -> Result<OwnershipSnapshot, OwnerError> {
    let mut snapshot = read()?.snapshot;
    let is_close = snapshot.incomplete.is_none() && render::uncertain(&snapshot).is_none();
    let lacks_figures = snapshot.retained.is_empty() && !snapshot.tensors.is_empty();
    if is_close
        && lacks_figures
        && snapshot.pause.is_some()
        && let Ok(again) = read()
    {
        let stops = snapshot.stops;
        snapshot = again.snapshot;
        snapshot.stops.merge(stops);
    }
    Ok(snapshot)
}

/// Standard error, as JSON hides them.
pub(super) fn print_notes(snapshot: &OwnershipSnapshot) {
    eprint_line(&render::pause(snapshot));
    for note in [render::incomplete(snapshot), render::uncertain(snapshot)].into_iter().flatten() {
        eprint_line(&note);
    }
}

pub(super) fn refused(error: OwnerError, pid: u32) -> anyhow::Error {
    let advice = match &error {
        OwnerError::Stop(pause) => hints::pause(pause, pid),
        error if error.is_transient() => {
            "it changed during every attempt: try again, and leave out --no-stop".to_owned()
        }
        OwnerError::Cut { limit, .. } => hints::limit(*limit),
        OwnerError::Jax => format!(
            "{} shows what it takes in all",
            in_sentence(&suggestion_on(pid, "devices", &[]))
        ),
        OwnerError::NoTorch => "attach again once it has imported torch".to_owned(),
        _ => format!("{} says more", in_sentence(&suggestion_on(pid, "doctor", &[]))),
    };
    anyhow!("cannot read the tensors of process {pid}: {error}; {advice}")
}

type SnapshotWriter<'a> = &'a dyn Fn(&mut dyn Write, &OwnershipSnapshot) -> Result<(), OutputError>;

pub(super) fn show(
    args: &ReadArgs,
    snapshot: &OwnershipSnapshot,
    text: SnapshotWriter<'_>,
) -> Result<()> {
    let write = |out: &mut dyn Write| -> io::Result<()> {
        match args.json {
            true => render::ownership_json(out, snapshot),
            false => text(out, snapshot),
        }
        .map_err(into_io)
    };
    let path = Path::new("-");
    output::write(path, false, output::fitted(path, !args.json, write))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ReachedLimit;

    #[test]
    fn a_slow_snapshot_does_not_end_a_watch() {
        let too_long =
            OwnerError::Cut { limit: ReachedLimit::Time(Duration::from_secs(5)), copied: 53 << 20 };
        assert!(is_retryable(&too_long, true));
        assert!(is_retryable(&OwnerError::Moved, true));
        assert!(!is_retryable(&too_long, false));
        assert!(!is_retryable(&OwnerError::NoTorch, true));
    }
}
