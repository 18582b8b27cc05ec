//! Reads recordings: progress on a terminal, one warning per defect.
//!
//! All commands read through [`StoredRecording`].

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

use crate::analysis::{FirstReading, OomBuilder, Profile};
use crate::model::{RecordSink, RedactingSink};
use crate::render::{bytes, file_word, in_sentence, number, suggestion};
use crate::trace::{self, ReplaySummary, TraceReader, segments};

use super::verbosity::shows_progress;
use super::{eprint_detail, eprint_line, output};

/// Shorter traces are read before a bar could be seen.
const MIN_PROGRESS_BAR_BYTES: u64 = 16 << 20;

/// Memory: real jobs need some 20 times the compressed file; without repeated stacks, above 100
/// times. Steps: a second of a very busy job (1,000 threads sampled 1,000 times; 100,000 blocks, 3
/// times) needs up to a million, and at least 60 bytes of file.
pub(super) fn limit(profile: &mut Profile, bytes: u64) {
    profile.limit_memory((256 << 20) + bytes.saturating_mul(256));
    profile.limit_work((1 << 25) + bytes.saturating_mul(20_000));
}

/// Warnings already printed: a recording may be read or named twice.
static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// Whether the answer shows warnings on the same terminal.
static IN_ANSWER: AtomicBool = AtomicBool::new(false);

/// Whether recordings are read redacted.
static REDACTS: AtomicBool = AtomicBool::new(false);

/// From here on recordings are read as `record --redact` writes them.
pub(super) fn redact() {
    REDACTS.store(true, Ordering::Relaxed);
}

pub(super) fn redacts() -> bool {
    REDACTS.load(Ordering::Relaxed)
}

/// Prints warnings only once if `output` shows them on the same terminal.
pub(super) fn warn_in_answer(output: Option<&Path>) {
    let is_printed = output.is_none_or(|path| path.as_os_str() == "-");
    let is_one_screen = io::stdout().is_terminal() && io::stderr().is_terminal();
    IN_ANSWER.store(is_printed && is_one_screen, Ordering::Relaxed);
}

/// A recording on disk; its warnings are printed once, however often read.
pub(super) struct StoredRecording<'a> {
    path: &'a Path,
    is_ring: bool,
}

impl StoredRecording<'_> {
    pub(super) fn trace(path: &Path) -> Result<StoredRecording<'_>> {
        if path.is_dir() && !segments(path)?.is_empty() {
            bail!(
                "{} is a folder of segments that 'record --keep' left; {} makes one trace of them",
                path.display(),
                in_sentence(&suggestion([
                    "join",
                    &file_word(&path.to_string_lossy()),
                    "-o",
                    "FILE"
                ]))
            );
        }
        output::is_read(path);
        Ok(StoredRecording { path, is_ring: false })
    }

    /// A trace, or the segments in a folder.
    pub(super) fn trace_or_ring(path: &Path) -> StoredRecording<'_> {
        let segments = if path.is_dir() { segments(path).unwrap_or_default() } else { Vec::new() };
        segments.iter().map(PathBuf::as_path).chain([path]).for_each(output::is_read);
        StoredRecording { path, is_ring: path.is_dir() }
    }

    pub(super) fn profile(&self, mut profile: Profile) -> Result<Profile> {
        limit(&mut profile, self.bytes()?);
        profile.set_first(&self.first_reading()?);
        let damage = self.pass_to(&mut profile)?;
        self.finish(&mut profile, damage)?;
        Ok(profile)
    }

    /// The same, without warnings: they were given already.
    pub(super) fn profile_again(&self, mut profile: Profile) -> Result<Profile> {
        limit(&mut profile, self.bytes()?);
        profile.set_first(&self.first_reading()?);
        self.pass_to(&mut profile)?;
        profile.finish();
        Ok(profile)
    }

    /// The same with reports of out-of-memory errors.
    pub(super) fn oom_report_again(&self, mut reports: OomBuilder) -> Result<OomBuilder> {
        limit(reports.profile_mut(), self.bytes()?);
        reports.profile_mut().set_first(&self.first_reading()?);
        self.pass_to(&mut reports)?;
        reports.profile_mut().finish();
        Ok(reports)
    }

    pub(super) fn oom_report(&self, mut reports: OomBuilder) -> Result<OomBuilder> {
        limit(reports.profile_mut(), self.bytes()?);
        reports.profile_mut().set_first(&self.first_reading()?);
        let damage = self.pass_to(&mut reports)?;
        self.finish(reports.profile_mut(), damage)?;
        Ok(reports)
    }

    pub(super) fn replay(&self, sink: &mut dyn RecordSink) -> Result<()> {
        let damage = self.pass_to(sink)?;
        self.warn(&damage);
        Ok(())
    }

    pub(super) fn reread(&self, sink: &mut dyn RecordSink) -> Result<()> {
        self.pass_to(sink).map(|_| ())
    }

    /// Empty if the recording has no counter deltas. The second reading tells of failures.
    fn first_reading(&self) -> Result<FirstReading> {
        let mut first = Profile::first_reading();
        limit(&mut first, self.bytes()?);
        let _ = self.pass_to(&mut first);
        Ok(first.into_first_reading())
    }

    fn finish(&self, profile: &mut Profile, damage: Vec<String>) -> Result<()> {
        profile.finish();
        profile.check_work().with_context(|| format!("cannot read {}", self.path.display()))?;
        for warning in damage {
            profile.warn(warning);
        }
        self.warn(&crate::render::warnings(profile));
        Ok(())
    }

    fn warn(&self, warnings: &[String]) {
        if IN_ANSWER.load(Ordering::Relaxed) {
            return;
        }
        for warning in warnings {
            let line = format!("warning: {}: {warning}", self.path.display());
            if WARNED.lock().insert(line.clone()) {
                eprint_line(&line);
            }
        }
    }

    fn bytes(&self) -> Result<u64> {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        Ok(match self.is_ring {
            true => found(self.path)?.iter().map(|segment| size(segment)).sum(),
            false => size(self.path),
        })
    }

    fn pass_to(&self, sink: &mut dyn RecordSink) -> Result<Vec<String>> {
        if redacts() {
            return self.pass_all_to(&mut RedactingSink::new(sink));
        }
        self.pass_all_to(sink)
    }

    fn pass_all_to(&self, sink: &mut dyn RecordSink) -> Result<Vec<String>> {
        let path = self.path;
        if self.is_ring {
            return Ok(trace::join(&found(path)?, sink)?.warnings);
        }
        readable(path)?;
        let mut reader = TraceReader::open(path)?;
        let (length, began) = (reader.length().unwrap_or(0), Instant::now());
        let bar = bar(length);
        let summary =
            reader.replay_ahead(sink, &mut |progress| bar.set_position(progress.bytes))?;
        bar.finish_and_clear();
        eprint_detail(|| {
            let seconds = began.elapsed().as_secs_f64();
            let (path, records) = (path.display(), number(summary.records, "record"));
            format!("read {path}: {records}, {} in {seconds:.2} s", bytes(length))
        });
        if summary.records == 0
            && let Some(damage) = &summary.first_damage
        {
            bail!(
                "{} has no whole block: at byte {} it is damaged ({})",
                path.display(),
                damage.offset,
                damage.why
            );
        }
        if summary.records == 0 {
            bail!(
                "{} has no whole block: the recording ended before its first second was written",
                path.display()
            );
        }
        Ok(damage(&summary))
    }
}

/// Refuses what cannot be a trace, and says what to do.
fn readable(path: &Path) -> Result<()> {
    if path.as_os_str() == "-" {
        bail!(
            "cannot read a trace from standard input: it is read several times; write it to a file and name that"
        );
    }
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
            "cannot open {}: there is no such trace; {} makes one",
            path.display(),
            in_sentence(&suggestion(["record", "-p", "PID", "-o", &path.to_string_lossy()]))
        ),
        _ => Ok(()),
    }
}

pub(super) fn found(folder: &Path) -> Result<Vec<PathBuf>> {
    let segments = segments(folder)?;
    segments.iter().for_each(|segment| output::is_read(segment));
    if segments.is_empty() {
        bail!(
            "{} has no segments of a recording (*.memspy): name the folder that 'record --keep' made next to its output",
            folder.display()
        );
    }
    Ok(segments)
}

fn damage(summary: &ReplaySummary) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(damage) = &summary.first_damage {
        warnings.push(format!(
            "the trace is damaged in {} places, first at byte {} ({}): {} blocks with {} records are lost, {} more records use what was lost",
            summary.damaged_places,
            damage.offset,
            damage.why,
            summary.lost_blocks,
            summary.lost_records,
            summary.dropped_records
        ));
    }
    if summary.unknown_tags > 0 {
        warnings.push(format!(
            "{} records are of kinds this memspy does not know: a newer memspy wrote them",
            summary.unknown_tags
        ));
    }
    if summary.complete && summary.unfinished_bytes > 0 {
        warnings.push(format!(
            "{} bytes follow the end of the recording: they were not read",
            summary.unfinished_bytes
        ));
    }
    warnings
}

fn bar(length: u64) -> ProgressBar {
    if length < MIN_PROGRESS_BAR_BYTES || !shows_progress() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template(
        "{bar:40} {binary_bytes} of {binary_total_bytes}, {eta} left",
    ) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
