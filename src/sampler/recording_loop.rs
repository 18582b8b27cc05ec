//! The recording loop for any source: begin, read again and again, check the target, end.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::reorder_buffer::ReorderBuffer;
use super::session::RecordingSession;
use crate::model::{
    AllocatorCounters, CudaIndex, EndReason, Record, RecordSink, RecordingEnd, RecordingTotals,
    SinkResult,
};

/// Interval between checks that the target is still the same process and program.
const ALIVE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between searches for a PyTorch or CUDA that did not exist yet.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// Interval between records of losses.
const LOSSES_INTERVAL: Duration = Duration::from_secs(1);

/// The progress of a recording, for display.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordingProgress {
    /// Time since it started.
    pub elapsed: Duration,
    /// Sums so far.
    pub totals: RecordingTotals,
    /// Bytes allocated on all devices; `None` if unknown.
    pub allocated: Option<i64>,
    /// Bytes reserved on all devices; `None` if unknown.
    pub reserved: Option<i64>,
}

/// The source of records: samples or exact events.
pub(super) trait RecordingSource {
    /// Whether [`Self::begin`] prepares something slow, such as probes. The recording and its
    /// duration then start after that; otherwise with the first reading.
    const IS_PREPARED: bool;

    /// The state that all sources share.
    fn session(&self) -> &RecordingSession;

    fn session_mut(&mut self) -> &mut RecordingSession;

    /// Samples a second; 0 without sampling.
    fn rate(&self) -> u32;

    /// How long to record; `None`: until stopped.
    fn duration(&self) -> Option<Duration>;

    /// Starts the threads beside the loop.
    fn begin(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// Waits for the next reading; `false` once `stop` is set.
    fn wait(&mut self, stop: &AtomicBool) -> bool;

    /// One reading; returns why the recording has to end.
    fn observe(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult<Option<EndReason>>;

    /// Called after each check that the target runs.
    fn on_alive(&mut self, _sink: &mut ReorderBuffer<'_>) -> SinkResult {
        Ok(())
    }

    /// A few times a second: looks for what did not exist before.
    fn refresh(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// Once a second: losses, and tables that grew too large.
    fn check(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// Called after each reading.
    fn on_observed(&mut self, _sink: &mut ReorderBuffer<'_>) -> SinkResult {
        Ok(())
    }

    /// Ends the threads beside the loop and records the rest.
    fn end(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    fn totals(&self) -> RecordingTotals;

    /// The counters read last.
    fn counters(&self) -> &[(CudaIndex, AllocatorCounters)];
}

/// Records until the duration is over, `stop` is set or the target ends. Returns the
/// [`RecordingEnd`], which is also the last record. Calls `observe` when the first records are
/// synced, then a few times a second. An error comes from the sink.
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
        // Somebody who waits for the start may then kill memspy at once: the records must be safe.
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
            // As above, for the first sample.
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
