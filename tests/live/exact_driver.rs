//! Exact events of the CUDA driver: a C program without Python, and PyTorch's segments.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::exact::Exact;
use crate::support::memspy::{Recording, collapsed, memspy_at, total};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::{AddressSpace, CudaIndex, EventKind, MemoryKind, StackSource};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The C program on the simulated driver.
pub(super) fn driver_api(folder: &Path) -> Target {
    let program: PathBuf = folder.join("driver_api");
    let source = root().join("cuda/workloads/driver_api.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-o"]).arg(&program).arg(source).args(["-ldl", "-lpthread"]);
    assert!(compiler.status().unwrap().success());
    let mut command = Command::new(root().join("scripts/with-sim"));
    command.arg(program);
    Target::start(command)
}

/// An event as the program prints it: what, kind, address, bytes.
fn spoken(change: &EventKind) -> Option<(String, String, u64, u64)> {
    let said = |what: &str, kind: &str, address, size| {
        Some((what.to_owned(), kind.to_owned(), address, size))
    };
    match *change {
        EventKind::Allocated { memory_kind, address, size, .. } => {
            let kind = match memory_kind {
                MemoryKind::Driver(_) => "driver",
                MemoryKind::Physical(device) => {
                    assert_eq!(device, Some(CudaIndex(0)));
                    "physical"
                }
                MemoryKind::Mapping => "mapping",
                MemoryKind::Managed => "managed",
                MemoryKind::PinnedHost => "pinned",
                MemoryKind::Torch(_) => return None,
            };
            said("alloc", kind, address, size)
        }
        EventKind::Freed { memory_kind, address, .. } => {
            let kind = match memory_kind {
                AddressSpace::Driver => "driver",
                AddressSpace::Physical => "physical",
                AddressSpace::Mapping => "mapping",
                AddressSpace::PinnedHost => "pinned",
                AddressSpace::Torch => return None,
            };
            said("free", kind, address, 0)
        }
        EventKind::Failed { size, code, .. } => said("failed", "driver", code.into(), size),
        EventKind::Marked(_) => None,
    }
}

#[test]
fn a_c_program_is_seen_call_by_call() {
    let folder = tempfile::tempdir().unwrap();
    let mut target = driver_api(folder.path());
    let mut recording = Recording::start_exact(target.pid(), &[]);
    target.say("go");
    let mut told = Vec::new();
    loop {
        let line = target.line();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["DONE"] => break,
            ["failed", kind, size, code] => told.push((
                "failed".to_owned(),
                kind.to_owned(),
                code.parse().unwrap(),
                size.parse().unwrap(),
            )),
            [what, kind, address, size, _] => told.push((
                what.to_owned(),
                kind.to_owned(),
                address.parse().unwrap(),
                size.parse().unwrap(),
            )),
            _ => assert!(line.starts_with("skipped"), "{line}"),
        }
    }
    let done = recording.interrupt();
    assert!(done.err.contains("no Python"), "{}", done.err);
    assert!(done.err.contains(" 0 lost"), "{}", done.err);
    let exact = Exact::read(recording.trace());
    let seen: Vec<_> = exact.events.iter().filter_map(|e| spoken(&e.change)).collect();
    assert_eq!(seen, told);
    assert!(told.iter().any(|t| t.0 == "failed"), "{told:?}");
    for event in exact.events.iter().filter(|e| e.site.is_some()) {
        assert_eq!(exact.site(event.site).source, StackSource::NoPython);
    }

    // By thread, even of the worker that has ended.
    let stacks = collapsed(recording.trace(), &["--total-allocated"]);
    let all: u64 = told.iter().filter(|t| t.0 == "alloc" && t.1 == "driver").map(|t| t.3).sum();
    assert_eq!(total(&stacks), all);
    assert!(stacks.iter().all(|s| s.0.starts_with("[no Python];thread ")), "{stacks:?}");
    assert_eq!(stacks.len(), 2);
    assert!(stacks.iter().any(|s| s.0.contains("main-c")), "{stacks:?}");
}

#[test]
fn what_is_not_python_is_recorded_only_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let target = driver_api(folder.path());
    let trace = folder.path().join("t.bin");
    let words = ["record", "-d", "1", "-o", trace.to_str().unwrap()];
    memspy_at(target.pid(), &words).refused(&["is not a Python program"]);
}

#[test]
fn the_segments_of_pytorch_are_allocations_of_the_driver() {
    let mut target = sim::start("exact_torch.py", &[]);
    let mut recording = Recording::start_exact(target.pid(), &[]);
    target.say("keep 300000000");
    let truth: serde_json::Value = serde_json::from_str(&target.line()).unwrap();
    let _ = recording.interrupt();
    let exact = Exact::read(recording.trace());
    let segments: Vec<u64> = exact
        .events
        .iter()
        .filter_map(|e| match e.change {
            EventKind::Allocated { memory_kind: MemoryKind::Driver(_), size, .. } => Some(size),
            _ => None,
        })
        .collect();
    let grown =
        |key: &str| truth["after"][key].as_u64().unwrap() - truth["before"][key].as_u64().unwrap();
    assert_eq!(segments.len() as u64, grown("segment.all.allocated"));
    assert_eq!(segments.iter().sum::<u64>(), grown("reserved_bytes.all.allocated"));
    // With the line that made PyTorch request it.
    let stacks = collapsed(recording.trace(), &["--memory", "driver"]);
    assert!(stacks[0].0.contains("exact_torch.py"), "{stacks:?}");
}
