//! The beginning of a job: whether it had an allocator when the probes were placed, and where it is once it has one.

use super::ExactRecorder;
use crate::model::{
    AllocatorBackend, MissReason, Nanos, ReaderKind, Record, RecordSink, SinkResult,
};
use crate::probe::AttachedProbes;
use crate::sampler::readers::TorchState;

/// Nanoseconds between two records of the counters as they are while nothing is under way.
const SETTLED_EVERY: u64 = 200_000_000;

impl ExactRecorder {
    /// Whether no device has an allocator, asked while the probes already stand: then they see all that it will ever do.
    pub(super) fn has_no_allocator(&mut self, probe: &AttachedProbes) -> bool {
        self.session.readers.refresh();
        probe.probes().iter().any(|name| name.starts_with("pytorch:malloc"))
            && self.session.readers.allocator() == AllocatorBackend::NotInitialized
    }

    /// Looks whether the devices have got their allocators: until memspy knows where the counters are, events come
    /// without them.
    pub(super) fn find_devices(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if self.probe.is_none() || !self.session.waits_for_devices() {
            return Ok(());
        }
        if self.session.refresh(sink)? {
            self.tell_levels();
        }
        Ok(())
    }

    /// Tells the kernel's program where the counters of the devices are.
    pub(super) fn tell_levels(&mut self) {
        let (Some(probe), TorchState::Attached(torch)) =
            (&mut self.probe, &self.session.readers.torch)
        else {
            return;
        };
        let levels: Vec<_> = torch.levels().collect();
        for (device, at) in &levels {
            if let Err(error) = probe.set_levels(*device, *at) {
                let why = MissReason::Failed(error.to_string());
                self.session.losses.add(ReaderKind::Events, why, 1);
            }
        }
        self.plan.levels = levels;
    }

    /// Records the counters just read, between all events before `time` (CLOCK_MONOTONIC in nanoseconds) and all
    /// after it: now and then, for comparing both.
    pub(super) fn record_settled(&mut self, time: u64, sink: &mut dyn RecordSink) -> SinkResult {
        if self.settled.is_some_and(|last| time < last + SETTLED_EVERY) {
            return Ok(());
        }
        self.settled = Some(time);
        let time = Nanos(time.saturating_sub(self.epoch)).max(self.last);
        for (device, counters) in &self.counters {
            let counters = Box::new(*counters);
            sink.record(&Record::Counters { time, device: *device, counters })?;
        }
        Ok(())
    }
}
