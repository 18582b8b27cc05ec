//! A running job with hostile names, read by every command.

#[path = "../hostile_support/strange.rs"]
mod strange;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::support::memspy::{Done, Recording, command, memspy, run, wait_until};
use crate::support::sim;
use crate::support::target::Target;
use strange::{HOSTILE, strange};

/// A job with hostile names and an argument that is not UTF-8.
fn job(harm: &str) -> Target {
    let mut command = sim::command("hostile_names.py", &[&serde_json::to_string(harm).unwrap()]);
    command.arg(harm).arg(OsStr::from_bytes(b"\xff\xfe.py"));
    Target::start(command)
}

#[track_caller]
fn is_clean(done: &Done, what: &str) {
    for text in [&done.out, &done.err] {
        assert_eq!(strange(text), [], "{what}: {text}");
    }
}

#[test]
#[ignore = "takes a minute, and the fast tests see escapes: scripts/test.sh --all runs it"]
fn a_running_jobs_names_are_escaped_for_terminals() {
    // All attacks in one name; Python allows no NUL in a class name.
    let harm = HOSTILE.concat().replace('\0', "");
    let target = job(&harm);
    let pid = target.pid();
    let looks: [&[&str]; 12] = [
        &["doctor"],
        &["dump"],
        &["dump", "--json"],
        &["dump", "--native", "--idle"],
        &["tensors", "--all-devices", "--limit", "0"],
        &["tensors", "--all-devices", "--each", "--limit", "0"],
        &["tensors", "--json"],
        &["graph"],
        &["devices"],
        &["devices", "--json"],
        &["devices", "--format", "csv"],
        &["pause", "--for", "1s"],
    ];
    for words in looks {
        let done = run(command(Some(pid)).args(words).args(["-p", &pid.to_string()]));
        is_clean(&done, &format!("{words:?}"));
        assert!(done.status.success(), "{words:?}: {}", done.err);
        if words == ["doctor"] {
            assert!(done.out.contains("\\x1b]0;PWNED\\x07"), "{}", done.out);
            assert!(done.out.contains("\\xff\\xfe.py"), "{}", done.out);
        }
    }
    // `referrers` takes the tensor's name.
    let done = run(command(Some(pid)).args(["tensors", "--json", "-p", &pid.to_string()])).ok();
    let tensors: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let all = tensors["tensors"].as_array().unwrap().iter();
    let names: Vec<&str> =
        all.flat_map(|t| t["names"].as_array().unwrap()).filter_map(|n| n.as_str()).collect();
    let evil: Vec<&&str> = names.iter().filter(|name| name.contains('\x1b')).collect();
    assert!(evil.len() >= 3, "{names:?}");
    for name in evil.iter().take(4) {
        let words = ["referrers", **name, "-p", &pid.to_string()];
        is_clean(&run(command(Some(pid)).args(words)), &format!("{words:?}"));
    }
    // Recorded, and read again.
    let mut recording = Recording::start(pid, &["--owners", "-r", "200"]);
    recording.wait_for_block();
    let trace = recording.trace().to_str().unwrap().to_owned();
    let by_holder = ["flame", "-f", "collapsed", "--by", "owner", "-o", "-", &trace];
    wait_until("a look at owners", || memspy(&by_holder).status.success());
    let done = recording.interrupt();
    is_clean(&done, "record");
    for words in [
        &["lines"][..],
        &["lines", "--source"],
        &["lines", "--json"],
        &["lines", "--format", "csv"],
        &["oom-report"],
        &["flame", "-f", "collapsed", "--threads", "-o", "-"],
        &["flame", "-f", "collapsed", "--by", "owner", "-o", "-"],
    ] {
        let done = memspy(&[words, &[&trace]].concat());
        is_clean(&done, &format!("{words:?}"));
        assert!(done.status.success(), "{words:?}: {}", done.err);
        // The name is shown escaped; in JSON it is unchanged.
        if words == ["lines", "--source"] {
            assert!(done.out.contains("work\\x1b]0;PWNED\\x07"), "{}", done.out);
        }
    }
    target.finish();
}

/// A snapshot by a memspy limited to half a gigabyte of memory.
fn bounded_look(pid: u32, words: &[&str]) -> Done {
    let mut look = std::process::Command::new("prlimit");
    look.args(["--data=536870912", env!("CARGO_BIN_EXE_memspy")]);
    run(look.args(words).args(["-p", &pid.to_string()]).stdin(std::process::Stdio::null()))
}

#[test]
fn a_command_line_of_any_length_is_cut() {
    for (what, bytes) in [("zeros", 3u64 << 30), ("words", 50 << 20), ("word", 50 << 20)] {
        let mut job = sim::python();
        job.arg("tests/targets/long_command_line.py").args([what, &bytes.to_string()]);
        let target = Target::start(job);
        let pid = target.pid();
        for words in [&["dump"][..], &["dump", "--json"], &["doctor"]] {
            let done = bounded_look(pid, words).ok();
            let cut = "(the rest is left out: the command line is longer than 64 KiB)";
            assert!(done.out.contains(cut), "{what}: {words:?}: {:.300}", done.out);
            assert!(done.out.len() < 1 << 20, "{what}: {words:?}: {}", done.out.len());
        }
        target.finish();
    }
}
