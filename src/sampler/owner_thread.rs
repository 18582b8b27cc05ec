//! Takes owner snapshots on a thread; a budget limits the stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::optimizer_counter::OptimizerCounter;
use super::owners::{OwnerReading, learn, prepare, read_prepared};
use super::readers::{TargetIdentity, TargetReaders};
use super::worker::{StopSignal, Worker};
use crate::model::{
    AllocatorBackend, CountingObject, Nanos, OwnershipBreakdown, OwnershipSnapshot, StopTotals,
};
use crate::owners::{OwnerError, SnapshotOptions, SnapshotRequest};
use crate::ownership::summarize;

const MAX_QUEUED: usize = 16;
const MIN_REST: Duration = Duration::from_millis(250);
/// A snapshot waits for its moment as long as it rested, within these limits.
const MIN_WAIT: Duration = Duration::from_millis(500);
const MAX_WAIT: Duration = Duration::from_secs(10);
/// The signal of the moment may come this late.
const LATE: Duration = Duration::from_millis(500);
/// memspy may work this many times as long as the job may be stopped, at most half of the time: the
/// job may want the core.
const WORK: f64 = 10.0;
/// After a failed snapshot, the rest for memspy's own work is at most this or the attempt's time.
const MAX_REST_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Snapshots in a row that may fail because the process needed other memory than before; the next
/// is taken whole.
const MAX_MISSES: u32 = 4;
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

pub(super) type SnapshotResult =
    Result<(OwnershipBreakdown, Option<OptimizerCounter>, Vec<CountingObject>), String>;

pub(super) struct OwnerThread {
    readings: Receiver<SnapshotResult>,
    shared: Arc<SharedState>,
    thread: Worker,
}

#[derive(Default)]
struct SharedState {
    /// Since when, and how long the moment is worth waiting for.
    due: Mutex<Option<(Instant, Duration)>>,
    go: AtomicBool,
}

impl SharedState {
    fn set_due(&self, due: Option<(Instant, Duration)>) {
        *self.due.lock() = due;
    }

    fn wait_for_moment(&self, timeout: Duration, stop: &StopSignal) {
        let since = Instant::now();
        self.go.store(false, Ordering::Relaxed);
        self.set_due(Some((since, timeout)));
        while !stop.is_set() && !self.go.load(Ordering::Relaxed) {
            let left = (timeout + LATE).saturating_sub(since.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left.min(STOP_CHECK_INTERVAL));
        }
        self.set_due(None);
    }
}

impl OwnerThread {
    /// The process is stopped for at most `budget` of the time (0.01 is 1 %). Each snapshot but the
    /// first, once [due](Self::due), waits for [its moment](Self::go).
    pub(super) fn start(
        process: TargetIdentity,
        budget: f64,
        options: SnapshotOptions,
        start: Instant,
    ) -> std::io::Result<OwnerThread> {
        let shared = Arc::new(SharedState::default());
        let (sender, readings) = sync_channel(MAX_QUEUED);
        let for_thread = Arc::clone(&shared);
        let thread = Worker::spawn("owners", move |stop| {
            let Ok(mut readers) = process.attach() else { return };
            let (mut timeout, mut has_blocks) = (None, false);
            while !stop.is_set() {
                if !is_ready(&mut readers) {
                    if !readers.process.is_alive() {
                        return;
                    }
                    stop.sleep(MIN_REST);
                    continue;
                }
                let (result, paused, took) =
                    timed_snapshot(&mut readers, options, start, (&for_thread, stop), timeout);
                let Some(mut result) = result else {
                    stop.sleep(rest_after(took, paused, budget, true));
                    continue;
                };
                if let Ok((breakdown, ..)) = &mut result
                    && std::mem::replace(&mut has_blocks, true)
                {
                    breakdown.blocks.clear();
                }
                let (began, has_failed) = (Instant::now(), result.is_err());
                let gone = !readers.process.is_alive();
                if gone || sender.try_send(result).is_err() {
                    return;
                }
                let rest = rest_after(took, paused, budget, has_failed);
                timeout = Some(rest.clamp(MIN_WAIT, MAX_WAIT));
                stop.sleep(rest.saturating_sub(took).saturating_sub(began.elapsed()));
            }
        })?;
        Ok(OwnerThread { readings, shared, thread })
    }

    pub(super) fn poll(&self) -> Option<SnapshotResult> {
        self.readings.try_recv().ok()
    }

    pub(super) fn due(&self) -> Option<(Duration, Duration)> {
        let due = *self.shared.due.lock();
        due.map(|(since, timeout)| (since.elapsed(), timeout))
    }

    pub(super) fn go(&self) {
        self.shared.set_due(None);
        self.shared.go.store(true, Ordering::Relaxed);
        self.thread.wake();
    }
}

/// Whether the process can have GPU memory. While it imports libraries, a stop would fail.
fn is_ready(readers: &mut TargetReaders) -> bool {
    readers.refresh();
    match readers.allocator() {
        AllocatorBackend::NotInitialized => false,
        // A PyTorch without CUDA has tensors, too.
        AllocatorBackend::NotLoaded => prepare(readers).is_ok(),
        _ => true,
    }
}

fn rest_after(took: Duration, paused: Duration, budget: f64, has_failed: bool) -> Duration {
    let budget = budget.max(1e-6);
    let after_work = match took.div_f64((WORK * budget).min(0.5)) {
        rest if has_failed => rest.min(MAX_REST_AFTER_FAILURE.max(took)),
        rest => rest,
    };
    after_work.max(paused.div_f64(budget)).max(MIN_REST)
}

/// Returns how long the process was stopped and memspy worked. Waits while PyTorch is imported: its
/// libraries exist before its types.
fn timed_snapshot(
    readers: &mut TargetReaders,
    options: SnapshotOptions,
    start: Instant,
    (shared, stop): (&SharedState, &StopSignal),
    timeout: Option<Duration>,
) -> (Option<SnapshotResult>, Duration, Duration) {
    let (mut stops, mut took) = (StopTotals::default(), Duration::ZERO);
    let mut misses = 0;
    loop {
        let began = Instant::now();
        let prepared = if misses == 0 { learn(readers, options) } else { prepare(readers) };
        took += began.elapsed();
        if let Some(timeout) = timeout {
            shared.wait_for_moment(timeout, stop);
        }
        // A whole snapshot succeeds at any moment.
        let is_whole = timeout.is_none() || misses >= MAX_MISSES || stop.is_set();
        let request = match SnapshotRequest::new(options, None) {
            request if is_whole => request,
            request => request.with_one_stop(),
        };
        let began = Instant::now();
        let result = prepared.and_then(|()| read_prepared(readers, request, &mut stops));
        if matches!(result, Err(OwnerError::Moved)) {
            took += began.elapsed();
            misses += 1;
            continue;
        }
        let is_importing = matches!(result, Err(OwnerError::NoTorch));
        let reading = (!is_importing).then(|| reading(readers, result, start));
        return (reading, stops.total, took + began.elapsed());
    }
}

fn reading(
    readers: &TargetReaders,
    result: Result<OwnerReading, OwnerError>,
    start: Instant,
) -> SnapshotResult {
    match result {
        // Its sums would look like those of all tensors.
        Ok(OwnerReading {
            snapshot: OwnershipSnapshot { incomplete: Some(incomplete), .. },
            ..
        }) => Err(format!("{}: the snapshot is incomplete", incomplete.limit)),
        Ok(reading) => {
            let pause = reading.snapshot.pause.unwrap_or_default();
            let ago = pause + reading.snapshot.age;
            let time = Nanos(start.elapsed().saturating_sub(ago).as_nanos() as u64);
            let clock = OptimizerCounter::find(&reading.snapshot, &readers.process);
            Ok((summarize(&reading.snapshot, time), clock, reading.snapshot.counting))
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_failed_snapshot_delays_the_next_only_briefly() {
        let seconds = Duration::from_secs_f64;
        let rest = |took, paused, has_failed| {
            rest_after(seconds(took), seconds(paused), 0.01, has_failed).as_secs_f64()
        };
        assert_eq!(rest(5.0, 0.0, false), 50.0);
        assert_eq!(rest(5.0, 0.0, true), 5.0);
        assert_eq!(rest(7.0, 0.0, true), 7.0);
        assert_eq!(rest(0.001, 0.0, true), 0.25);
        assert_eq!(rest(5.0, 0.3, true), 30.0);
    }
}
