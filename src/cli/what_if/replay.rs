//! Replays in processes of their own: PyTorch reads its settings once.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;

use super::settings::TriedSetting;
use crate::analysis::what_if::{
    RecordedAllocations, ReplayCounts, ReplayEvent, ReplayMoment, ReplayOutcome, ReplayedSegment,
    ReplayedSetting,
};
use crate::cli::eprint_progress;
use crate::cli::simulated_device::{RunFolder, SimulatedLibraries, TorchPython, set_allocator};
use crate::model::{BlockState, Card};
use crate::render::{setting_name, visible};

/// What all replays share.
pub(super) struct ReplayRun<'a> {
    pub(super) python: &'a TorchPython,
    pub(super) libraries: &'a SimulatedLibraries,
    pub(super) folder: &'a RunFolder,
    pub(super) recorded: &'a RecordedAllocations,
}

/// Replays each setting on its card, as many at a time as there are processors.
pub(super) fn run_all(
    run: &ReplayRun<'_>,
    settings: &[(&TriedSetting, &Card)],
) -> Result<Vec<ReplayedSetting>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut replayed = Vec::new();
    let mut number = 0;
    for some in settings.chunks(processors) {
        let results: Vec<Result<ReplayedSetting>> = std::thread::scope(|scope| {
            let begin = |(setting, card): &(&TriedSetting, &Card)| {
                number += 1;
                let (setting, card, number) = ((*setting).clone(), (*card).clone(), number);
                scope.spawn(move || replay(run, &setting, &card, number))
            };
            let threads: Vec<_> = some.iter().map(begin).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<ReplayedSetting>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a thread of memspy failed")))
            };
            threads.into_iter().map(join).collect()
        });
        for result in results {
            replayed.push(result?);
        }
    }
    Ok(replayed)
}

fn replay(
    run: &ReplayRun<'_>,
    setting: &TriedSetting,
    card: &Card,
    number: usize,
) -> Result<ReplayedSetting> {
    let name = setting_name(&setting.settings, setting.empties_at_steps);
    let folder = run.folder.path.join(number.to_string());
    std::fs::create_dir(&folder).context("cannot create a folder for a replay")?;
    let events = folder.join("events");
    write_events(&events, run.recorded, setting).context("cannot write the events")?;
    let places = folder.join("places");
    write_places(&places, run.recorded).context("cannot write the segments")?;
    let mut command = Command::new(&run.python.python);
    run.libraries.set_up(&mut command, card, 1, &folder);
    set_allocator(&mut command, &setting.settings);
    let output = command
        // No kernel runs, so none of its code is loaded.
        .env("SIM_CUDA_CODE_BYTES", "0")
        .env("SIM_CUDA_PLACES", &places)
        .arg(&run.libraries.replay)
        .arg(&events)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", run.python.python.display()))?;
    let _ = std::fs::remove_dir_all(&folder);
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!("PyTorch did not replay {name}: {}", visible(reason(&text)));
    }
    let read: PrintedOutcome = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the replay of {name} gave no figures"))?;
    let seconds = read.seconds;
    eprint_progress(&format!("replayed {name} ({seconds:.1} s)"));
    Ok(ReplayedSetting {
        settings: setting.settings.clone(),
        empties_at_steps: setting.empties_at_steps,
        outcome: read.outcome(),
    })
}

/// PyTorch's own words, without where in its source they come from.
fn reason(text: &str) -> &str {
    let is_error = |line: &&str| line.contains("Error: ");
    let lines = || text.trim().lines();
    lines().rfind(is_error).or_else(|| lines().last()).unwrap_or("it said nothing")
}

/// As the simulated driver reads them.
fn write_places(path: &Path, recorded: &RecordedAllocations) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    for (size, place) in &recorded.segments {
        writeln!(out, "{size} {place}")?;
    }
    out.flush()
}

/// As memspy_replay.py reads it.
fn write_events(
    path: &Path,
    recorded: &RecordedAllocations,
    setting: &TriedSetting,
) -> std::io::Result<()> {
    // What another setting would have left in its cache by then is not known.
    let start = if setting.is_own { &recorded.start_with_cache } else { &recorded.start };
    let begin = (BEGIN, 0, 0);
    let coded = || {
        let start = start.iter().map(code);
        start.chain([begin]).chain(recorded.events.iter().map(code))
    };
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    writeln!(
        out,
        r#"{{"events": {}, "blocks": {}, "streams": {}, "empties_at_steps": {}, "memory_fraction": {}}}"#,
        start.len() + 1 + recorded.events.len(),
        recorded.blocks,
        recorded.streams,
        setting.empties_at_steps,
        setting.needs_fraction(),
    )?;
    for (kind, block, _) in coded() {
        out.write_all(&(kind | i64::from(block) << 3).to_le_bytes())?;
    }
    for (.., value) in coded() {
        out.write_all(&i64::try_from(value).unwrap_or(i64::MAX).to_le_bytes())?;
    }
    out.flush()
}

const BEGIN: i64 = 7;

/// Kind, block, value.
fn code(event: &ReplayEvent) -> (i64, u32, u64) {
    match *event {
        ReplayEvent::Allocate { block, size } => (0, block, size),
        ReplayEvent::Free { block } => (1, block, 0),
        ReplayEvent::Stream(stream) => (2, 0, u64::from(stream)),
        ReplayEvent::Pool(pool) => (3, 0, u64::from(pool)),
        ReplayEvent::EmptyCache => (4, 0, 0),
        ReplayEvent::Step => (5, 0, 0),
        ReplayEvent::Peak => (6, 0, 0),
    }
}

#[derive(Debug, Deserialize)]
struct PrintedOutcome {
    reserved_peak: u64,
    allocated_peak: u64,
    peak: PrintedMoment,
    end: PrintedMoment,
    before: PrintedCounts,
    after: PrintedCounts,
    torch: String,
    seconds: f64,
}

#[derive(Debug, Deserialize)]
struct PrintedMoment {
    reserved: u64,
    allocated: u64,
    segments: Vec<PrintedSegment>,
}

/// Bytes, stream, small pool, expandable, private pool, blocks.
#[derive(Debug, Deserialize)]
struct PrintedSegment(u64, u64, bool, bool, bool, Vec<(u8, u64)>);

#[derive(Debug, Clone, Copy, Deserialize)]
struct PrintedCounts {
    segments: u64,
    driver_allocations: Option<u64>,
    driver_frees: Option<u64>,
    out_of_memory: u64,
    retries: u64,
}

impl PrintedOutcome {
    fn outcome(self) -> ReplayOutcome {
        let (before, after) = (self.before, self.after);
        let grown = |of: fn(PrintedCounts) -> u64| of(after).saturating_sub(of(before));
        let grown_if_counted = |of: fn(PrintedCounts) -> Option<u64>| {
            Some(of(after)?.saturating_sub(of(before).unwrap_or(0)))
        };
        ReplayOutcome {
            reserved_peak: self.reserved_peak,
            allocated_peak: self.allocated_peak,
            at_peak: self.peak.moment(),
            at_end: self.end.moment(),
            counts: ReplayCounts {
                segments: grown(|it| it.segments),
                driver_allocations: grown_if_counted(|it| it.driver_allocations),
                driver_frees: grown_if_counted(|it| it.driver_frees),
                out_of_memory: grown(|it| it.out_of_memory),
                retries: grown(|it| it.retries),
            },
            torch: self.torch,
            seconds: self.seconds,
        }
    }
}

impl PrintedMoment {
    fn moment(self) -> ReplayMoment {
        let state = |state: u8| match state {
            0 => BlockState::Allocated,
            2 => BlockState::Inactive,
            _ => BlockState::PendingFree,
        };
        let segment = |PrintedSegment(size, stream, small, expandable, private, blocks)| {
            let blocks = blocks.into_iter().map(|(of, size)| (state(of), size)).collect();
            ReplayedSegment { size, stream, small, expandable, private, blocks }
        };
        ReplayMoment {
            reserved: self.reserved,
            allocated: self.allocated,
            segments: self.segments.into_iter().map(segment).collect(),
        }
    }
}
