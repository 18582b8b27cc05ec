//! Repeated snapshots (`tensors --every`), and several at once.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use crate::support::target::Target;
use memspy::render::json::OwnershipJson;
use nix::sys::ptrace;
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::Value;

/// A `memspy tensors --every`, killed when dropped.
struct Watch {
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// The next line with `text`.
#[track_caller]
fn until(lines: &Receiver<String>, text: &str) -> String {
    let mut seen = Vec::new();
    loop {
        match lines.recv_timeout(Duration::from_secs(60)) {
            Ok(line) if line.contains(text) => return line,
            Ok(line) => seen.push(line),
            Err(error) => panic!("no '{text}' ({error}) in {seen:#?}"),
        }
    }
}

impl Watch {
    fn start(target: &Target, words: &[&str]) -> Watch {
        let mut command = crate::support::memspy::command(Some(target.pid()));
        command.args(["tensors", "--every", "0.2", "-p", &target.pid().to_string()]).args(words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        let err = lines(child.stderr.take().unwrap());
        Watch { child, out, err }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("memspy said: {:#?}", self.err.iter().collect::<Vec<_>>());
        }
    }
}

fn is_timestamp(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000/00/00 00:00:00.000"
}

#[test]
fn listed_cpu_tensors_stay_when_the_first_gpu_tensor_comes() {
    let mut target = sim::start("watched.py", &[]);
    let watch = Watch::start(&target, &["--each"]);
    until(&watch.out, "[1000, 1000]");
    target.say("gpu");
    target.read_until_ready();
    let came = until(&watch.out, "[1048576]");
    assert!(came.starts_with("+ 1 x 4.00 MiB") && came.contains("  cuda:0  "), "{came}");
    target.say("clear");
    target.read_until_ready();
    let went = until(&watch.out, "[1000, 1000]");
    assert!(went.starts_with("- 3 x 3.81 MiB") && went.contains("  cpu  "), "{went}");
}

#[test]
fn every_entry_has_its_time_and_what_is_allocated() {
    let mut target = sim::start("watched.py", &[]);
    target.say("gpu");
    target.read_until_ready();
    let watch = Watch::start(&target, &[]);
    for what in ["cuda:0: 4.00 MiB allocated", "cuda:0: 4.00 MiB allocated, 1 storage"] {
        let head = until(&watch.out, "  at ");
        assert!(is_timestamp(&head[..23]), "{head}");
        assert!(until(&watch.out, "cuda:0").starts_with(what));
    }
    drop(watch);
    let watch = Watch::start(&target, &["--json"]);
    for _ in 0..2 {
        let snapshot = document::<OwnershipJson>(&until(&watch.out, "{"));
        assert!(is_timestamp(snapshot["timestamp"].as_str().unwrap()));
        assert_eq!(snapshot["devices"]["cuda:0"]["allocated"], 4 << 20);
        assert!(
            snapshot["place"].as_str().unwrap().contains("handshake.py"),
            "{}",
            snapshot["place"]
        );
    }
}

#[test]
fn logical_bytes_and_elements_of_all_tensors_are_printed() {
    let mut target = sim::start("watched.py", &[]);
    target.say("gpu");
    let truth: Value = serde_json::from_str(target.read_until_ready().last().unwrap()).unwrap();
    let snapshot = memspy_at(target.pid(), &["tensors", "--json"]).ok().out;
    let snapshot: Value = serde_json::from_str(&snapshot).unwrap();
    for (device, sums) in truth.as_object().unwrap() {
        assert_eq!(&snapshot["devices"][device]["python_tensors"], sums, "{device}");
    }
    let text = memspy_at(target.pid(), &["tensors", "--all-devices"]).ok().out;
    for said in ["8.00 MiB in 2 tensors, 2,097,152 elements", "in 4 tensors, 3,010,000 elements"] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
#[ignore = "takes half a minute, and a_watch_goes_on_after_another_tracer_has_left sees two tracers: scripts/test.sh --all runs it"]
fn two_memspys_at_once_wait_for_one_another() {
    let target = sim::start("watched.py", &[]);
    let watches = [Watch::start(&target, &["--json"]), Watch::start(&target, &["--json"])];
    for watch in &watches {
        until(&watch.out, "{");
    }
    for _ in 0..6 {
        memspy_at(target.pid(), &["tensors"]).ok();
    }
    for mut watch in watches {
        assert_eq!(
            watch.child.try_wait().unwrap(),
            None,
            "it has ended: {:?}",
            watch.err.try_recv()
        );
        until(&watch.out, "{");
    }
}

#[test]
fn a_watch_goes_on_after_another_tracer_has_left() {
    let target = sim::start("watched.py", &[]);
    let watch = Watch::start(&target, &["--json"]);
    until(&watch.out, "{");
    let held = Pid::from_raw(target.pid() as i32);
    // The watch may hold it at this moment.
    while ptrace::attach(held).is_err() {
        std::thread::yield_now();
    }
    waitpid(held, None).unwrap();
    let said = until(&watch.err, "a snapshot was left out");
    assert!(said.contains("is being traced by another process (holders_watch"), "{said}");
    while watch.out.try_recv().is_ok() {}
    ptrace::detach(held, None).unwrap();
    until(&watch.out, "{");
}
