//! Exact events compared with the allocator: with its counters while it stands still, and once a second with its blocks.

use std::time::Duration;

use super::{ExactRecorder, MIN_QUIET_NANOS, monotonic};
use crate::model::{
    AllocatorBackend, MissReason, Nanos, ReaderKind, Record, RecordSink, SinkResult,
};
use crate::sampler::readers::TorchState;
use crate::torch::TorchError;

/// How long a snapshot is tried for until the target keeps still.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(20);

impl ExactRecorder {
    /// One more look at the counters for the reconciliation: it counts if the target allocated nothing
    /// around it, so that no event is ahead of its count or behind.
    pub(super) fn compare_counters(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        let TorchState::Attached(torch) = &mut self.session.readers.torch else { return Ok(()) };
        if *torch.backend() != AllocatorBackend::Native || self.probe.is_none() {
            return Ok(());
        }
        let before = monotonic();
        if torch.counters(&mut self.counters).is_err() {
            return Ok(()); // The next look is 5 ms away.
        }
        self.observe_failures();
        let after = monotonic() + MIN_QUIET_NANOS;
        while monotonic() < after {
            std::hint::spin_loop();
        }
        self.empty_ring();
        let seen = self.waiting.until(before - 1);
        self.record_described(seen, sink)?;
        self.record_failing(sink)?;
        let quiet = self.is_emptied
            && before.saturating_sub(self.last.0 + self.epoch) > MIN_QUIET_NANOS
            && self.waiting.first_time().is_none_or(|time| time > after);
        if quiet {
            for (device, counters) in &self.counters {
                self.reconciler.on_counters(*device, counters);
            }
            self.record_settled(before, sink)?;
        }
        Ok(())
    }

    /// Records of the first `count` waiting events those before the first that waits for a description.
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

    /// Once a second: the counters, the snapshots, what they say of the events, and what was lost.
    pub(super) fn check_events(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        self.count_losses();
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

    fn record_blocks(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        let TorchState::Attached(torch) = &mut self.session.readers.torch else { return Ok(()) };
        if *torch.backend() != AllocatorBackend::Native {
            return Ok(());
        }
        torch.set_timeout(SNAPSHOT_TIMEOUT);
        let start = self.session.start;
        let mut snapshots = Vec::new();
        for device in torch.devices() {
            let read = torch.blocks(device, Nanos(0)).map(|mut snapshot| {
                // What counts is the attempt that succeeded, the last one.
                snapshot.time = Nanos(start.elapsed().as_nanos() as u64);
                snapshot
            });
            snapshots.push(read);
        }
        let counters = torch.counters(&mut self.counters).is_ok();
        let time = self.now();
        self.empty_ring();
        if !self.is_emptied || !self.wait_for_native(false) {
            // Events of before are still in the ring: the maps would seem to know of what they tell.
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
                Err(TorchError::Torn { .. }) => {
                    self.session.losses.add(ReaderKind::Snapshots, MissReason::Torn, 1);
                }
                Err(error) => {
                    let why = MissReason::Failed(error.to_string());
                    self.session.losses.add(ReaderKind::Snapshots, why, 1);
                }
            }
        }
        if counters {
            let until = time.0 + self.epoch;
            let until = self.waiting.until(until);
            self.record_first(until, sink)?;
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
