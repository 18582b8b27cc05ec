//! Ends a memspy together with its starter.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Pid of the starter.
pub(super) const ENDS_WITH: &str = "MEMSPY_ENDS_WITH";

/// Has the kernel send SIGTERM when the starter ends. `false`: it has already ended.
pub(super) fn end_with_starter() -> bool {
    let starter = std::env::var(ENDS_WITH).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    if starter.is_none() || starter != getppid() {
        // Without a named starter, go on. One that is not the parent has ended, or the
        // variable was inherited.
        return starter.is_none();
    }
    // If refused, the starter still ends this one, unless it is killed.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // It may have ended meanwhile.
    starter == getppid()
}
