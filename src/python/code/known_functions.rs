//! Library functions that say what their thread does.

/// Functions that only wait, by file suffix. Waits in C (`time.sleep`, `Lock.acquire`,
/// `SimpleQueue.get`) have no frame; a caller that does nothing else is listed.
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

pub(in crate::python) fn is_wait_function(file: &str, name: &str) -> bool {
    let own = name.rsplit('.').next().unwrap_or(name);
    WAITING.iter().any(|(suffix, names)| file.ends_with(suffix) && names.contains(&own))
}

/// The autograd engine's threads allocate on its behalf.
pub(in crate::python) fn is_engine_function(file: &str, name: &str) -> bool {
    let own = name.rsplit('.').next().unwrap_or(name);
    match own {
        "_engine_run_backward" => file.ends_with("torch/autograd/graph.py"),
        "backward" | "grad" => file.ends_with("torch/autograd/__init__.py"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_waits_are_matched_by_file_and_function() {
        assert!(is_wait_function("/usr/lib/python3.12/threading.py", "Condition.wait"));
        assert!(is_wait_function("/usr/lib/python3.8/selectors.py", "select"));
        assert!(!is_wait_function("/home/me/my_threading.py", "wait"));
        assert!(!is_wait_function("/usr/lib/python3.12/threading.py", "Thread.run"));
    }
}
