//! Events that are not recorded yet, in time order.

use crate::model::{AddressSpace, EventKind, MemoryKind};
use crate::probe::{RawEvent, RawStep, StackKey};

#[derive(Debug, Clone, Copy)]
pub(super) enum PendingEvent {
    Event(RawEvent),
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

    /// One of PyTorch's allocator.
    pub(super) fn is_torch(&self) -> bool {
        let PendingEvent::Event(event) = self else { return false };
        matches!(
            event.change,
            EventKind::Allocated { memory_kind: MemoryKind::Torch(_), .. }
                | EventKind::Freed { memory_kind: AddressSpace::Torch, .. }
        )
    }
}

#[derive(Debug, Default)]
pub(super) struct PendingEvents {
    seen: Vec<PendingEvent>,
}

impl PendingEvents {
    /// CPUs may write slightly out of order.
    pub(super) fn fill(&mut self, fill: impl FnOnce(&mut Vec<PendingEvent>)) {
        let before = self.seen.len();
        fill(&mut self.seen);
        if self.seen.len() > before {
            // Stable: a step stays before its event.
            self.seen.sort_by_key(PendingEvent::time);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    pub(super) fn until(&self, time: u64) -> usize {
        self.seen.partition_point(|seen| seen.time() <= time)
    }

    pub(super) fn stacks(&self) -> impl Iterator<Item = StackKey> + '_ {
        let events = self.seen.iter().filter_map(|seen| match seen {
            PendingEvent::Event(event) => Some(event),
            PendingEvent::Step(_) => None,
        });
        events.flat_map(|event| [event.stack, event.node.map_or(0, |node| node.forward)])
    }

    pub(super) fn first_time(&self) -> Option<u64> {
        self.seen.first().map(PendingEvent::time)
    }

    pub(super) fn ready(&self, count: usize, is_ready: impl Fn(&RawEvent) -> bool) -> usize {
        let ready = |seen: &&PendingEvent| match seen {
            PendingEvent::Event(event) => is_ready(event),
            PendingEvent::Step(_) => true,
        };
        self.seen.iter().take(count).take_while(ready).count()
    }

    /// The caller puts unused ones back with [`PendingEvents::restore`].
    pub(super) fn take(&mut self) -> Vec<PendingEvent> {
        std::mem::take(&mut self.seen)
    }

    pub(super) fn restore(&mut self, seen: Vec<PendingEvent>) {
        self.seen = seen;
    }
}
