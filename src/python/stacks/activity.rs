//! Whether a thread is doing anything, as far as that shows from outside.

use crate::model::ThreadActivity;
use crate::target::{AddressRange, KernelWait};

/// Places in the standard library in which a thread only waits: end of the file's path
/// and function. What C code waits in (`time.sleep`, `Lock.acquire`, `SimpleQueue.get`) leaves no frame,
/// so the function that calls it counts where it does nothing else.
const WAITING: [(&str, &[&str]); 11] = [
    (
        "/threading.py",
        &["wait", "wait_for", "join", "_wait_for_tstate_lock", "acquire", "_shutdown"],
    ),
    ("/queue.py", &["get", "put", "join"]),
    ("/selectors.py", &["select"]),
    ("/concurrent/futures/thread.py", &["_worker"]),
    ("/concurrent/futures/process.py", &["wait_result_broken_or_wakeup"]),
    ("/multiprocessing/connection.py", &["wait", "poll", "_poll", "_recv", "recv", "accept"]),
    ("/multiprocessing/popen_fork.py", &["poll", "wait"]),
    ("/multiprocessing/synchronize.py", &["wait", "wait_for", "acquire"]),
    ("/socket.py", &["accept", "readinto"]),
    ("/socketserver.py", &["serve_forever"]),
    ("/subprocess.py", &["_wait", "_try_wait", "wait"]),
];

/// Whether a thread whose innermost frame is this function waits without allocating on a GPU.
pub(in crate::python) fn is_wait_function(file: &str, name: &str) -> bool {
    // Qualified names end in the function's own.
    let own = name.rsplit('.').next().unwrap_or(name);
    WAITING.iter().any(|(suffix, names)| file.ends_with(suffix) && names.contains(&own))
}

/// Whether a thread whose innermost frame is this function waits for threads that allocate on its behalf: those of the autograd
/// engine.
pub(in crate::python) fn is_engine_function(file: &str, name: &str) -> bool {
    let own = name.rsplit('.').next().unwrap_or(name);
    match own {
        "_engine_run_backward" => file.ends_with("torch/autograd/graph.py"),
        "backward" | "grad" => file.ends_with("torch/autograd/__init__.py"),
        _ => false,
    }
}

/// What is known of a thread at a sample.
#[derive(Debug, Clone, Copy)]
pub(in crate::python) struct ThreadEvidence {
    /// It held the GIL.
    pub(in crate::python) gil: bool,
    /// Its innermost frame is a place where threads wait.
    pub(in crate::python) in_waiting_place: bool,
    /// Its innermost frame is a place where threads wait for others that work for them.
    pub(in crate::python) in_engine: bool,
    /// Its innermost frame or instruction differs from the last sample's.
    pub(in crate::python) moved: bool,
    /// The kernel's state of it (`RSD…`), at most 50 ms old; `None` when it was not looked up.
    pub(in crate::python) os_state: Option<char>,
    /// What it did in the kernel before its stack was read and after it; `None` where that is not known.
    pub(in crate::python) waits: [Option<WaitKind>; 2],
}

/// What a thread does in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum WaitKind {
    /// It sleeps, or waits for a lock, a file, a socket, a child.
    Idle,
    /// It waits for what it needs to go on with its work: the GIL, the allocator's lock.
    ForItsWork,
    /// It waits for something that is not known.
    MayWork,
    /// It runs, or is in a call that works for it.
    Working,
}

impl WaitKind {
    /// Of what the kernel says, beside the locks that a thread takes in the middle of its work.
    pub(in crate::python) fn of(wait: KernelWait, working: &[AddressRange]) -> WaitKind {
        match wait {
            KernelWait::Working => WaitKind::Working,
            wait if wait.is_idle(working) => WaitKind::Idle,
            KernelWait::Lock(_) => WaitKind::ForItsWork,
            _ => WaitKind::MayWork,
        }
    }
}

/// Decides, in this order: a thread that holds the GIL is active; one in a known waiting place is idle, and so is one that waits in
/// the kernel, but for the GIL or the allocator's lock; one that moved since the last sample is active, unless it waits for
/// one of these; one that the kernel says runs, works for it, or waits for a disk is active. That a thread waits is believed
/// where the kernel says so both before its stack was read and after it; that it works, where it says so once. One that
/// waits for threads that allocate in its name (`loss.backward()`), or sleeps in the kernel for what is not known: unknown.
pub(in crate::python) fn classify(signs: ThreadEvidence) -> ThreadActivity {
    if signs.gil {
        return ThreadActivity::Active;
    }
    if signs.in_waiting_place {
        return ThreadActivity::Idle;
    }
    match signs.waits {
        [Some(WaitKind::Idle), Some(WaitKind::Idle)] if !signs.in_engine => {
            return ThreadActivity::Idle;
        }
        // It came here and waits: whether it allocated before that is not to be seen.
        [
            Some(WaitKind::Idle | WaitKind::ForItsWork),
            Some(WaitKind::Idle | WaitKind::ForItsWork),
        ] => {
            return ThreadActivity::Unknown;
        }
        _ => {}
    }
    if signs.moved || signs.waits.contains(&Some(WaitKind::Working)) {
        return ThreadActivity::Active;
    }
    match signs.os_state {
        Some('R' | 'D') => ThreadActivity::Active,
        _ => ThreadActivity::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_places_are_known_by_file_and_function() {
        assert!(is_wait_function("/usr/lib/python3.12/threading.py", "Condition.wait"));
        assert!(is_wait_function("/usr/lib/python3.8/selectors.py", "select"));
        assert!(!is_wait_function("/home/me/my_threading.py", "wait"));
        assert!(!is_wait_function("/usr/lib/python3.12/threading.py", "Thread.run"));
    }

    #[test]
    fn the_gil_outweighs_the_place_and_the_place_the_kernel() {
        let signs = ThreadEvidence {
            gil: false,
            in_waiting_place: true,
            in_engine: false,
            moved: true,
            os_state: Some('R'),
            waits: [None; 2],
        };
        assert_eq!(classify(signs), ThreadActivity::Idle);
        assert_eq!(classify(ThreadEvidence { gil: true, ..signs }), ThreadActivity::Active);
        let elsewhere = ThreadEvidence { in_waiting_place: false, ..signs };
        assert_eq!(classify(elsewhere), ThreadActivity::Active);
        let waiting = ThreadEvidence { waits: [Some(WaitKind::Idle); 2], ..elsewhere };
        assert_eq!(classify(waiting), ThreadActivity::Idle, "it came here and waits");
        let for_engine = ThreadEvidence { in_engine: true, ..waiting };
        assert_eq!(classify(for_engine), ThreadActivity::Unknown, "others allocate for it");
        let for_gil = ThreadEvidence { waits: [Some(WaitKind::ForItsWork); 2], ..elsewhere };
        assert_eq!(classify(for_gil), ThreadActivity::Unknown, "it may have allocated here");
        let still = ThreadEvidence { moved: false, ..elsewhere };
        assert_eq!(classify(still), ThreadActivity::Active);
        assert_eq!(
            classify(ThreadEvidence { os_state: Some('S'), ..still }),
            ThreadActivity::Unknown
        );
    }

    /// It waited for the autograd engine when its state was looked up, and is called as such for 50 ms: at two samples, what
    /// it allocated in between was `[not seen]`.
    #[test]
    fn a_thread_that_runs_is_not_called_asleep_because_it_slept_some_samples_ago() {
        let running = Some(WaitKind::Working);
        let asleep = Some(WaitKind::MayWork);
        let signs = |waits| ThreadEvidence {
            gil: false,
            in_waiting_place: false,
            in_engine: false,
            moved: false,
            os_state: Some('S'),
            waits,
        };
        for waits in [[running, running], [running, asleep], [asleep, running]] {
            assert_eq!(classify(signs(waits)), ThreadActivity::Active, "{waits:?}");
        }
        assert_eq!(classify(signs([asleep, asleep])), ThreadActivity::Unknown);
        let began_to_sleep = [running, Some(WaitKind::Idle)];
        assert_eq!(classify(signs(began_to_sleep)), ThreadActivity::Active);
    }
}
