//! Whether the allocator existed when the probes were placed.

use super::ExactRecorder;
use crate::model::{
    AllocatorBackend, MissReason, Nanos, ReaderKind, Record, RecordSink, SinkResult,
};
use crate::probe::AttachedProbes;
use crate::sampler::readers::TorchState;

const SETTLED_EVERY: u64 = 200_000_000;

impl ExactRecorder {
    /// Asked with the probes in place, which then see all of the allocator's work.
    pub(super) fn has_no_allocator(&mut self, probe: &AttachedProbes) -> bool {
        self.session.readers.refresh();
        probe.probes().iter().any(|name| name.starts_with("pytorch:malloc"))
            && self.session.readers.allocator() == AllocatorBackend::NotInitialized
    }

    pub(super) fn find_devices(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        if self.probe.is_none() || !self.session.waits_for_devices() {
            return Ok(());
        }
        if self.session.refresh(sink)? {
            self.send_counter_addresses();
        }
        Ok(())
    }

    pub(super) fn send_counter_addresses(&mut self) {
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

    /// The counters of `time` (CLOCK_MONOTONIC, nanoseconds), between earlier and later events.
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
