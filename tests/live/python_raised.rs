//! Exceptions of a running CPython, of every version: text, and where they were raised.

use crate::support::pythons::{self, Python};
use crate::support::target::Target;
use memspy::python::{ExceptionFinder, FoundException, InterpreterReader};
use memspy::target::Process;
use serde_json::Value;

struct Job {
    target: Target,
    lines: Value,
    exceptions: ExceptionFinder,
}

impl Job {
    fn start(python: &Python) -> Job {
        let target = Target::start(python.target("raised.py"));
        let known: Value = serde_json::from_str(&target.said[0]).unwrap();
        let process = Process::open(target.pid()).unwrap();
        let reader = InterpreterReader::attach_own(&process).unwrap();
        let exceptions = reader.exceptions(&process, "OutOfMemoryError").unwrap();
        Job { target, lines: known["lines"].clone(), exceptions }
    }

    fn line(&self, name: &str) -> u32 {
        self.lines[name]["line"].as_u64().unwrap() as u32
    }

    /// What is found while the job does this, and after it.
    fn during(&mut self, request: &str) -> (Vec<FoundException>, Vec<FoundException>) {
        self.target.say(request);
        self.target.read_until_ready();
        let during = self.exceptions.find(true);
        self.target.say("go on");
        self.target.read_until_ready();
        (during, self.exceptions.find(true))
    }
}

fn frames(raised: &FoundException) -> Vec<(&str, u32)> {
    let last = |name: &'_ str| name.rsplit('.').next().unwrap_or_default().len();
    let short = |f: &'_ memspy::model::Function| f.name.len() - last(&f.name);
    raised.frames.iter().map(|(f, line)| (&f.name[short(f)..], *line)).collect()
}

fn check(python: &Python) {
    let mut job = Job::start(python);
    let label = &python.label;
    assert_eq!(job.exceptions.find(true), [], "{label}");
    let (raised, called) = (job.line("raised"), job.line("called"));
    for (request, size) in [
        ("handled", 1),
        ("nested", 2),
        ("chained", 3),
        ("context", 3),
        ("threaded", 1),
        ("generator", 4),
        ("last", 5),
    ] {
        let (during, after) = job.during(request);
        assert_eq!(after, [], "{label}: after {request}");
        let [found] = &during[..] else { panic!("{label}: {request}: {during:?}") };
        assert_eq!(found.text, format!("Tried to allocate {size}.00 GiB. é"), "{label}: {request}");
        let frames = frames(found);
        assert_eq!(frames[..2], [("fail", raised), ("between", called)], "{label}: {request}");
        assert_eq!(found.python_id.is_some(), request != "last", "{label}: {request}");
        let names: Vec<&str> = frames[2..].iter().map(|(name, _)| *name).collect();
        let callers: &[&str] = match request {
            "handled" => &["handled", "main", "<module>"],
            "nested" => &["nested", "main", "<module>"],
            "chained" => &["convert", "chained", "main", "<module>"],
            "context" => &["convert", "chained", "<lambda>", "main", "<module>"],
            "threaded" => &["handled", "run", "_bootstrap_inner", "_bootstrap"],
            "generator" => &["steps", "generator", "main", "<module>"],
            _ => &["<module>"],
        };
        assert_eq!(names[..callers.len()], *callers, "{label}: {request}");
        if request == "handled" {
            assert_eq!(frames[2].1, job.line("asked"), "{label}: where it was asked, not handled");
        }
    }
    let (other, _) = job.during("other");
    assert_eq!(other, [], "{label}");
    job.target.finish();
}

#[test]
fn an_error_is_found_while_raised_handled_or_chained() {
    for python in pythons::one_per_version() {
        check(&python);
    }
}

#[test]
fn a_job_that_is_gone_has_none() {
    let mut job = Job::start(&pythons::newest_here());
    job.target.kill();
    assert_eq!(job.exceptions.find(true), []);
}
