//! Files of `/proc` are opened in one place, which bounds each read.

use super::floors::Sources;
use super::source::{Source, UsedPath};

/// Only this file knows where `/proc` is.
const HOME: &str = "src/target/proc_files.rs";
/// They ask it for the name of a link or folder, and read no file behind it.
const NAMES: [&str; 3] =
    ["src/target/process.rs", "src/target/job_files.rs", "src/target/left_behind.rs"];
/// They read `/proc` through the crate procfs: `stat`, `status`, lists of threads and processes,
/// links, uptime. The kernel writes each of their fields; a job can lengthen none.
const PROCFS: [&str; 4] = [
    "src/target/process.rs",
    "src/target/process/threads.rs",
    "src/target/host_pids.rs",
    "src/target/left_behind.rs", // how long a tick of the kernel's clock is
];
/// That crate reads these to the end, however long a job makes them.
const UNBOUNDED: [&str; 10] = [
    "cmdline",
    "environ",
    "maps",
    "smaps",
    "smaps_rollup",
    "mountinfo",
    "mountstats",
    "open_relative",
    "open_relative_flags",
    "auxv",
];
/// The room that calls py-spy, which reads `/proc` without bounds. It is used only for jobs with
/// all of memspy's rights: such a job could spend as much itself (`has_no_more_rights`).
const PY_SPY: &str = "python";

fn uses(source: &Source, names: &[&str]) -> bool {
    let is_it = |own: &[String]| own.iter().map(String::as_str).eq(names.iter().copied());
    source.paths.iter().any(|path| matches!(path, UsedPath::Own(own) if is_it(own)))
}

fn uses_crate(source: &Source, name: &str) -> bool {
    let is_it = |names: &[String]| names.first().is_some_and(|first| *first == name);
    source.paths.iter().any(|path| matches!(path, UsedPath::External(names) if is_it(names)))
}

/// Reports every other way to `/proc`.
pub fn check(sources: &Sources, complain: &mut dyn FnMut(String)) {
    for (file, source) in sources {
        let is_path = |text: &&String| text.starts_with("/proc") && !text.contains(' ');
        if let Some(text) = source.texts.iter().find(is_path).filter(|_| file != HOME) {
            complain(format!("{file}: {text:?}: only {HOME} opens files of /proc, with a bound"));
        }
        let has_names = uses(source, &["target", "proc_files", "path"])
            || uses(source, &["target", "proc_files", "root"]);
        if has_names && !NAMES.contains(&file.as_str()) {
            complain(format!("{file}: takes a name in /proc; read it by a function of {HOME}"));
        }
        if uses_crate(source, "procfs") && !PROCFS.contains(&file.as_str()) {
            complain(format!("{file}: the crate procfs reads without bounds; see {HOME}"));
        }
        if let Some(method) = UNBOUNDED.iter().find(|it| source.methods.contains(**it))
            && PROCFS.contains(&file.as_str())
        {
            complain(format!("{file}: {method}() reads without a bound what a job makes long"));
        }
        if uses_crate(source, "py_spy") && source.room() != PY_SPY {
            complain(format!("{file}: py-spy reads /proc without bounds"));
        }
    }
}

#[test]
fn another_way_to_the_files_of_a_process_is_seen() {
    let of = |file: &str, text: &str| {
        let names = file.strip_prefix("src/").unwrap().strip_suffix(".rs").unwrap();
        let module = names.split('/').map(str::to_owned).collect();
        let sources = Sources::from([(file.to_owned(), Source::parse(text, module))]);
        let mut complaints = Vec::new();
        check(&sources, &mut |complaint| complaints.push(complaint));
        complaints
    };
    for (file, text) in [
        ("src/gpu/x.rs", r#"fn f() { std::fs::read("/proc/1/cmdline"); }"#),
        ("src/gpu/x.rs", r#"fn f() { std::fs::read(format!("/proc/{pid}/maps")); }"#),
        ("src/suspend/x.rs", "use procfs::Meminfo; fn f() { Meminfo::current(); }"),
        ("src/target/process.rs", "fn f(live: &procfs::process::Process) { live.environ(); }"),
        ("src/target/x.rs", "use super::proc_files; fn f() { proc_files::path(1, \"maps\"); }"),
        ("src/cli/x.rs", "use py_spy::Config;"),
    ] {
        assert_eq!(of(file, text).len(), 1, "{file}: {text}: {:?}", of(file, text));
    }
    let allowed =
        r#"use procfs::process::Process; fn f(p: &Process) { p.stat(); g("/proc is not there"); }"#;
    assert_eq!(of("src/target/process.rs", allowed), [""; 0]);
}
