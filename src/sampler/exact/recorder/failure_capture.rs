//! Failed allocations: the counters show one before the next check, so stacks are read at once.
//!
//! A refusal by PyTorch itself (a limit of the job) calls no driver and has no event.

use std::time::{Duration, Instant};

use super::ExactRecorder;
use crate::model::{
    AllocatorCounters, CudaIndex, EventKind, Nanos, Record, RecordSink, SinkResult, StackSample,
    ThreadSample,
};
use crate::probe::RawEvent;
use crate::sampler::error_thread::counts;

/// A job that a refusal ends takes this long, on a busy machine.
const DYING: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct FailureCapture {
    counts: Option<(i64, i64)>,
    seen: Option<FailureState>,
    /// When the driver refused memory.
    refused: Option<Instant>,
}

impl FailureCapture {
    pub(super) fn on_event(&mut self, event: &RawEvent) {
        if matches!(event.change, EventKind::Failed { code: EventKind::OUT_OF_MEMORY, .. }) {
            self.refused = Some(Instant::now());
        }
    }

    pub(super) fn was_refused_lately(&self) -> bool {
        self.refused.is_some_and(|at| at.elapsed() < DYING)
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.seen.is_some()
    }
}

#[derive(Debug)]
struct FailureState {
    time: Nanos,
    threads: Vec<ThreadSample>,
    counters: Vec<(CudaIndex, AllocatorCounters)>,
}

impl ExactRecorder {
    pub(super) fn observe_failures(&mut self) {
        self.session.observe_counters(&self.counters);
        let counts = counts(&self.counters);
        let before = self.failing.counts.replace(counts);
        if before.is_none_or(|before| before == counts) {
            return;
        }
        let mut threads = Vec::new();
        if let Some(python) = &mut self.session.readers.python {
            // Without stacks, the counters are still recorded.
            let _ = python.sample(&mut self.session.table, &mut threads);
        }
        self.failing.seen = Some(FailureState {
            time: self.session.now(),
            threads,
            counters: self.counters.clone(),
        });
    }

    pub(super) fn record_failing(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        let due = self.failing.seen.take_if(|seen| {
            let time = seen.time.0 + self.epoch;
            self.waiting.first_time().is_none_or(|first| first > time)
        });
        let Some(FailureState { time, threads, counters }) = due else { return Ok(()) };
        self.session.record_definitions(sink)?;
        sink.record(&Record::Sample(StackSample { time, threads }))?;
        for (device, counters) in counters {
            sink.record(&Record::Counters { time, device, counters: Box::new(counters) })?;
        }
        Ok(())
    }
}
