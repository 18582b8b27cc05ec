//! Either recorder behind one interface.

use std::sync::atomic::AtomicBool;

use super::exact::ExactRecorder;
use super::recorder::Recorder;
use super::recording_loop::RecordingProgress;
use crate::model::{RecordSink, RecordingEnd, SinkResult};

/// An attached recorder.
#[allow(missing_docs)]
pub enum AttachedRecorder {
    Samples(Box<Recorder>),
    Exact(Box<ExactRecorder>),
}

impl AttachedRecorder {
    /// Records until `stop` is set, the duration is over or the process has ended.
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
