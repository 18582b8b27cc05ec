//! Whether a thread is doing anything, as far as that shows from outside.

use crate::model::Activity;

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
pub(super) fn waits(file: &str, name: &str) -> bool {
    // Qualified names end in the function's own.
    let own = name.rsplit('.').next().unwrap_or(name);
    WAITING.iter().any(|(suffix, names)| file.ends_with(suffix) && names.contains(&own))
}

/// What is known of a thread at a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Signs {
    /// It held the GIL.
    pub(super) gil: bool,
    /// Its innermost frame is a place where threads wait.
    pub(super) in_waiting_place: bool,
    /// Its innermost frame or instruction differs from the last sample's.
    pub(super) moved: bool,
    /// The kernel's state of it (`RSD…`), at most 50 ms old; `None` when it was not looked up.
    pub(super) os_state: Option<char>,
}

/// Decides, in this order: a thread that holds the GIL is active; one in a known waiting place is idle;
/// one that moved since the last sample is active; one that the kernel says runs or waits for a disk is
/// active. One that sleeps in the kernel at a place not known may be waiting for threads that allocate
/// in its name (`loss.backward()`), or for nothing: unknown.
pub(super) fn judge(signs: Signs) -> Activity {
    if signs.gil {
        return Activity::Active;
    }
    if signs.in_waiting_place {
        return Activity::Idle;
    }
    if signs.moved {
        return Activity::Active;
    }
    match signs.os_state {
        Some('R' | 'D') => Activity::Active,
        _ => Activity::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_places_are_known_by_file_and_function() {
        assert!(waits("/usr/lib/python3.12/threading.py", "Condition.wait"));
        assert!(waits("/usr/lib/python3.8/selectors.py", "select"));
        assert!(!waits("/home/me/my_threading.py", "wait"));
        assert!(!waits("/usr/lib/python3.12/threading.py", "Thread.run"));
    }

    #[test]
    fn the_gil_outweighs_the_place_and_the_place_the_kernel() {
        let signs = Signs { gil: false, in_waiting_place: true, moved: true, os_state: Some('R') };
        assert_eq!(judge(signs), Activity::Idle);
        assert_eq!(judge(Signs { gil: true, ..signs }), Activity::Active);
        let elsewhere = Signs { in_waiting_place: false, ..signs };
        assert_eq!(judge(elsewhere), Activity::Active);
        let still = Signs { moved: false, ..elsewhere };
        assert_eq!(judge(still), Activity::Active);
        assert_eq!(judge(Signs { os_state: Some('S'), ..still }), Activity::Unknown);
    }
}
