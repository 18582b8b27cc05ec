//! `memspy history`: a job's own allocation history.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::{Error, Result, anyhow};

use crate::model::{AllocationHistory, RunMark, SnapshotConsistency};
use crate::render::{self, in_sentence, suggestion_on};
use crate::sampler::{HistoryError, RunReading, TargetReaders, attach, read_history, record_run};
use crate::trace::TraceWriter;

use super::args::HistoryArgs;
use super::members::refuse_launcher;
use super::output::into_io;
use super::output::{self, NameFields};
use super::{eprint_line, hints};

pub(super) fn run(args: &HistoryArgs) -> Result<()> {
    let extension = match (args.json, args.trace) {
        (true, _) => "json",
        (_, true) => "bin",
        _ => "pickle",
    };
    let default = PathBuf::from(format!("history-{}.{extension}", args.pid));
    let host = output::host();
    let fields = NameFields { pid: args.pid, host: &host, rank: None };
    let path = output::expand(&args.output.clone().unwrap_or(default), fields)?;
    output::check(&path, args.force)?;
    let mut readers = attach(args.pid, &AtomicBool::new(false))
        .map_err(|error| hints::attach(error, args.pid))?;
    refuse_launcher(&readers)?;
    let history = read_history(&mut readers).map_err(|error| refused(error, args.pid))?;
    print_notes(&history);
    let counters = match args.trace {
        true => readers.counters().transpose()?.unwrap_or_default(),
        false => Vec::new(),
    };
    let reading = RunReading { history, counters, owners: None };
    let history = &reading.history;
    output::write(&path, args.force, |out| match (args.json, args.trace) {
        (true, _) => render::history_json(out, history).map_err(into_io),
        (_, true) => write_trace(out, &readers, &reading, &[], "its history was read"),
        _ => render::history_pickle(out, history).map_err(into_io),
    })?;
    if path.as_os_str() != "-" {
        eprint_line(&format!(
            "wrote {}: {} events, {} stacks",
            path.display(),
            render::count(history.events() as u64),
            render::count(history.stacks.len() as u64)
        ));
    }
    Ok(())
}

/// `end`: what ended the history.
pub(super) fn write_trace(
    out: &mut dyn Write,
    readers: &TargetReaders,
    reading: &RunReading,
    marks: &[RunMark],
    end: &str,
) -> io::Result<()> {
    let mut writer = TraceWriter::new(out).map_err(io::Error::other)?;
    record_run(readers, (output::host(), end), reading, marks, &mut writer)
        .map_err(io::Error::other)?;
    writer.finish().map(drop).map_err(io::Error::other)
}

fn refused(error: HistoryError, pid: u32) -> Error {
    match error {
        HistoryError::NotRecorded => anyhow!(
            "cannot read the history of process {pid}: {error}; {} records it from now on, from outside",
            in_sentence(&suggestion_on(pid, "record", &[]))
        ),
        error => anyhow!("cannot read the history of process {pid}: {error}"),
    }
}

fn print_notes(history: &AllocationHistory) {
    for device in &history.devices {
        let gpu = device.device.0;
        if device.overwritten > 0 {
            eprint_line(&format!(
                "warning: GPU {gpu}: the job went on and overwrote {} of its oldest events while they were read: they are left out",
                render::count(device.overwritten)
            ));
        }
        if device.beyond_limit > 0 {
            eprint_line(&format!(
                "warning: GPU {gpu}: {} of the oldest events are left out: there are more than memspy reads",
                render::count(device.beyond_limit)
            ));
        }
        match device.snapshot.as_ref().map(|snapshot| snapshot.consistency) {
            Some(SnapshotConsistency::Consistent) => {}
            Some(SnapshotConsistency::Degraded { .. }) => eprint_line(&format!(
                "warning: GPU {gpu}: the job changed its blocks while they were read: the segments are not those of one moment"
            )),
            None => eprint_line(&format!(
                "warning: GPU {gpu}: the job changed its blocks during every attempt to read them: the file has its events and no segments"
            )),
        }
    }
    if history.unreadable_stacks + history.unreadable_frames > 0 {
        eprint_line(&format!(
            "warning: {} stacks and {} frames could not be read: they are left out or called <unreadable>",
            render::count(history.unreadable_stacks),
            render::count(history.unreadable_frames)
        ));
    }
    let unnamed = history.stacks.iter().filter(|stack| stack.native > 0 || stack.has_script);
    let unnamed = unnamed.count() as u64;
    if unnamed > 0 {
        eprint_line(&format!(
            "{} stacks have frames of C++ or TorchScript as well: they are left out, the file has those of Python",
            render::count(unnamed)
        ));
    }
}
