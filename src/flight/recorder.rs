//! Keeps the last part of a recording.

use std::path::{Path, PathBuf};

use crate::analysis::{Profile, ThreadChoice};
use crate::files::FileCreation;
use crate::model::{EndReason, Nanos, Record, RecordSink, SinkResult, TriggerFired};
use crate::trace::{RecordingRing, Retention, RetentionLimit};

use super::error::RingError;
use super::report::{self, RingRecording};
use super::window::{StreamState, StreamWindow};

/// Keeps the last part of a recording.
pub struct RingRecorder {
    ring: RecordingRing,
    window: StreamWindow,
    stream: StreamState,
    choice: ThreadChoice,
    path: PathBuf,
    creation: FileCreation,
    /// Recordings written, and the number in the last one's name.
    written: u32,
    number: u32,
    now: Nanos,
}

impl RingRecorder {
    /// Writes to `path`. Fails if the folder of segments beside it exists or cannot be created.
    pub fn new(
        path: &Path,
        keep: Retention,
        creation: FileCreation,
        choice: ThreadChoice,
    ) -> Result<RingRecorder, RingError> {
        let folder = path.with_extension("ring");
        let ring =
            RecordingRing::create(&folder, keep, creation.replace).map_err(
                |source| match folder.is_dir() {
                    true => RingError::SegmentsLeft { folder: folder.clone(), source },
                    false => RingError::NothingRecorded { source },
                },
            )?;
        Ok(RingRecorder {
            ring,
            window: StreamWindow::new(profile(choice)),
            stream: StreamState::default(),
            choice,
            path: path.to_owned(),
            creation,
            written: 0,
            number: 0,
            now: Nanos(0),
        })
    }

    pub(super) fn written(&self) -> u32 {
        self.written
    }

    /// Writes the kept part and reads its report. `ended` is set if the recording goes on; `warn`
    /// gets problems of segments.
    pub fn write(
        &mut self,
        ended: Option<&TriggerFired>,
        warn: &mut dyn FnMut(String),
    ) -> Result<RingRecording, RingError> {
        self.ring.flush().map_err(|source| RingError::Flush { source })?;
        let path = self.next_path();
        let reason = ended.map(|triggered| EndReason::Condition(triggered.condition.clone()));
        let reported = report::join_segments(
            &self.ring.segments(),
            &path,
            self.creation,
            profile(self.choice),
            reason.map(|reason| (self.now, reason)),
            warn,
        )?;
        self.written += 1;
        Ok(reported)
    }

    /// After days an existing file is no failure: the recording takes the next number.
    fn next_path(&mut self) -> PathBuf {
        loop {
            self.number += 1;
            let path = report::numbered(&self.path, self.number);
            let is_there = |path: &Path| path.symlink_metadata().is_ok();
            let taken = is_there(&path) || is_there(&report::oom_report_path(&path));
            if self.number == 1 || self.creation.replace || !taken {
                return path;
            }
        }
    }

    /// Removes the segments.
    pub fn finish(self) -> Result<(), RingError> {
        let folder = self.ring.folder().to_owned();
        self.ring.remove().map_err(|source| RingError::Remove { folder, source })
    }

    /// The folder of segments.
    pub fn folder(&self) -> &Path {
        self.ring.folder()
    }

    /// Most bytes ever kept, and segments begun.
    pub fn size(&self) -> (u64, u64) {
        (self.ring.max_bytes(), self.ring.begun())
    }

    /// The bound that last removed a segment.
    pub fn bound(&self) -> Option<RetentionLimit> {
        self.ring.bound()
    }

    fn begin(&mut self, border: Nanos) -> SinkResult {
        self.ring.begin(border)?;
        let profile = profile(self.choice);
        self.window.next(border, &self.stream, profile, Some(&mut self.ring))?;
        Ok(self.ring.opened()?)
    }
}

fn profile(choice: ThreadChoice) -> Profile {
    Profile::with_filter(choice).without_line_statistics()
}

impl RecordSink for RingRecorder {
    fn record(&mut self, record: &Record) -> SinkResult {
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

    fn sync(&mut self) -> SinkResult {
        self.ring.sync()
    }
}
