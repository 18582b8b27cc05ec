//! Scheduling priority: the sampling thread must not queue behind the target's threads.

/// How much earlier than others the sampling thread is to be served (`nice` value).
const RAISED_NICE: i32 = -10;
/// The thread that reads maps has time.
const LOWERED_NICE: i32 = 5;

/// Lets the calling thread run as soon as it wakes, where the kernel allows that (root, CAP_SYS_NICE):
/// it needs about one part in fifty of a processor, in pieces of microseconds. Elsewhere nothing happens.
pub(super) fn raise_priority() {
    set(RAISED_NICE);
}

/// Lets the calling thread give way to others.
pub(super) fn lower_priority() {
    set(LOWERED_NICE);
}

fn set(nice: i32) {
    // On Linux a `nice` value belongs to a thread, though the call speaks of processes.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice);
}
