//! Ends a memspy together with its starter.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Pid of the starter.
pub(super) const ENDS_WITH: &str = "MEMSPY_ENDS_WITH";

/// Asks the kernel for SIGTERM when the starter ends; work then ends in order. `false`: it has
/// ended.
pub(super) fn end_with_starter() -> bool {
    let starter = std::env::var(ENDS_WITH).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    if starter.is_none() || starter != getppid() {
        // No starter, or not the parent: ended, or an inherited variable.
        return starter.is_none();
    }
    // Else the starter ends this one, unless killed.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // It may have ended meanwhile.
    starter == getppid()
}
