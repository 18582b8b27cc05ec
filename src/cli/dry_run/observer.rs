//! What the observer in a program reports, and what memspy reads of the program meanwhile.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::model::{AllocationHistory, CudaIndex, HistoryFrame, RunMark, RunMarkKind};
use crate::sampler::{
    RunReading, SnapshotOptions, TargetReaders, attach, read_history, read_owners,
};

use crate::cli::history::write_trace;
use crate::cli::in_one_line;

/// A report of a job with many marks.
const MAX_REPORT: u64 = 256 << 20;
/// The program waits: it may be stopped as long as reading its owners takes.
const OWNERS: SnapshotOptions =
    SnapshotOptions { max_pause: Duration::from_secs(2), ..SnapshotOptions::DEFAULT };
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Function, file, line.
type ReportedFrame = (String, String, u32);

/// Kind, allocations before it by device, stack.
type ReportedMark = (String, BTreeMap<u32, u64>, Option<Vec<ReportedFrame>>);

/// Counters of a device, by the program itself.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct ReportedDevice {
    pub(super) device: u32,
    pub(super) allocated_peak: u64,
    pub(super) reserved_peak: u64,
    pub(super) retries: u64,
    /// The most that the process held on the card.
    pub(super) process_peak: u64,
}

/// A place that read values which no kernel computed.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ReportedRead(
    pub(super) String,
    pub(super) String,
    pub(super) u32,
    pub(super) bool,
    pub(super) u64,
);

/// One report of one process.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ObserverReport {
    pub(super) event: String,
    pub(super) pid: u32,
    pub(super) rank: Option<String>,
    pub(super) torch: String,
    pub(super) steps: u64,
    pub(super) out_of_memory: u64,
    pub(super) error: Option<String>,
    pub(super) devices: Vec<ReportedDevice>,
    marks: Vec<ReportedMark>,
    pub(super) reads: Vec<ReportedRead>,
    /// At an out-of-memory error.
    pub(super) device: Option<u32>,
}

impl ObserverReport {
    pub(super) fn marks(&self) -> Vec<RunMark> {
        let kind = |word: &str| {
            Some(match word {
                "backward" => RunMarkKind::Backward,
                "backward end" => RunMarkKind::BackwardEnd,
                "optimizer" => RunMarkKind::Optimizer,
                "optimizer end" => RunMarkKind::OptimizerEnd,
                "evaluation" => RunMarkKind::Evaluation,
                "training" => RunMarkKind::Training,
                _ => return None,
            })
        };
        let frame = |(name, file, line): &ReportedFrame| HistoryFrame {
            name: name.as_str().into(),
            file: file.as_str().into(),
            line: *line,
        };
        let marks = self.marks.iter().filter_map(|(word, counts, stack)| {
            let stack = stack.iter().flatten().map(frame).collect();
            let allocations = counts.iter().map(|(device, it)| (CudaIndex(*device), *it));
            Some(RunMark { kind: kind(word)?, allocations: allocations.collect(), stack })
        });
        marks.collect()
    }
}

/// A report with what was read from outside at that moment.
pub(super) struct ObservedProcess {
    pub(super) report: ObserverReport,
    /// Or why it could not be read; `None`: it was not.
    pub(super) reading: Option<Result<RunReading, String>>,
    /// The recording, if one was asked for.
    pub(super) trace: Option<Vec<u8>>,
}

/// Takes reports until it is dropped.
pub(super) struct ReportListener {
    observed: Arc<Mutex<Vec<ObservedProcess>>>,
    ended: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl ReportListener {
    pub(super) fn start(socket: &Path, reads: bool, wants_trace: bool) -> Result<ReportListener> {
        let listener = UnixListener::bind(socket).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener
            .with_context(|| format!("cannot listen at {} for the program", socket.display()))?;
        let (observed, ended) =
            (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (into, until) = (Arc::clone(&observed), Arc::clone(&ended));
        let listen = move || {
            while !until.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => into.lock().extend(observe(stream, reads, wants_trace)),
                    Err(_) => std::thread::sleep(POLL_INTERVAL),
                }
            }
        };
        let thread = std::thread::Builder::new().name("memspy-reports".to_owned()).spawn(listen);
        let thread = Some(thread.context("cannot start a thread")?);
        Ok(ReportListener { observed, ended, thread })
    }

    /// All reports; the program has ended.
    pub(super) fn finish(mut self) -> Vec<ObservedProcess> {
        self.end();
        std::mem::take(&mut self.observed.lock())
    }

    fn end(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for ReportListener {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads the program while it waits for an answer.
fn observe(stream: UnixStream, reads: bool, wants_trace: bool) -> Option<ObservedProcess> {
    stream.set_nonblocking(false).ok()?;
    let mut line = String::new();
    BufReader::new((&stream).take(MAX_REPORT)).read_line(&mut line).ok()?;
    let report: ObserverReport = serde_json::from_str(&line).ok()?;
    let mut trace = None;
    let read = if reads { Some(read_run(report.pid)) } else { None };
    let reading = read.map(|read| {
        read.map(|(readers, reading)| {
            if wants_trace {
                trace = written(&readers, &reading, &report.marks());
            }
            reading
        })
    });
    let _ = (&stream).write_all(b"\n");
    Some(ObservedProcess {
        report,
        reading: reading.map(|it| it.map_err(|why| in_one_line(&why))),
        trace,
    })
}

fn read_run(pid: u32) -> Result<(TargetReaders, RunReading)> {
    let mut readers = attach(pid, &AtomicBool::new(false))?;
    let mut history = read_history(&mut readers)?;
    leave_out_observer(&mut history);
    let counters = match readers.counters() {
        Some(counters) => counters?,
        None => Vec::new(),
    };
    // Without owners the answer lists lines.
    let owners = read_owners(&mut readers, OWNERS).ok().map(|read| read.snapshot);
    Ok((readers, RunReading { history, counters, owners }))
}

/// The observer's own frames, between the program's `backward()` and PyTorch's.
fn leave_out_observer(history: &mut AllocationHistory) {
    let frames = &history.frames;
    let is_own = |frame: &u32| {
        let file = frames.get(*frame as usize).map(|frame| &*frame.file);
        file.is_some_and(|file| file.ends_with("/observer/memspy_observer.py"))
    };
    for stack in &mut history.stacks {
        stack.frames.retain(|frame| !is_own(frame));
    }
}

fn written(readers: &TargetReaders, reading: &RunReading, marks: &[RunMark]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    write_trace(&mut bytes, readers, reading, marks, "the dry run's last step").ok()?;
    Some(bytes)
}
