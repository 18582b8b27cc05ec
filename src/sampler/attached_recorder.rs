//! A recorder of either kind, for whoever does not care which.

use std::sync::atomic::AtomicBool;

use super::exact::ExactRecorder;
use super::recorder::Recorder;
use super::recording_loop::RecordingProgress;
use crate::model::{RecordSink, RecordingEnd, SinkResult};

/// A recorder that is attached.
pub enum AttachedRecorder {
    /// Of samples.
    Samples(Box<Recorder>),
    /// Of exact events.
    Exact(Box<ExactRecorder>),
}

impl AttachedRecorder {
    /// Records into `sink` until `stop` is set, the time asked for is over or the process has ended.
    pub fn run(
        self,
        host: String,
        sink: &mut dyn RecordSink,
        stop: &AtomicBool,
        observe: &mut dyn FnMut(&RecordingProgress),
    ) -> SinkResult<RecordingEnd> {
        match self {
            AttachedRecorder::Samples(recorder) => recorder.run(host, sink, stop, observe),
            AttachedRecorder::Exact(recorder) => recorder.run(host, sink, stop, observe),
        }
    }
}
