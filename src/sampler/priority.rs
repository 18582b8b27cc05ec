//! Keeps the sampling thread ahead of the target's threads.

const RAISED_NICE: i32 = -10;
const LOWERED_NICE: i32 = 5;

/// Lets the thread run as soon as it wakes (root, CAP_SYS_NICE). It needs about 2 % of a processor.
pub(super) fn raise_priority() {
    set(RAISED_NICE);
}

pub(super) fn lower_priority() {
    set(LOWERED_NICE);
}

fn set(nice: i32) {
    // On Linux `nice` is a thread's, though the call names processes.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice);
}
