//! Scheduling priority: the sampling thread must not queue behind the target's threads.

/// The `nice` value of the sampling thread.
const RAISED_NICE: i32 = -10;
/// The thread that reads snapshots can wait.
const LOWERED_NICE: i32 = 5;

/// Lets the calling thread run as soon as it wakes, if the kernel allows it (root, CAP_SYS_NICE).
/// It needs about 2 % of a processor, microseconds at a time. Otherwise does nothing.
pub(super) fn raise_priority() {
    set(RAISED_NICE);
}

/// Lowers the calling thread's priority.
pub(super) fn lower_priority() {
    set(LOWERED_NICE);
}

fn set(nice: i32) {
    // On Linux a `nice` value belongs to a thread, though the call names processes.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice);
}
