//! The keeper process of an exact recording's probes: whatever is killed, no breakpoint stays in
//! the job.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::exact::Exact;
use crate::support::memspy::{Recording, command, memspy, memspy_at, wait_until};
use crate::support::sim;
use crate::support::target::Target;
use memspy::target::Process;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The probed libraries.
const PROBED: [&str; 3] = ["libc10_cuda", "libcuda.so", "libpython"];
const WAYS: [&str; 3] = ["uprobe-multi", "perf-bpf", "perf-only"];

/// Probed libraries whose code in memory differs from their file.
pub fn breakpoints(target: &Target) -> Vec<String> {
    let process = Process::open(target.pid()).unwrap();
    let memory = File::open(format!("/proc/{}/mem", target.pid())).unwrap();
    let mut found = Vec::new();
    for mapping in process.mappings().unwrap().iter() {
        let name = mapping.file_name().unwrap_or_default();
        if !mapping.executable || !PROBED.iter().any(|stem| name.starts_with(stem)) {
            continue;
        }
        let mut now = vec![0; (mapping.end.0 - mapping.start.0) as usize];
        memory.read_exact_at(&mut now, mapping.start.0).unwrap();
        let stored = fs::read(mapping.path.as_ref().unwrap()).unwrap();
        let stored = &stored[mapping.offset as usize..];
        let length = stored.len().min(now.len());
        if now[..length] != stored[..length] {
            found.push(name.to_owned());
        }
    }
    found
}

/// The pid of this memspy's keeper.
fn keeper_of(memspy: u32) -> Option<i32> {
    let words = format!("\0keep-probes\0{memspy}\0");
    let is_keeper = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.windows(words.len()).any(|part| part == words.as_bytes()))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_keeper)
}

fn send(pid: i32, signal: Signal) {
    kill(Pid::from_raw(pid), signal).unwrap();
}

/// Continues a stopped keeper. The kernel may have done so: when memspy has ended, nobody outside
/// is in its process group.
fn go_on(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
}

/// Whether it has descriptors that keep probes.
fn has_probes(pid: u32) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|file| {
        let file = file.to_string_lossy();
        file.contains("bpf_link") || file.contains("perf_event")
    })
}

fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.starts_with('T')
}

fn has_gone(pid: i32) -> bool {
    // A zombie has done its work.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z')))
}

/// Whether it waits in the kernel for a message.
fn waits_for_message(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    // recvmsg(2) on x86-64.
    tasks.into_iter().any(|task| {
        fs::read_to_string(task.path().join("syscall")).is_ok_and(|call| call.starts_with("47 "))
    })
}

fn train(target: &mut Target) -> u64 {
    target.say("train 3");
    let truth: serde_json::Value = serde_json::from_str(&target.line()).unwrap();
    let count = |when: &str| truth[when]["allocation.all.allocated"].as_u64().unwrap();
    count("after") - count("before")
}

/// An exactly recording memspy; does not wait until it has attached.
fn start(target: &Target, folder: &Path, way: &str) -> Child {
    let mut command = command(Some(target.pid()));
    command.args([
        "record",
        "--exact",
        "--force",
        "--probes",
        way,
        "-p",
        &target.pid().to_string(),
    ]);
    command.arg("-o").arg(folder.join("trace.bin")).stderr(Stdio::piped()).spawn().unwrap()
}

/// memspy is killed after it asked its stopped keeper for probes, which are then placed although
/// nobody wants them.
#[test]
fn a_memspy_killed_while_its_probes_are_placed_leaves_none() {
    let mut target = sim::start("exact_torch.py", &[]);
    let folder = tempfile::tempdir().unwrap();
    for way in WAYS {
        // A keeper may be faster than the signal that stops it.
        let met = (0..20).any(|_| kill_while_placing(&mut target, folder.path(), way));
        assert!(met, "{way}: no keeper stood still before it had placed the probes");
    }
}

/// Whether memspy waited for its keeper when killed.
fn kill_while_placing(target: &mut Target, folder: &Path, way: &str) -> bool {
    let mut memspy = start(target, folder, way);
    let mut keeper = None;
    wait_until("the keeper is there", || {
        keeper = keeper_of(memspy.id());
        keeper.is_some()
    });
    let keeper = keeper.unwrap();
    send(keeper, Signal::SIGSTOP);
    wait_until("the keeper stands still", || is_stopped(keeper));
    let mut said = String::new();
    let mut errors = BufReader::new(memspy.stderr.take().unwrap());
    let mut waits = false;
    wait_until("memspy waits for its keeper, or has probes", || {
        waits = waits_for_message(memspy.id());
        waits || has_probes(memspy.id())
    });
    memspy.kill().unwrap();
    memspy.wait().unwrap();
    while errors.read_line(&mut said).unwrap() > 0 {}
    assert!(!waits || !said.contains("probes are in place"), "{way}: {said}");
    go_on(keeper);
    wait_until("the keeper has ended", || has_gone(keeper));
    assert_eq!(breakpoints(target), [""; 0], "{way}");
    assert!(train(target) > 0);
    waits
}

/// memspy is killed while its keeper removes the probes.
#[test]
fn a_memspy_killed_while_its_probes_are_removed_leaves_none() {
    let mut target = sim::start("exact_torch.py", &[]);
    for way in WAYS {
        let mut recording = Recording::start_exact(target.pid(), &["--probes", way]);
        let keeper = keeper_of(recording.pid()).unwrap();
        assert!(!breakpoints(&target).is_empty());
        send(keeper, Signal::SIGSTOP);
        wait_until("the keeper stands still", || is_stopped(keeper));
        recording.signal(Signal::SIGINT);
        wait_until("memspy waits for its keeper", || waits_for_message(recording.pid()));
        wait_until("memspy has closed its own", || !has_probes(recording.pid()));
        // The keeper holds the last descriptors, so the kernel removes the probes.
        assert!(!breakpoints(&target).is_empty(), "{way}");
        recording.signal(Signal::SIGKILL);
        assert!(!recording.wait().status.success());
        go_on(keeper);
        wait_until("the keeper has ended", || has_gone(keeper));
        assert_eq!(breakpoints(&target), [""; 0], "{way}");
        assert!(train(&mut target) > 0);
    }
}

#[test]
fn a_dying_keeper_is_awaited_and_takes_no_events() {
    let mut target = sim::start("exact_torch.py", &[]);
    for way in ["uprobe-multi", "perf-bpf"] {
        let mut recording = Recording::start_exact(target.pid(), &["--probes", way]);
        let keeper = keeper_of(recording.pid()).unwrap();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1] {
            send(keeper, signal);
        }
        let mut made = train(&mut target);
        assert!(!has_gone(keeper));
        // In its own process group: Ctrl-C in the terminal does not reach it.
        assert_eq!(nix::unistd::getpgid(Some(Pid::from_raw(keeper))).unwrap().as_raw(), keeper);
        if way == "uprobe-multi" {
            send(keeper, Signal::SIGKILL);
            wait_until("the keeper has been killed", || has_gone(keeper));
            made += train(&mut target);
        }
        let done = recording.interrupt();
        assert!(!Path::new(&format!("/proc/{keeper}")).exists(), "{way}: a zombie is left");
        assert_eq!(Exact::read(recording.trace()).allocated().count() as u64, made, "{}", done.err);
        assert_eq!(breakpoints(&target), [""; 0], "{way}");
    }
}

/// The keeper is memspy's own program, started again; if that cannot be started, memspy works
/// without.
#[test]
fn without_a_keeper_memspy_places_its_probes_itself() {
    let mut target = sim::start("late_cuda.py", &[]);
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("memspy");
    fs::copy(env!("CARGO_BIN_EXE_memspy"), &program).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(root.join("scripts/with-sim"));
    command.args(["--share", &target.pid().to_string()]).arg(&program);
    command.args(["record", "--exact", "-p", &target.pid().to_string()]).stdin(Stdio::null());
    let mut recording = Recording::run(command);
    recording.wait_for("nothing to probe is loaded");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    target.say("import");
    target.read_until_ready();
    wait_until("probes in PyTorch", || {
        breakpoints(&target).iter().any(|name| name.starts_with("libc10_cuda"))
    });
    assert_eq!(keeper_of(recording.pid()), None);
    target.say("use");
    target.read_until_ready();
    recording.interrupt();
    assert_eq!(Exact::read(recording.trace()).allocated().count(), 1);
    assert_eq!(breakpoints(&target), [""; 0]);
}

#[test]
fn doctor_reports_on_the_keeper_which_nobody_else_can_use() {
    let target = sim::start("exact_torch.py", &[]);
    let said = memspy_at(target.pid(), &["doctor"]).ok().out;
    assert!(said.contains("a helper process can hold the probes"), "{said}");
    memspy(&["keep-probes"]).refused(&["memspy itself starts this"]);
    let help = memspy(&["--help"]).ok().out;
    assert!(!help.contains("keep-probes"), "{help}");
}
