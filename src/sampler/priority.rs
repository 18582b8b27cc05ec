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

/// Does some short work ahead of other threads; threads begun in it stay ahead.
pub fn with_raised_priority<T>(work: impl FnOnce() -> T) -> T {
    let before = rustix::process::getpriority_process(Some(rustix::thread::gettid()));
    raise_priority();
    let done = work();
    if let Ok(nice) = before {
        set(nice);
    }
    done
}

fn set(nice: i32) {
    // On Linux `nice` is a thread's, though the call names processes.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nice() -> i32 {
        rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap()
    }

    #[test]
    fn the_priority_is_raised_for_the_work_only() {
        let before = nice();
        let meanwhile = with_raised_priority(nice);
        // Only root may raise it.
        assert!(meanwhile == RAISED_NICE || meanwhile == before);
        assert_eq!(nice(), before);
    }
}
