//! The recording loop of any source.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::reorder_buffer::ReorderBuffer;
use super::session::RecordingSession;
use crate::model::{
    AllocatorCounters, CudaIndex, EndReason, Record, RecordSink, RecordingEnd, RecordingTotals,
    SinkResult,
};

const ALIVE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
const LOSSES_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of a recording.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordingProgress {
    /// Time since it started.
    pub elapsed: Duration,
    /// Sums so far.
    pub totals: RecordingTotals,
    /// Bytes allocated on all devices, if known.
    pub allocated: Option<i64>,
    /// Bytes reserved on all devices, if known.
    pub reserved: Option<i64>,
}

pub(super) trait RecordingSource {
    /// [`Self::begin`] is slow, as with probes: time counts from its end, otherwise from the first
    /// reading.
    const IS_PREPARED: bool;

    fn session(&self) -> &RecordingSession;

    fn session_mut(&mut self) -> &mut RecordingSession;

    /// Samples a second; 0 without sampling.
    fn rate(&self) -> u32;

    fn duration(&self) -> Option<Duration>;

    fn begin(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// Returns `false` once `stop` is set.
    fn wait(&mut self, stop: &AtomicBool) -> bool;

    fn observe(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult<Option<EndReason>>;

    fn on_alive(&mut self, _sink: &mut ReorderBuffer<'_>) -> SinkResult {
        Ok(())
    }

    /// Called a few times a second.
    fn refresh(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// Called once a second.
    fn check(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    fn on_observed(&mut self, _sink: &mut ReorderBuffer<'_>) -> SinkResult {
        Ok(())
    }

    fn end(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    fn totals(&self) -> RecordingTotals;

    fn counters(&self) -> &[(CudaIndex, AllocatorCounters)];
}

pub(super) fn record(
    source: &mut impl RecordingSource,
    host: String,
    sink: &mut dyn RecordSink,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&RecordingProgress),
) -> SinkResult<RecordingEnd> {
    let mut order = ReorderBuffer::new(sink);
    let sink = &mut order;
    let rate = source.rate();
    source.session_mut().record_start(host, rate, sink)?;
    let reason = follow(source, sink, stop, observe)?;
    source.end(sink)?;
    let end = RecordingEnd { time: source.session().now(), reason, totals: source.totals() };
    sink.record(&Record::End(end.clone()))?;
    Ok(end)
}

fn follow<S: RecordingSource>(
    source: &mut S,
    sink: &mut ReorderBuffer<'_>,
    stop: &AtomicBool,
    observe: &mut dyn FnMut(&RecordingProgress),
) -> SinkResult<EndReason> {
    source.begin(sink)?;
    let mut began = Duration::ZERO;
    let mut is_begun = S::IS_PREPARED;
    if is_begun {
        // memspy may be killed from now on: the records must be safe.
        sink.sync()?;
        observe(&progress(source, source.session().start.elapsed()));
        began = source.session().start.elapsed();
    }
    let (mut alive, mut refreshed, mut checked) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    loop {
        if !source.wait(stop) {
            return Ok(EndReason::Interrupted);
        }
        let now = source.session().start.elapsed();
        if source.duration().is_some_and(|duration| now - began >= duration) {
            return Ok(EndReason::Duration);
        }
        if let Some(reason) = source.observe(sink)? {
            return Ok(reason);
        }
        if !std::mem::replace(&mut is_begun, true) {
            sink.sync()?;
            observe(&progress(source, now));
        }
        if now.saturating_sub(alive) >= ALIVE_CHECK_INTERVAL {
            alive = now;
            if let Some(reason) = source.session().is_over() {
                return Ok(reason);
            }
            source.on_alive(sink)?;
        }
        if now.saturating_sub(refreshed) >= REFRESH_INTERVAL {
            refreshed = now;
            source.refresh(sink)?;
            observe(&progress(source, now));
        }
        if now.saturating_sub(checked) >= LOSSES_INTERVAL {
            checked = now;
            source.check(sink)?;
        }
        source.on_observed(sink)?;
    }
}

fn progress(source: &impl RecordingSource, elapsed: Duration) -> RecordingProgress {
    let counters = source.counters();
    let sum = |of: fn(&AllocatorCounters) -> i64| {
        (!counters.is_empty()).then(|| counters.iter().map(|(_, counters)| of(counters)).sum())
    };
    RecordingProgress {
        elapsed,
        totals: source.totals(),
        allocated: sum(AllocatorCounters::allocated),
        reserved: sum(AllocatorCounters::reserved),
    }
}
