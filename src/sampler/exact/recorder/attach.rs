//! Places and removes probes.

use std::sync::Arc;

use super::{ExactRecorder, monotonic};
use crate::model::{
    ExactSettings, FreeTracking, MissReason, ReaderKind, Record, RecordSink, SinkResult,
};
use crate::probe::{AttachPlan, AttachedProbes, PlacementError, RingCounts, RingRecord};
use crate::sampler::exact::cost::CostWatch;
use crate::sampler::exact::pending_events::PendingEvent;
use crate::sampler::readers::TorchState;
use crate::torch::{BackwardError, autograd_info};

pub(super) enum AttachOutcome {
    Attached,
    Nothing,
}

impl ExactRecorder {
    pub(super) fn try_place(&mut self) -> Result<AttachOutcome, PlacementError> {
        let mut backward = None;
        self.awaits_backward = false;
        match autograd_info(&self.session.readers.process) {
            // The allocator's library may be mapped long before the engine's.
            Ok(None) | Err(BackwardError::StillLoading) => self.awaits_backward = true,
            Ok(found) => backward = found,
            // Backward allocations then count to the line that waits for the pass.
            Err(error) => {
                let why = MissReason::Failed(error.to_string());
                self.session.losses.add(ReaderKind::Events, why, 1);
            }
        }
        self.plan = AttachPlan {
            backend: self.options.backend,
            walk: match &mut self.session.readers.python {
                // Without Python's layout stacks are unknown, but events are exact.
                Some(python) => python.unwind_info().ok(),
                None => None,
            },
            backward,
            backward_lines: self.options.backward_lines,
            levels: match &self.session.readers.torch {
                TorchState::Attached(torch) => torch.levels().collect(),
                _ => Vec::new(),
            },
            frees: self.options.frees,
            stacks_from: self.options.stacks_from,
            stacks_every: self.options.stacks_every,
            native_from: self.options.native_from,
            needs_programs: self.is_on_trial(),
            watches: self.options.common.owners.is_some()
                || self.options.common.step_variable.is_some(),
            ..AttachPlan::default()
        };
        match AttachedProbes::attach(&self.session.readers.process, &self.plan) {
            Ok(probe) if self.is_on_trial() && !probe.can_watch() => {
                Err(PlacementError::NeedsPrograms { what: "exact stacks" })
            }
            Ok(probe) => {
                self.complete_from = monotonic();
                self.starts_empty = self.has_no_allocator(&probe);
                if let Some(cost) = &self.options.cost {
                    cost.renew(self.session.start.elapsed());
                }
                self.probe = Some(probe);
                Ok(AttachOutcome::Attached)
            }
            Err(PlacementError::NothingToProbe { .. }) => Ok(AttachOutcome::Nothing),
            Err(error) => Err(error),
        }
    }

    fn is_on_trial(&self) -> bool {
        self.options.cost.as_ref().is_some_and(CostWatch::is_trial)
    }

    pub(super) fn has_unprobed_library(&self) -> bool {
        let process = &self.session.readers.process;
        let Some(probe) = &self.probe else { return true };
        let waited_for = || {
            let found = autograd_info(process);
            !matches!(found, Ok(None) | Err(BackwardError::StillLoading))
        };
        let awaits_backward = self.awaits_backward && probe.has_torch() && probe.can_watch();
        probe.has_unprobed_library(process) || (awaits_backward && waited_for())
    }

    /// The old probes record until the new ones are placed.
    pub(super) fn reattach_probes(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        self.compare_last_read(sink)?;
        self.empty_ring();
        let before = self.probe.take();
        match self.try_place() {
            Ok(AttachOutcome::Attached) => {
                if let Some(mut before) = before {
                    let placed = self.complete_from;
                    self.placed = placed;
                    detach(&mut before);
                    let (sites, table) = (&mut self.sites, &mut self.session.table);
                    self.waiting.fill(|waiting| {
                        before.drain(&mut |raw| {
                            let event = match raw {
                                RingRecord::Step(step) => Some(PendingEvent::Step(step)),
                                raw => sites.describe(raw, table).map(PendingEvent::Event),
                            };
                            waiting.extend(event.filter(|event| event.time() < placed));
                            true
                        });
                    });
                    self.watching.reset();
                    self.counted = RingCounts::default();
                }
                self.wait_for_last_native();
                self.record_all_events(sink)?;
                self.sites.forget_stacks();
                if let Some(native) = self.sites.native() {
                    native.restart_numbers();
                }
                self.record_placed(sink)
            }
            Ok(AttachOutcome::Nothing) => {
                self.probe = before;
                Ok(())
            }
            Err(error) => {
                self.probe = before;
                if let (Some(cost), None, true) =
                    (&self.options.cost, &self.probe, self.is_on_trial())
                {
                    cost.refuse(error.to_string());
                    return Ok(());
                }
                let why = MissReason::Failed(error.to_string());
                self.session.losses.add(ReaderKind::Events, why, 1);
                Ok(())
            }
        }
    }

    pub(super) fn uncovered(&self, probe: &AttachedProbes) -> Vec<Arc<str>> {
        let mut uncovered = probe.uncovered().to_vec();
        if self.options.native_from.is_some() && !probe.can_watch() {
            uncovered.push(
                "frames of C and C++ code (--native) are not recorded: that takes BPF programs"
                    .into(),
            );
        }
        uncovered
    }

    pub(super) fn record_placed(&mut self, sink: &mut dyn RecordSink) -> SinkResult {
        let starts_empty = self.starts_empty;
        self.session.record_runtime(sink)?;
        self.send_counter_addresses();
        self.sites.find_module_calls();
        self.watch_modules();
        let Some(probe) = &self.probe else { return Ok(()) };
        if starts_empty {
            self.reconciler.start_empty();
        }
        let uncovered = self.uncovered(probe);
        let exact = ExactSettings {
            time: self.now(),
            backend: probe.way(),
            frees: self.options.frees,
            stacks_from: self.options.stacks_from,
            stacks_every: self.options.stacks_every,
            backward_lines: self.options.backward_lines && self.plan.backward.is_some(),
            knows_backward: self.plan.backward.is_some()
                && self.plan.watches
                && probe.can_watch()
                && self.options.frees != FreeTracking::Snapshots
                && (self.options.stacks_from, self.options.stacks_every) == (0, 0),
            starts_empty,
            probes: probe.probes().to_vec(),
            uncovered,
            native_from: self.options.native_from.filter(|_| probe.can_watch()),
        };
        self.update_threads();
        sink.record(&Record::ExactSettings(exact))?;
        self.check_events(sink)
    }
}

/// Links end in parallel: the kernel waits at each.
pub(super) fn detach(probe: &mut AttachedProbes) {
    let links = probe.take_links();
    std::thread::scope(|scope| {
        for link in links {
            scope.spawn(move || drop(link));
        }
    });
}
