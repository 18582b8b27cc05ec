//! How soon a thread comes back to wait for the autograd engine: for less than that it was not away.
//!
//! Where the poller loses its processor for some milliseconds within a backward pass, it sees a thread wait for the engine before and after. Had that thread been elsewhere,
//! it would have gone through what lies between two backward passes.

use rustc_hash::FxHashMap;

use crate::model::{FollowedChange, StackId, StackReading, ThreadId};

/// Threads remembered.
const MAX_THREADS: usize = 1 << 10;
/// It can have been away for less than ever before.
const MARGIN: u64 = 2;

/// Where a thread was seen last.
#[derive(Debug, Clone, Copy)]
enum Seen {
    /// Waiting, at this time.
    Waits(u64),
    /// Elsewhere; it waited last at this time.
    Away(u64),
}

/// When threads waited for the engine, in nanoseconds since the recording began.
#[derive(Debug, Default)]
pub(super) struct EngineWaits {
    seen: FxHashMap<ThreadId, Seen>,
    /// The shortest time in which one was seen to wait, to be elsewhere, and to wait again.
    shortest_away: Option<u64>,
}

impl EngineWaits {
    /// Takes a change; `is_waiting` says which stacks wait.
    pub(super) fn add(&mut self, change: &FollowedChange, is_waiting: impl Fn(StackId) -> bool) {
        for listed in &change.threads {
            let sides = [(listed.before, change.before.0), (listed.after, change.after.0)];
            for (reading, time) in sides {
                let waits = match reading {
                    StackReading::Whole(stack) => is_waiting(stack),
                    StackReading::NoFrames => false,
                    StackReading::Torn | StackReading::NotRead => continue,
                };
                self.see(listed.thread, waits, time);
            }
        }
    }

    fn see(&mut self, thread: ThreadId, waits: bool, time: u64) {
        let last = self.seen.get(&thread).copied();
        let now = match (last, waits) {
            (None, false) => return,
            (Some(Seen::Waits(since)), false) => Seen::Away(since),
            (Some(away), false) => away,
            (Some(Seen::Away(since)), true) => {
                let away = time.saturating_sub(since);
                self.shortest_away = Some(self.shortest_away.unwrap_or(u64::MAX).min(away));
                Seen::Waits(time)
            }
            (_, true) => Seen::Waits(time),
        };
        if last.is_some() || self.seen.len() < MAX_THREADS {
            self.seen.insert(thread, now);
        }
    }

    /// For how long a thread was not away that waited before and after; 0 where that is not known.
    pub(super) fn stay(&self) -> u64 {
        self.shortest_away.unwrap_or(0) / MARGIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FollowedThread, Nanos};

    #[test]
    fn a_thread_stays_for_less_than_it_was_ever_away() {
        let [waits, elsewhere] = [1, 2].map(|stack| StackReading::Whole(StackId(stack)));
        let mut waiting = EngineWaits::default();
        let mut see = |before, after, at: u64| {
            let thread = ThreadId(0);
            let change = FollowedChange {
                before: Nanos(at),
                after: Nanos(at + 10),
                threads: vec![FollowedThread {
                    thread,
                    before,
                    after,
                    held_lock: false,
                    wait: Default::default(),
                }],
                ..FollowedChange::empty()
            };
            waiting.add(&change, |stack| stack == StackId(1));
            waiting.stay()
        };
        assert_eq!(see(waits, waits, 100), 0);
        assert_eq!(see(waits, StackReading::Torn, 200), 0);
        assert_eq!(see(waits, elsewhere, 5_000), 0);
        assert_eq!(see(elsewhere, waits, 9_000), 2_005, "half of what it was away");
        assert_eq!(see(waits, elsewhere, 9_500), 2_005);
        assert_eq!(see(waits, waits, 10_100), 300, "another pass of the loop is shorter");
    }
}
