//! The thread states, from CPython's lists.

use crate::python::layouts::PythonLayout;
use crate::target::{Addr, Field, Memory};

/// A longer list is damaged.
pub(in crate::python) const MAX_INTERPRETERS: usize = 256;
pub(in crate::python) const MAX_THREADS: usize = 16384;

/// A list ends where it is unreadable.
pub(in crate::python) fn thread_states(
    memory: &dyn Memory,
    layout: &PythonLayout,
    runtime: Addr,
) -> Vec<Addr> {
    let next = |field: Field<Addr>, at: Addr| {
        memory.pointer(field.in_target(at)).ok().filter(|next| next.is_plausible())
    };
    let mut found = Vec::new();
    let first = next(layout.runtime.interpreters_head, runtime);
    let interpreters = std::iter::successors(first, |at| next(layout.interpreter.next, *at));
    for interpreter in interpreters.take(MAX_INTERPRETERS) {
        let first = next(layout.interpreter.threads_head, interpreter);
        let threads = std::iter::successors(first, |at| next(layout.thread.next, *at));
        found.extend(threads.take(MAX_THREADS));
    }
    found
}
