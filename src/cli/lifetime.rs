//! Ends a memspy together with the one that started it.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The environment variable with the pid of the memspy to end with.
pub(super) const ENDS_WITH: &str = "MEMSPY_ENDS_WITH";

/// Has the kernel send SIGTERM when the memspy that started this one ends in any way; work then
/// ends in order. `false`: it has already ended.
pub(super) fn end_with_starter() -> bool {
    let starter = std::env::var(ENDS_WITH).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    if starter.is_none() || starter != getppid() {
        // No starter is named, or the named one is not the parent: it has ended, or the variable
        // was inherited.
        return starter.is_none();
    }
    // If the kernel refuses, the starter still ends this one, unless it is killed.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // It may have ended in between.
    starter == getppid()
}
