//! Who a thread is: its id for the kernel, whether it is the main one, and its name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::heads::Place;
use super::layout::Layout;
use crate::model::Thread;
use crate::target::{Addr, Memory, Process};

/// Names are looked up this often, and soon after a new thread appears.
const EVERY: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(20);

/// What is known of the threads besides their stacks.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The target's pid as the target sees it.
    pid_in_target: Option<u64>,
    /// Whether thread ids are the same here as in the target.
    same_namespace: bool,
    /// Ids here of the threads by their ids in the target, and their kernel names.
    kernel: FxHashMap<u64, (u32, Arc<str>)>,
    /// `threading.Thread.name` by `PyThreadState.thread_id`.
    threading: FxHashMap<u64, Arc<str>>,
    due: Option<Instant>,
}

impl Names {
    pub(super) fn new(process: Option<&Process>) -> Names {
        let pids = process.map(Process::pids).unwrap_or_default();
        Names {
            pid_in_target: pids.last().map(|&pid| u64::from(pid)),
            same_namespace: pids.len() == 1,
            ..Names::default()
        }
    }

    /// Whether [`Self::refresh`] is due.
    pub(super) fn are_due(&self) -> bool {
        self.due.is_none_or(|due| Instant::now() >= due)
    }

    /// A thread appeared: its name is wanted soon (it is not in `threading` before it runs).
    pub(super) fn hurry(&mut self) {
        let soon = Instant::now() + SOON;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    /// Reads the names.
    pub(super) fn refresh<'a>(
        &mut self,
        process: Option<&Process>,
        _memory: &dyn Memory,
        _layout: &Layout,
        _interpreter: Option<Addr>,
        _places: impl Iterator<Item = &'a Place>,
    ) {
        self.due = Some(Instant::now() + EVERY);
        if let Some(Ok(threads)) = process.map(Process::threads) {
            self.kernel.clear();
            for thread in threads {
                self.kernel.insert(u64::from(thread.id_in_target), (thread.id, thread.name.into()));
            }
        }
    }

    /// The thread at `place`, as far as it is known now.
    pub(super) fn describe(&self, _memory: &dyn Memory, place: &Place) -> Thread {
        let os_id = place.os_id;
        let name = self
            .threading
            .get(&place.python_id)
            .cloned()
            .or_else(|| self.kernel.get(&os_id?).map(|(_, name)| name.clone()));
        Thread {
            os_id,
            python_id: place.python_id,
            name,
            main: os_id.is_some() && os_id == self.pid_in_target,
        }
    }

    /// The thread's id in memspy's own pid namespace.
    pub(super) fn id_here(&self, place: &Place) -> Option<u32> {
        let id = place.os_id?;
        if self.same_namespace {
            return u32::try_from(id).ok();
        }
        self.kernel.get(&id).map(|&(here, _)| here)
    }
}
