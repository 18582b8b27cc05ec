//! Which threads did not run at all between two moments: they cannot have allocated.

use rustc_hash::FxHashMap;

use crate::python::{PollTarget, ThreadKey};
use crate::target::Process;

/// The kernel's word for each thread: whether it slept, and how long it had run by then.
#[derive(Default)]
pub(super) struct SleepStates {
    last: FxHashMap<ThreadKey, Option<u64>>,
    slept: Vec<ThreadKey>,
}

impl SleepStates {
    /// Looks at `targets`; [`Self::slept`] then tells of the time since the last look.
    pub(super) fn look(&mut self, process: &Process, targets: &[PollTarget]) {
        self.slept.clear();
        let mut now = FxHashMap::default();
        for target in targets {
            // Asleep before and after the time it has run was read: then that time was exact.
            let asleep = |id| process.thread_state(id) == Some('S');
            let run_time = target
                .id_here
                .filter(|&id| asleep(id))
                .and_then(|id| process.thread_run_time(id).filter(|_| asleep(id)));
            let key = target.key();
            if run_time.is_some() && self.last.get(&key).copied().flatten() == run_time {
                self.slept.push(key);
            }
            now.insert(key, run_time);
        }
        self.last = now;
    }

    /// Whether this thread slept from one look to the next.
    pub(super) fn slept(&self, key: ThreadKey) -> bool {
        self.slept.contains(&key)
    }

    /// Forgets the last look.
    pub(super) fn clear(&mut self) {
        self.last.clear();
        self.slept.clear();
    }
}
