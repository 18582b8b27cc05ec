//! `--redact`, and the report of `doctor`: nothing of the user, the machine or the program's text
//! is in what they write.

use std::path::Path;

use crate::support::memspy::{memspy, memspy_at};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{Definition, Record};
use memspy::trace::TraceReader;

/// What must not be in a file: the host, the folder of the programs, and words of the source.
fn secrets() -> Vec<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let folder = env!("CARGO_MANIFEST_DIR").to_owned();
    let source = "optimizer.zero_grad(".to_owned();
    let tests = "tests/targets".to_owned();
    // A short name may be a part of any word.
    [format!("\"{host}\""), folder, source, tests].into()
}

#[track_caller]
fn has_none(text: &str, what: &str) {
    for secret in secrets() {
        assert!(!text.contains(&secret), "'{secret}' is in {what}");
    }
}

/// The records with words; the others are numbers.
fn records(trace: &Path) -> String {
    let mut records: Vec<Record> = Vec::new();
    TraceReader::open(trace).unwrap().replay(&mut records).unwrap();
    records.retain(|record| {
        !matches!(
            record,
            Record::Events(_)
                | Record::Sample(_)
                | Record::Snapshot(_)
                | Record::Counters { .. }
                | Record::Definition(Definition::Frame(..) | Definition::Stack(..))
        )
    });
    format!("{records:?}")
}

#[test]
fn a_redacted_trace_or_export_tells_nothing_of_user_machine_and_program() {
    let job = sim::command("train.py", &["--seconds", "600", "--device", "cuda"]);
    let target = Target::start_when(job, |line| line.contains("step "));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (open, redacted) = (path("open.bin"), path("redacted.bin"));
    memspy_at(target.pid(), &["record", "--exact", "-d", "1s", "-o", &open]).ok();
    memspy_at(target.pid(), &["record", "--exact", "--redact", "-d", "1s", "-o", &redacted]).ok();
    let (said, hidden) = (records(Path::new(&open)), records(Path::new(&redacted)));
    assert!(said.contains(env!("CARGO_MANIFEST_DIR")), "without the option, paths are there");
    has_none(&hidden, "the trace");
    assert!(hidden.contains("\"train.py\"") && hidden.contains("train_step"), "names stay");
    assert!(hidden.contains("\"/site-packages/torch/"), "paths in libraries stay");
    // Attribution does not depend on what is left out.
    let lines = memspy(&["lines", &redacted]).ok().out;
    assert!(lines.contains("train_step") && lines.contains("proven 100 %"), "{lines}");
    for format in ["csv", "json", "speedscope", "perfetto", "memory-viz"] {
        let out = path(format);
        memspy(&["export", &open, "-f", format, "--redact", "-o", &out]).ok();
        let written = std::fs::read(&out).unwrap();
        has_none(&String::from_utf8_lossy(&written), format);
        memspy(&["export", &open, "-f", format, "--force", "-o", &out]).ok();
        let written = String::from_utf8_lossy(&std::fs::read(&out).unwrap()).into_owned();
        let has_names = format != "perfetto";
        assert_eq!(written.contains("tests/targets"), has_names, "{format}");
    }
}

#[test]
fn a_report_for_a_bug_has_what_is_asked_for_and_no_secret() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let done = memspy_at(target.pid(), &["doctor", "--report"]).ok();
    has_none(&done.out, "the report");
    assert!(
        done.out.starts_with("```text\nversion: memspy ") && done.out.ends_with("```\n"),
        "{}",
        done.out
    );
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    for part in [
        kernel.trim(),
        "x86_64",
        "ptrace_scope",
        "driver: 580.00",
        "GPU 0: NVIDIA H100",
        "CPython 3.",
        "PyTorch 2.",
        "exact mode",
        "yes  recording",
    ] {
        assert!(done.out.contains(part), "no '{part}' in {}", done.out);
    }
    assert!(!done.out.contains("allocator_truth"), "{}", done.out);
    assert!(done.out.lines().count() > 12 && !done.out.contains("\\n"), "{}", done.out);
    // Without a job, into a file.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.md");
    let words = ["doctor", "--report", path.to_str().unwrap()];
    memspy(&words).ok();
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written.contains("kernel settings: ") && written.contains("GPUs: "), "{written}");
    memspy(&words).refused(&["exists already", "--force"]);
}
