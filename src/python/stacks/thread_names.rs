//! A thread's kernel id and name; whether it is the main one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::model::Thread;
use crate::python::dicts;
use crate::python::layouts::PythonLayout;
use crate::python::objects::{DecodeError, small_int, text};
use crate::python::stacks::thread_list::ThreadEntry;
use crate::target::{Addr, Field, Memory, Process};

/// Shorter after a new thread appears.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Searched in `struct pthread` (720 in glibc, 48 in musl).
const PTHREAD: usize = 1024;

#[derive(Debug, Default)]
pub(in crate::python) struct ThreadNames {
    pid_in_target: Option<u64>,
    same_namespace: bool,
    /// By kernel id in the target.
    kernel: FxHashMap<u64, (u32, Arc<str>)>,
    /// `threading.Thread.name` by `PyThreadState.thread_id`.
    threading: FxHashMap<u64, Arc<str>>,
    active: Option<Addr>,
    /// Until the next search: a program may never import `threading`.
    timeout: Duration,
    searched: Option<Instant>,
    /// Offset of the kernel id, if the interpreter does not store it.
    tid_in_pthread: Option<u64>,
    due: Option<Instant>,
}

impl ThreadNames {
    pub(in crate::python) fn new(process: Option<&Process>) -> ThreadNames {
        let pids = process.map(Process::pids).unwrap_or_default();
        ThreadNames {
            pid_in_target: pids.last().map(|&pid| u64::from(pid)),
            same_namespace: pids.len() == 1,
            ..ThreadNames::default()
        }
    }

    pub(in crate::python) fn are_due(&self) -> bool {
        self.due.is_none_or(|due| Instant::now() >= due)
    }

    /// A new thread is not in `threading` before it runs.
    pub(in crate::python) fn refresh_soon(&mut self) {
        let soon = Instant::now() + RETRY_INTERVAL;
        self.due = Some(self.due.map_or(soon, |due| due.min(soon)));
    }

    pub(in crate::python) fn refresh<'a>(
        &mut self,
        process: Option<&Process>,
        memory: &dyn Memory,
        layout: &PythonLayout,
        interpreter: Option<Addr>,
        places: impl Iterator<Item = &'a ThreadEntry>,
    ) {
        let now = Instant::now();
        self.due = Some(now + REFRESH_INTERVAL);
        if let Some(Ok(threads)) = process.map(Process::threads) {
            self.kernel.clear();
            for thread in threads {
                self.kernel.insert(u64::from(thread.id_in_target), (thread.id, thread.name.into()));
            }
        }
        if layout.thread.os_id.is_none() {
            let pthreads = places.filter(|place| !place.is_shared).map(|place| place.python_id);
            let pthreads: Vec<u64> = pthreads.collect();
            self.tid_in_pthread = self.find_tid(memory, &pthreads);
        }
        let tired = self.searched.is_some_and(|at| now - at < self.timeout);
        if self.active.is_none() && !tired {
            self.active =
                interpreter.and_then(|at| active_threads(memory, layout, at).ok().flatten());
            self.searched = Some(now);
            self.timeout = (self.timeout * 2).clamp(REFRESH_INTERVAL, MAX_RETRY_INTERVAL);
        }
        if let Some(active) = self.active {
            match names(memory, layout, active) {
                Ok(names) => self.threading = names,
                Err(_) => self.active = None,
            }
        }
    }

    /// The first offset with a distinct kernel id in every `struct pthread`.
    fn find_tid(&self, memory: &dyn Memory, pthreads: &[u64]) -> Option<u64> {
        let heads: Vec<Vec<u8>> =
            pthreads.iter().map(|&at| memory.vec(Addr(at), PTHREAD).ok()).collect::<Option<_>>()?;
        (0..PTHREAD as u64).step_by(4).find(|&offset| {
            let ids: Option<Vec<u64>> = heads
                .iter()
                .map(|head| Field::<u32>::at(offset as usize).get(head).map(u64::from))
                .collect();
            ids.is_some_and(|ids| {
                !ids.is_empty()
                    && ids.iter().all(|id| self.kernel.contains_key(id))
                    && ids.iter().enumerate().all(|(n, id)| !ids[..n].contains(id))
            })
        })
    }

    pub(in crate::python) fn describe(&self, memory: &dyn Memory, place: &ThreadEntry) -> Thread {
        let os_id = self.os_id(memory, place);
        let name = self
            .threading
            .get(&place.python_id)
            .cloned()
            .or_else(|| self.kernel.get(&os_id?).map(|(_, name)| name.clone()))
            // Core files name only the main thread.
            .filter(|name| !name.is_empty())
            .or_else(|| place.is_shared.then(|| "sub-interpreter".into()));
        Thread {
            os_id,
            python_id: place.python_id,
            name,
            main: os_id.is_some() && os_id == self.pid_in_target,
        }
    }

    pub(in crate::python) fn os_id(&self, memory: &dyn Memory, place: &ThreadEntry) -> Option<u64> {
        if place.os_id.is_some() || place.is_shared {
            return place.os_id;
        }
        let at = Addr(place.python_id) + self.tid_in_pthread?;
        memory.u32(at).ok().map(u64::from).filter(|id| self.kernel.contains_key(id))
    }

    pub(in crate::python) fn id_here(
        &self,
        memory: &dyn Memory,
        place: &ThreadEntry,
    ) -> Option<u32> {
        let id = self.os_id(memory, place)?;
        if self.same_namespace {
            return u32::try_from(id).ok();
        }
        self.kernel.get(&id).map(|&(here, _)| here)
    }
}

fn active_threads(
    memory: &dyn Memory,
    layout: &PythonLayout,
    interpreter: Addr,
) -> Result<Option<Addr>, DecodeError> {
    let Some(threading) = dicts::of_imported(memory, layout, interpreter, "threading")? else {
        return Ok(None);
    };
    let variables = dicts::entries(memory, layout, threading)?;
    Ok(dicts::get(memory, layout, &variables, "_active"))
}

/// `Thread._name` by `pthread_self()`.
fn names(
    memory: &dyn Memory,
    layout: &PythonLayout,
    active: Addr,
) -> Result<FxHashMap<u64, Arc<str>>, DecodeError> {
    let mut names = FxHashMap::default();
    for (ident, thread) in dicts::entries(memory, layout, active)? {
        let ident = small_int(memory, &layout.object, ident)?;
        let Ok(attributes) = dicts::attributes(memory, layout, thread) else { continue };
        let Some(name) = dicts::get(memory, layout, &attributes, "_name") else { continue };
        if let Ok(name) = text(memory, &layout.object, name) {
            names.insert(ident, name.text.into());
        }
    }
    Ok(names)
}
