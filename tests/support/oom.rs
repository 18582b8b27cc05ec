//! `tests/targets/oom.py` on a simulated card of 4 GiB, and the report on it.

use serde_json::Value;

use super::sim;
use super::target::Target;

/// The job, and what it says of itself.
pub fn start(arguments: &[&str]) -> (Target, Value) {
    let mut command = sim::command("oom.py", arguments);
    command.env("SIM_CUDA_TOTAL_BYTES", "4G").stderr(std::process::Stdio::null());
    let target = Target::start(command);
    let known = serde_json::from_str(&target.said[0]).unwrap();
    (target, known)
}

/// Requests something and waits until it is done.
pub fn ask(target: &mut Target, request: &str) {
    target.say(request);
    target.read_until_ready();
}

/// Its line of that name as shown: `oom.py:LINE)`.
pub fn place(known: &Value, name: &str) -> String {
    format!("oom.py:{})", known["lines"][name]["line"])
}

/// The report beside a trace.
pub fn verdict_of(trace: &std::path::Path) -> String {
    std::fs::read_to_string(trace.with_extension("oom-report.txt")).unwrap()
}

#[track_caller]
pub fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}
