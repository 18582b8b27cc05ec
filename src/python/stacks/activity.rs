//! Whether a thread is doing anything, as far as that shows from outside.

use crate::model::ThreadActivity;
use crate::target::KernelWait;

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

/// What is known of a thread at a sample.
#[derive(Debug, Clone, Copy)]
pub(in crate::python) struct ThreadEvidence {
    /// It held the GIL.
    pub(in crate::python) gil: bool,
    /// Its innermost frame is a place where threads wait.
    pub(in crate::python) in_waiting_place: bool,
    /// Its innermost frame or instruction differs from the last sample's.
    pub(in crate::python) moved: bool,
    /// The kernel's state of it (`RSD…`), at most 50 ms old; `None` when it was not looked up.
    pub(in crate::python) os_state: Option<char>,
    /// What it waited for in the kernel before its stack was read and after it; `None` where that is not known.
    pub(in crate::python) waits: [Option<KernelWait>; 2],
}

/// Decides, in this order: a thread that holds the GIL is active; one in a known waiting place, or in `time.sleep`, is idle;
/// one that moved since the last sample is active, unless it waits for somebody else by now; one that the kernel says runs,
/// works for it, or waits for a disk is active. That a thread waits is believed where the kernel says so both before its
/// stack was read and after it; that it works, where it says so once. One that sleeps in the kernel at a place not known may
/// be waiting for threads that allocate in its name (`loss.backward()`), or for nothing: unknown.
pub(in crate::python) fn classify(signs: ThreadEvidence) -> ThreadActivity {
    if signs.gil {
        return ThreadActivity::Active;
    }
    let [before, after] = signs.waits;
    let wait = before.filter(|_| before == after);
    if signs.in_waiting_place || wait == Some(KernelWait::Sleep) {
        return ThreadActivity::Idle;
    }
    // It came here and waits: whether it allocated before that is not to be seen.
    if signs.moved && wait == Some(KernelWait::Others) {
        return ThreadActivity::Unknown;
    }
    if signs.moved || signs.waits.contains(&Some(KernelWait::Working)) {
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
            moved: true,
            os_state: Some('R'),
            waits: [None; 2],
        };
        assert_eq!(classify(signs), ThreadActivity::Idle);
        assert_eq!(classify(ThreadEvidence { gil: true, ..signs }), ThreadActivity::Active);
        let elsewhere = ThreadEvidence { in_waiting_place: false, ..signs };
        assert_eq!(classify(elsewhere), ThreadActivity::Active);
        let sleeping = ThreadEvidence { waits: [Some(KernelWait::Sleep); 2], ..elsewhere };
        assert_eq!(classify(sleeping), ThreadActivity::Idle, "it came here and sleeps");
        let reading = ThreadEvidence { waits: [Some(KernelWait::Others); 2], ..elsewhere };
        assert_eq!(classify(reading), ThreadActivity::Unknown, "it came here and waits for input");
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
        let running = Some(KernelWait::Working);
        let asleep = Some(KernelWait::MayWork);
        let signs = |waits| ThreadEvidence {
            gil: false,
            in_waiting_place: false,
            moved: false,
            os_state: Some('S'),
            waits,
        };
        for waits in [[running, running], [running, asleep], [asleep, running]] {
            assert_eq!(classify(signs(waits)), ThreadActivity::Active, "{waits:?}");
        }
        assert_eq!(classify(signs([asleep, asleep])), ThreadActivity::Unknown);
        let began_to_sleep = [running, Some(KernelWait::Sleep)];
        assert_eq!(classify(signs(began_to_sleep)), ThreadActivity::Active);
    }
}
