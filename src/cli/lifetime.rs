//! A memspy that another one started, and that ends with it.

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// The environment variable with the pid of the memspy to end with.
pub(super) const ENDS_WITH: &str = "MEMSPY_ENDS_WITH";

/// Has the kernel send SIGTERM, after which work ends in order, when the memspy ends that started this one, however it does.
/// `false`: it has ended already.
pub(super) fn end_with_starter() -> bool {
    let starter = std::env::var(ENDS_WITH).ok().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
    if starter.is_none() || starter != getppid() {
        // None is named, or it is not the one that started this one: it has ended, or the variable was inherited.
        return starter.is_none();
    }
    // Where the kernel refuses, the one that started it still ends it, unless it is killed.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // It may have ended between the two.
    starter == getppid()
}
