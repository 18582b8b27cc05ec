//! When and how an exact recording places its probes, and takes them away.

use std::io;

use super::{ExactRecorder, monotonic};
use crate::model::{Exact, Frees, MissedWhy, ReaderKind, Record, RecordSink};
use crate::probe::{Plan, Probe, ProbeCounts, ProbeError, Raw};
use crate::sampler::exact::waiting::Seen;
use crate::sampler::readers::Torch;
use crate::torch::backward_walk;

/// What an attempt to place probes came to.
pub(super) enum Placing {
    Placed,
    /// Nothing to probe is loaded yet.
    Nothing,
}

impl ExactRecorder {
    /// Places probes where there are none, or where the target offers more to probe than it did.
    pub(super) fn try_place(&mut self) -> Result<Placing, ProbeError> {
        let mut backward = None;
        match backward_walk(&self.session.readers.process) {
            Ok(found) => backward = found,
            // Allocations of the backward pass then count to the line that waits for it.
            Err(error) => {
                let why = MissedWhy::Failed(error.to_string());
                self.session.losses.add(ReaderKind::Events, why, 1);
            }
        }
        self.plan = Plan {
            way: self.wanted.way,
            walk: match &mut self.session.readers.python {
                // Without its layout the stacks are unknown, but the events are exact all the same.
                Some(python) => python.frame_walk().ok(),
                None => None,
            },
            backward,
            backward_lines: self.wanted.backward_lines,
            levels: match &self.session.readers.torch {
                Torch::Attached(torch) => torch.levels().collect(),
                _ => Vec::new(),
            },
            frees: self.wanted.frees,
            stacks_from: self.wanted.stacks_from,
            stacks_every: self.wanted.stacks_every,
            watches: self.wanted.also.holders.is_some() || self.wanted.also.step_variable.is_some(),
            ..Plan::default()
        };
        match Probe::attach(&self.session.readers.process, &self.plan) {
            Ok(probe) => {
                // At once: the job may begin any moment.
                self.starts_empty = self.has_no_allocator(&probe);
                self.probe = Some(probe);
                Ok(Placing::Placed)
            }
            Err(ProbeError::NothingToProbe { .. }) => Ok(Placing::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Places probes where more can be probed than before; those of before have done their work until then.
    pub(super) fn place_again(&mut self, sink: &mut dyn RecordSink) -> io::Result<()> {
        self.empty_ring();
        let before = self.probe.take();
        match self.try_place() {
            Ok(Placing::Placed) => {
                let placed = monotonic();
                if let Some(mut before) = before {
                    self.placed = placed;
                    detach(&mut before);
                    let (sites, table) = (&mut self.sites, &mut self.session.table);
                    self.waiting.fill(|waiting| {
                        before.drain(&mut |raw| {
                            let event = match raw {
                                Raw::Step(step) => Some(Seen::Step(step)),
                                raw => sites.describe(raw, table).map(Seen::Event),
                            };
                            waiting.extend(event.filter(|event| event.time() < placed));
                        });
                    });
                    self.watching.begin_anew();
                    self.counted = ProbeCounts::default();
                }
                self.record_all_events(sink)?;
                // The numbers of stacks are those of one program in the kernel.
                self.sites.forget_stacks();
                self.record_placed(sink)
            }
            Ok(Placing::Nothing) => {
                self.probe = before;
                Ok(())
            }
            Err(error) => {
                self.probe = before;
                let why = MissedWhy::Failed(error.to_string());
                self.session.losses.add(ReaderKind::Events, why, 1);
                Ok(())
            }
        }
    }

    /// Records what is probed from now on, and what was there before.
    pub(super) fn record_placed(&mut self, sink: &mut dyn RecordSink) -> io::Result<()> {
        let starts_empty = self.starts_empty;
        self.session.record_runtime(sink)?;
        self.tell_levels();
        let Some(probe) = &self.probe else { return Ok(()) };
        if starts_empty {
            self.reconciler.start_empty();
        }
        let exact = Exact {
            time: self.now(),
            way: probe.way(),
            frees: self.wanted.frees,
            stacks_from: self.wanted.stacks_from,
            stacks_every: self.wanted.stacks_every,
            backward_lines: self.wanted.backward_lines && self.plan.backward.is_some(),
            knows_backward: self.plan.backward.is_some()
                && self.plan.watches
                && probe.can_watch()
                && self.wanted.frees != Frees::Maps
                && (self.wanted.stacks_from, self.wanted.stacks_every) == (0, 0),
            starts_empty,
            probes: probe.probes().to_vec(),
            uncovered: probe.uncovered().to_vec(),
        };
        self.know_threads();
        sink.record(&Record::Exact(exact))?;
        self.check(sink)
    }
}

/// Ends all links at once: the kernel lets each wait.
pub(super) fn detach(probe: &mut Probe) {
    let links = probe.take_links();
    std::thread::scope(|scope| {
        for link in links {
            scope.spawn(move || drop(link));
        }
    });
}
