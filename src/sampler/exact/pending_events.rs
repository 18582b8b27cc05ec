//! Events from the ring that are not recorded yet, in time order.

use crate::probe::{RawEvent, RawStep, StackKey};

/// An event or step from the kernel's program.
#[derive(Debug, Clone, Copy)]
pub(super) enum PendingEvent {
    Event(RawEvent),
    /// A step that began before the events after it.
    Step(RawStep),
}

impl PendingEvent {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub(super) fn time(&self) -> u64 {
        match self {
            PendingEvent::Event(event) => event.time,
            PendingEvent::Step(step) => step.time,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct PendingEvents {
    seen: Vec<PendingEvent>,
}

impl PendingEvents {
    /// Adds what `fill` brings, sorted: CPUs may write slightly out of order.
    pub(super) fn fill(&mut self, fill: impl FnOnce(&mut Vec<PendingEvent>)) {
        let before = self.seen.len();
        fill(&mut self.seen);
        if self.seen.len() > before {
            // Stable, so a step stays before its event.
            self.seen.sort_by_key(PendingEvent::time);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// The number of events up to `time`.
    pub(super) fn until(&self, time: u64) -> usize {
        self.seen.partition_point(|seen| seen.time() <= time)
    }

    /// The keys of all stacks they refer to.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackKey> + '_ {
        let events = self.seen.iter().filter_map(|seen| match seen {
            PendingEvent::Event(event) => Some(event),
            PendingEvent::Step(_) => None,
        });
        events.flat_map(|event| [event.stack, event.node.map_or(0, |node| node.forward)])
    }

    /// The time of the oldest event.
    pub(super) fn first_time(&self) -> Option<u64> {
        self.seen.first().map(PendingEvent::time)
    }

    /// How many of the first `count` precede the first that is not ready.
    pub(super) fn ready(&self, count: usize, is_ready: impl Fn(&RawEvent) -> bool) -> usize {
        let ready = |seen: &&PendingEvent| match seen {
            PendingEvent::Event(event) => is_ready(event),
            PendingEvent::Step(_) => true,
        };
        self.seen.iter().take(count).take_while(ready).count()
    }

    /// Takes all events. The caller puts unused ones back with [`PendingEvents::restore`].
    pub(super) fn take(&mut self) -> Vec<PendingEvent> {
        std::mem::take(&mut self.seen)
    }

    /// See [`PendingEvents::take`].
    pub(super) fn restore(&mut self, seen: Vec<PendingEvent>) {
        self.seen = seen;
    }
}
