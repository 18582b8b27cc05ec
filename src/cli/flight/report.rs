//! From the segments of a ring to a trace and a verdict.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};

use crate::analysis::{Condition, Profile, Tally, Verdicts, Watch};
use crate::cli::args::{Join as JoinWords, Verdict as VerdictWords};
use crate::cli::flame::into_io;
use crate::cli::replay::{self, Recording};
use crate::cli::{charging, output, say};
use crate::model::{End, EndReason, Nanos, Record, RecordSink};
use crate::render;
use crate::trace::{self, Writer};

/// A recording written from a ring.
pub struct Reported {
    /// The trace.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// What it shows.
    pub verdicts: Verdicts,
}

impl Reported {
    /// Writes the verdict beside the trace; returns its file.
    pub(in crate::cli) fn write_verdict(&mut self, force: bool) -> Result<PathBuf> {
        let path = verdict_path(&self.path);
        write_verdict(&mut self.verdicts, &path, force)?;
        Ok(path)
    }
}

/// The file of the verdict on a trace.
pub(in crate::cli) fn verdict_path(trace: &Path) -> PathBuf {
    trace.with_extension("verdict.txt")
}

/// The name of the `number`th recording: `out.bin`, `out-2.bin`, `out-3.bin`.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    if number <= 1 {
        return path.to_owned();
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = match path.extension() {
        Some(extension) => format!("{stem}-{number}.{}", extension.to_string_lossy()),
        None => format!("{stem}-{number}"),
    };
    path.with_file_name(name)
}

/// Where the joined records go.
struct Joined {
    writer: Writer<std::fs::File>,
    verdicts: Verdicts,
    tally: Tally,
    dropped: bool,
}

impl RecordSink for Joined {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.tally.take(record);
        match record {
            Record::Inherited(_) => self.dropped = true,
            // The recorder's sums are those of the whole recording.
            Record::End(end) if self.dropped => {
                let end = Record::End(End { totals: self.tally.totals(), ..end.clone() });
                self.writer.record(&end)?;
                return self.verdicts.record(&end);
            }
            _ => {}
        }
        self.writer.record(record)?;
        self.verdicts.record(record)
    }
}

/// Joins `segments` into the trace at `path`, read into the empty `profile`. `end` is for a recording that goes on.
pub(super) fn write(
    segments: &[PathBuf],
    path: &Path,
    force: bool,
    profile: Profile,
    end: Option<(Nanos, EndReason)>,
) -> Result<Reported> {
    let mut joined = Joined {
        writer: Writer::create_as(path, output::creation(force))?,
        verdicts: Verdicts::new(profile),
        tally: Tally::default(),
        dropped: false,
    };
    let mut result = trace::join(segments, &mut joined).map(|joined| {
        for warning in joined.warnings {
            say(&format!("warning: {warning}"));
        }
    });
    if let (Ok(()), Some((time, reason))) = (&result, end) {
        let totals = joined.tally.totals();
        let end = joined.record(&Record::End(End { time, reason, totals }));
        result = end.map_err(|source| trace::ReadError::Sink { source });
    }
    let finished = joined.writer.finish();
    result.with_context(|| format!("cannot write {}", path.display()))?;
    let (_, written) = finished.with_context(|| format!("cannot write {}", path.display()))?;
    joined.verdicts.profile_mut().finish();
    Ok(Reported { path: path.to_owned(), bytes: written.bytes, verdicts: joined.verdicts })
}

/// Writes the verdict.
pub(in crate::cli) fn write_verdict(
    verdicts: &mut Verdicts,
    path: &Path,
    force: bool,
) -> Result<()> {
    let verdict = verdicts.verdict();
    output::write(path, force, |out| {
        render::verdict_text(out, verdicts.profile(), &verdict).map_err(into_io)
    })
}

/// `memspy verdict`.
pub(in crate::cli) fn verdict(words: &VerdictWords) -> Result<()> {
    let verdicts = Verdicts::new(charging(&words.stacks));
    let verdicts = match words.until.is_empty() {
        true => verdicts.also(Watch::new(vec!["oom".parse::<Condition>()?])),
        false => verdicts.only(Watch::new(words.until.clone())),
    };
    let mut verdicts = Recording::trace_or_ring(&words.trace).verdicts(verdicts)?;
    let start = verdicts.profile().start();
    let path = output::of_report(words.output.as_deref(), start, PathBuf::from("-"))?;
    write_verdict(&mut verdicts, &path, words.force)?;
    output::wrote(&path);
    Ok(())
}

/// `memspy join`.
pub(in crate::cli) fn join(words: &JoinWords) -> Result<()> {
    let segments = replay::found(&words.ring)?;
    // A first pass tells what the name may need.
    let path = match &words.output {
        Some(path) if path.to_string_lossy().contains('%') => {
            let mut profile = Profile::new();
            trace::join(&segments, &mut profile)?;
            output::expand(path, profile.start().into())?
        }
        Some(path) => path.clone(),
        None => words.ring.with_extension("bin"),
    };
    output::check(&path, words.force)?;
    let bytes = segments.iter().filter_map(|segment| std::fs::metadata(segment).ok());
    let mut profile = Profile::new();
    profile.limit_memory(replay::most_memory(bytes.map(|file| file.len()).sum()));
    let reported = write(&segments, &path, words.force, profile, None)?;
    if reported.verdicts.profile().start().is_none() {
        let _ = std::fs::remove_file(&path);
        return Err(anyhow!("the segments in {} have no whole block", words.ring.display()));
    }
    let mut err = io::stderr().lock();
    render::summary(
        &mut err,
        reported.verdicts.profile(),
        &path.display().to_string(),
        reported.bytes,
    )?;
    Ok(())
}
