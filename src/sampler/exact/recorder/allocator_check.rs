//! Compares events with the allocator.

use std::time::Duration;

use super::{ExactRecorder, monotonic};
use crate::model::{
    AllocatorBackend, MissReason, Nanos, ReaderKind, Record, RecordSink, SinkResult,
};
use crate::sampler::readers::TorchState;
use crate::torch::AllocatorError;

const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(20);
/// The end waits this long for a read at rest.
const MAX_FINAL_READS: Duration = Duration::from_millis(100);
const MAX_READS_BETWEEN_EVENTS: usize = 16;
/// Written events have left the ring after this time.
const FINAL_READ_INTERVAL: Duration = Duration::from_millis(2);

/// Counters read between these times (CLOCK_MONOTONIC, nanoseconds).
#[derive(Debug, Clone, Copy)]
pub(super) struct CounterRead {
    before: u64,
    after: u64,
}

impl ExactRecorder {
    /// They are compared once all events of that time have left the ring.
    pub(super) fn read_counters_once(&mut self) {
        self.last_read = None;
        let TorchState::Attached(torch) = &mut self.session.readers.torch else { return };
        if *torch.backend() != AllocatorBackend::Native || self.probe.is_none() {
            return;
        }
        let before = monotonic();
        if torch.counters(&mut self.counters).is_err() {
            return; // The next read is 5 ms away.
        }
        self.last_read = Some(CounterRead { before, after: monotonic() });
        self.observe_failures();
    }

    /// Returns whether nothing was in flight.
    pub(super) fn compare_counters(&mut self, sink: &mut dyn RecordSink) -> SinkResult<bool> {
        let Some(read) = self.last_read.take() else { return Ok(false) };
        let seen = self.waiting.until(read.before - 1);
        self.record_described(seen, sink)?;
        self.record_failing(sink)?;
        let is_one_moment = self.is_emptied
            && self.last.0 + self.epoch < read.before
            && self.waiting.first_time().is_none_or(|time| time > read.after);
        if !is_one_moment || !self.reconciler.on_counters(&self.counters) {
            return Ok(false);
        }
        self.record_settled(read.before, sink)?;
        Ok(true)
    }

    /// Reads between two events. Returns its time (CLOCK_MONOTONIC, nanoseconds), or `None` if
    /// events leave no gap.
    fn read_between_events(&mut self) -> Option<u64> {
        let mut moment = None;
        for _ in 0..MAX_READS_BETWEEN_EVENTS {
            let TorchState::Attached(torch) = &mut self.session.readers.torch else { return None };
            let before = monotonic();
            let is_read = torch.counters(&mut self.counters).is_ok();
            let after = monotonic();
            self.empty_ring();
            let is_between = self.waiting.until(before) == self.waiting.until(after);
            moment = Some(after).filter(|_| is_read && is_between);
            if moment.is_some() || !is_read {
                break;
            }
        }
        moment
    }

    pub(super) fn compare_last_read(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if self.last_read.is_some() {
            std::thread::sleep(FINAL_READ_INTERVAL);
            self.empty_ring();
            self.compare_counters(sink)?;
        }
        Ok(())
    }

    pub(super) fn compare_at_end(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        self.settled = None;
        let until = monotonic() + MAX_FINAL_READS.as_nanos() as u64;
        loop {
            self.read_counters_once();
            if self.last_read.is_none() {
                return Ok(());
            }
            std::thread::sleep(FINAL_READ_INTERVAL);
            self.empty_ring();
            if self.compare_counters(sink)? || monotonic() > until {
                return Ok(());
            }
            self.record_events(sink)?;
        }
    }

    pub(super) fn record_described(
        &mut self,
        count: usize,
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let sites = &self.sites;
        let ready =
            self.waiting.ready(count, |event| sites.is_described(event) && sites.is_unwound(event));
        self.record_first(ready, sink)
    }

    pub(super) fn check_events(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        self.count_losses();
        self.sites.find_module_calls();
        self.record_blocks(sink)?;
        for counter_check in self.reconciler.take_checks(self.now()) {
            sink.record(&Record::CounterCheck(counter_check))?;
        }
        if let Some(vtable) = self.sites.py_node()
            && let Some(probe) = &mut self.probe
            && let Err(error) = probe.set_py_node(vtable)
        {
            self.session.losses.add(ReaderKind::Events, MissReason::Failed(error.to_string()), 1);
        }
        self.session.record_losses(sink)
    }

    /// From then on keys of stacks tell modules apart.
    pub(super) fn watch_modules(&mut self) {
        if let Some(codes) = self.sites.new_module_calls()
            && let Some(probe) = &mut self.probe
            && let Err(error) = probe.set_module_calls(codes)
        {
            self.session.losses.add(ReaderKind::Events, MissReason::Failed(error.to_string()), 1);
        }
    }

    fn record_blocks(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        self.compare_last_read(sink)?;
        let TorchState::Attached(torch) = &mut self.session.readers.torch else { return Ok(()) };
        if *torch.backend() != AllocatorBackend::Native {
            return Ok(());
        }
        torch.set_timeout(SNAPSHOT_TIMEOUT);
        let start = self.session.start;
        let now = || Nanos(start.elapsed().as_nanos() as u64);
        let mut snapshots = Vec::new();
        for device in torch.devices() {
            snapshots.push(torch.blocks(device, &now));
        }
        let counters = self.read_between_events();
        if !self.is_emptied || !self.wait_for_native(false) {
            // Earlier events are still in the ring.
            self.session.losses.add(
                ReaderKind::Snapshots,
                MissReason::Late,
                snapshots.len() as u64,
            );
            return Ok(());
        }
        for snapshot in snapshots {
            match snapshot {
                Ok(snapshot) => {
                    let until = snapshot.time.0 + self.epoch;
                    let until = self.waiting.until(until);
                    self.record_first(until, sink)?;
                    self.session.count_snapshot(&snapshot);
                    sink.record(&Record::Snapshot(snapshot))?;
                }
                Err(AllocatorError::Torn { .. }) => {
                    self.session.losses.add(ReaderKind::Snapshots, MissReason::Torn, 1);
                }
                Err(error) => {
                    let why = MissReason::Failed(error.to_string());
                    self.session.losses.add(ReaderKind::Snapshots, why, 1);
                }
            }
        }
        if let Some(moment) = counters {
            let until = self.waiting.until(moment);
            self.record_first(until, sink)?;
            let time = Nanos(moment.saturating_sub(self.epoch)).max(self.last);
            for (device, counters) in &self.counters {
                let counters = Box::new(*counters);
                sink.record(&Record::Counters { time, device: *device, counters })?;
            }
        }
        Ok(())
    }

    pub(super) fn count_losses(&mut self) {
        let Some(probe) = &self.probe else { return };
        let counts = probe.counts();
        let lost = counts.lost - self.counted.lost;
        self.totals.lost += lost;
        self.session.losses.add(ReaderKind::Events, MissReason::Late, lost);
        self.counted = counts;
    }
}
