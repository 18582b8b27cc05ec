//! What came out of the ring and is not recorded yet, in time order.

use crate::probe::{RawEvent, RawStep, StackKey};

/// Something seen by the kernel's program.
#[derive(Debug, Clone, Copy)]
pub(super) enum Seen {
    Event(RawEvent),
    /// Of the time before the events after it.
    Step(RawStep),
}

impl Seen {
    /// CLOCK_MONOTONIC in nanoseconds.
    pub(super) fn time(&self) -> u64 {
        match self {
            Seen::Event(event) => event.time,
            Seen::Step(step) => step.time,
        }
    }
}

/// Those that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    seen: Vec<Seen>,
}

impl Waiting {
    /// Adds what `fill` brings. Threads on different CPUs may have written a little out of order.
    pub(super) fn fill(&mut self, fill: impl FnOnce(&mut Vec<Seen>)) {
        let before = self.seen.len();
        fill(&mut self.seen);
        if self.seen.len() > before {
            // Stable: a step stays before its event.
            self.seen.sort_by_key(Seen::time);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// How many are not younger than `time`.
    pub(super) fn until(&self, time: u64) -> usize {
        self.seen.partition_point(|seen| seen.time() <= time)
    }

    /// The keys of all stacks that they refer to.
    pub(super) fn stacks(&self) -> impl Iterator<Item = StackKey> + '_ {
        let events = self.seen.iter().filter_map(|seen| match seen {
            Seen::Event(event) => Some(event),
            Seen::Step(_) => None,
        });
        events.flat_map(|event| [event.stack, event.node.map_or(0, |node| node.forward)])
    }

    /// The time of the oldest.
    pub(super) fn first_time(&self) -> Option<u64> {
        self.seen.first().map(Seen::time)
    }

    /// How many of the first `count` stand before the first that is not ready.
    pub(super) fn ready(&self, count: usize, is_ready: impl Fn(&RawEvent) -> bool) -> usize {
        let ready = |seen: &&Seen| match seen {
            Seen::Event(event) => is_ready(event),
            Seen::Step(_) => true,
        };
        self.seen.iter().take(count).take_while(ready).count()
    }

    /// Takes the whole vector, and leaves none: the caller puts back what it does not use with [`Waiting::restore`].
    pub(super) fn take(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    /// See [`Waiting::take`].
    pub(super) fn restore(&mut self, seen: Vec<Seen>) {
        self.seen = seen;
    }
}
