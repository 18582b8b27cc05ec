//! A recording that goes on for days: what is kept of it, and what is written when something happens.

mod print;
mod report;
mod window;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::analysis::{Profile, ThreadChoice};
use crate::model::{EndReason, Nanos, Record, RecordSink, TriggerFired};
use crate::trace::{Retention, RetentionLimit, TraceRing};

pub(super) use print::OomReportPrinter;
pub use report::RingRecording;
pub(super) use report::{join, oom_report, oom_report_path, write_oom_report};
use window::{StreamState, StreamWindow};

/// Keeps the last part of a recording.
pub struct FlightRecorder {
    ring: TraceRing,
    window: StreamWindow,
    stream: StreamState,
    choice: ThreadChoice,
    path: PathBuf,
    force: bool,
    /// Recordings written, and the number of the last one's name.
    written: u32,
    number: u32,
    now: Nanos,
}

impl FlightRecorder {
    /// Keeps it beside `path`, where recordings will be written.
    ///
    /// # Errors
    /// The folder of segments is there already, or cannot be made.
    pub fn new(
        path: &Path,
        keep: Retention,
        force: bool,
        choice: ThreadChoice,
    ) -> Result<FlightRecorder> {
        let folder = path.with_extension("ring");
        let ring = TraceRing::create(&folder, keep, force).map_err(|error| {
            let left = folder.is_dir();
            let error = anyhow::Error::new(error);
            match left {
                true => error.context(format!(
                    "a recording that did not end in order left its segments; 'memspy join {0} -o FILE' makes a trace of them, \
                     --force overwrites them",
                    folder.display()
                )),
                false => error.context("nothing was recorded"),
            }
        })?;
        Ok(FlightRecorder {
            ring,
            window: StreamWindow::new(profile(choice)),
            stream: StreamState::default(),
            choice,
            path: path.to_owned(),
            force,
            written: 0,
            number: 0,
            now: Nanos(0),
        })
    }

    /// Recordings written so far.
    pub(super) fn written(&self) -> u32 {
        self.written
    }

    /// Writes what is kept as a recording of its own, and the report on it. `ended` by `triggered` where the recording
    /// itself goes on.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write(&mut self, ended: Option<&TriggerFired>) -> Result<RingRecording> {
        self.ring.flush().context("what was recorded last could not be written")?;
        let path = self.next_path();
        let reason = ended.map(|triggered| EndReason::Condition(triggered.condition.clone()));
        let reported = report::write(
            &self.ring.segments(),
            &path,
            self.force,
            profile(self.choice),
            reason.map(|reason| (self.now, reason)),
        )?;
        self.written += 1;
        Ok(reported)
    }

    /// Where the next recording goes. After days it does not fail because another one left a file: it takes the next number.
    fn next_path(&mut self) -> PathBuf {
        loop {
            self.number += 1;
            let path = report::numbered(&self.path, self.number);
            let is_there = |path: &Path| path.symlink_metadata().is_ok();
            let taken = is_there(&path) || is_there(&report::oom_report_path(&path));
            // The first one was looked at before anything was recorded.
            if self.number == 1 || self.force || !taken {
                return path;
            }
        }
    }

    /// Removes the segments: all that they tell has been written.
    ///
    /// # Errors
    /// One cannot be removed.
    pub fn finish(self) -> Result<()> {
        let folder = self.ring.folder().to_owned();
        self.ring
            .remove()
            .with_context(|| format!("the segments in {} cannot be removed", folder.display()))
    }

    /// Where the segments are.
    pub fn folder(&self) -> &Path {
        self.ring.folder()
    }

    /// Most bytes that were ever kept, and segments begun.
    pub fn size(&self) -> (u64, u64) {
        (self.ring.max_bytes(), self.ring.begun())
    }

    /// Which bound made the oldest of what was recorded go; `None` while all of it is kept.
    pub fn bound(&self) -> Option<RetentionLimit> {
        self.ring.bound()
    }

    fn begin(&mut self, border: Nanos) -> io::Result<()> {
        self.ring.begin(border)?;
        let profile = profile(self.choice);
        self.window.next(border, &self.stream, profile, Some(&mut self.ring))?;
        self.ring.opened()
    }
}

/// An empty profile for a stretch or a report: neither has a table of lines.
fn profile(choice: ThreadChoice) -> Profile {
    Profile::with_filter(choice).without_line_statistics()
}

impl RecordSink for FlightRecorder {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.now = self.now.max(record.time().unwrap_or_default());
        if self.ring.begun() == 0 {
            self.ring.begin(Nanos(0))?;
        }
        if let Some(border) = self.stream.border(record)
            && (self.ring.is_due(border) || self.window.is_full())
            && (self.window.is_settled() || self.ring.is_overdue(border))
        {
            self.begin(border)?;
        }
        if self.stream.on_record(record) {
            self.window.on_record(&self.stream, record, Some(&mut self.ring))
        } else {
            self.window.redefined(record);
            Ok(())
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.ring.sync()
    }
}
