//! The loop that records, whatever the source: begin, look again and again, check the target, end.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::reorder_buffer::ReorderBuffer;
use super::session::RecordingSession;
use crate::model::{
    AllocatorCounters, CudaIndex, EndReason, Record, RecordSink, RecordingEnd, RecordingTotals,
    SinkResult,
};

/// Between two checks that the target is still the process and the program it was.
const ALIVE_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Between two looks for PyTorch and CUDA in a target that did not have them yet.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);
/// Between two records of what was missed.
const LOSSES_INTERVAL: Duration = Duration::from_secs(1);

/// How far a recording is, for showing.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordingProgress {
    /// Time since it began.
    pub elapsed: Duration,
    /// Sums so far.
    pub totals: RecordingTotals,
    /// Bytes allocated on all devices; `None` while that is unknown.
    pub allocated: Option<i64>,
    /// Bytes reserved on all devices; `None` while that is unknown.
    pub reserved: Option<i64>,
}

/// What records are made of: samples, or exact events.
pub(super) trait RecordingSource {
    /// Whether [`Self::begin`] prepares something that takes its time, such as probes: then the recording has begun, and its
    /// duration counts, from when that is done. Else it has begun with the first look.
    const IS_PREPARED: bool;

    /// What all sources share.
    fn session(&self) -> &RecordingSession;

    /// The same, to be changed.
    fn session_mut(&mut self) -> &mut RecordingSession;

    /// Samples a second; 0 where there are none.
    fn rate(&self) -> u32;

    /// How long to record; `None` for until stopped.
    fn duration(&self) -> Option<Duration>;

    /// Starts what goes on beside the loop.
    fn begin(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// Waits for the next look; `false` when `stop` was set.
    fn wait(&mut self, stop: &AtomicBool) -> bool;

    /// One look; gives why the recording has to end.
    fn observe(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult<Option<EndReason>>;

    /// After each check that the target still runs.
    fn on_alive(&mut self, _sink: &mut ReorderBuffer<'_>) -> SinkResult {
        Ok(())
    }

    /// A few times a second: looks for what was not there before.
    fn refresh(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// Once a second: what was missed, and what is too much to be remembered.
    fn check(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// The end of each look.
    fn on_observed(&mut self, _sink: &mut ReorderBuffer<'_>) -> SinkResult {
        Ok(())
    }

    /// Ends what went on beside the loop, and records what is left.
    fn end(&mut self, sink: &mut ReorderBuffer<'_>) -> SinkResult;

    /// The sums so far.
    fn totals(&self) -> RecordingTotals;

    /// The counters read last.
    fn counters(&self) -> &[(CudaIndex, AllocatorCounters)];
}

/// Records until the duration is over, `stop` is set or the target ends; the last record is the [`RecordingEnd`] returned.
/// `observe` is called when the recording has begun and its first records are synced, and then a few times a second. An error is
/// the sink's.
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
        // Whoever is told that the recording has begun may kill memspy at once, and has this.
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
            // As above: the first sample.
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
