//! Another user's process: what may not be read gets one clear line. As root, memspy reads for a
//! job only what its user could.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::memspy::run;
use crate::support::pythons;
use crate::support::target::Target;
use memspy::model::Record;

#[test]
fn another_users_process_is_refused_with_the_remedy() {
    assert_root();
    let target = Target::start(pythons::newest_here().target("life.py"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = folder.path().join("memspy");
    std::fs::copy(env!("CARGO_BIN_EXE_memspy"), &program).unwrap();
    let as_nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        run(command.args(words).args(["-p", &target.pid().to_string()]).current_dir(folder.path()))
    };
    for words in [&["record"][..], &["dump"]] {
        as_nobody(words).refused(&["user 0", "user 65534", "sudo"]);
    }
    let doctor = as_nobody(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(doctor.out.contains("NO"), "{}", doctor.out);
    assert!(doctor.out.contains("sudo"), "{}", doctor.out);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is left behind: {left:?}");
    target.finish();
}

/// Only root can start processes as another user.
#[track_caller]
fn assert_root() {
    assert!(nix::unistd::geteuid().is_root(), "this test has to run as root");
}

/// A user that owns nothing.
const NOBODY: u32 = 65534;
const SECRET: &str = "root:only-root-may-read-this";
const OPEN: &str = "first line that everybody may read";

/// A folder readable by all, with files.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Files(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates root's file with this mode; returns its name.
    fn with(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.path(name);
        std::fs::write(&path, format!("{text}\nsecond line\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// A job of [`NOBODY`] whose functions claim to come from `files`.
fn job(words: &[&str], files: &[&str]) -> Target {
    let mut command = pythons::newest_here().target("named_files.py");
    Target::start({
        command.args(["--user", &NOBODY.to_string()]).args(words).args(files);
        command
    })
}

/// Records `target` for a moment; returns the trace's source texts and memspy's output.
#[track_caller]
fn sources(target: &Target) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.bin");
    let mut command = crate::support::memspy::command(None);
    command
        .args(["record", "--cpu", "10", "-d", "0.5", "-p", &target.pid().to_string(), "-o"])
        .arg(&trace);
    let said = in_time(command);
    let mut records: Vec<Record> = Vec::new();
    memspy::trace::TraceReader::open(&trace).unwrap().replay(&mut records).unwrap();
    let text = |record: Record| match record {
        Record::Source(source) => Some(source.text.to_string()),
        _ => None,
    };
    (records.into_iter().filter_map(text).collect(), said)
}

/// Runs a memspy that must end by itself; returns its output.
#[track_caller]
fn in_time(mut command: Command) -> String {
    let errors = tempfile::NamedTempFile::new().unwrap();
    let mut child = command.stdout(Stdio::null()).stderr(errors.reopen().unwrap()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let said = || std::fs::read_to_string(errors.path()).unwrap();
    loop {
        match child.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{status}: {}", said());
                return said();
            }
            None if Instant::now() > end => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("memspy hangs: {}", said());
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[test]
fn a_recording_and_its_verdict_are_private_by_default() {
    let target = Target::start(pythons::newest_here().target("life.py"));
    let folder = tempfile::tempdir().unwrap();
    let record = |words: &[&str]| {
        let mut command = crate::support::memspy::command(None);
        command.args([
            "record",
            "--cpu",
            "10",
            "-d",
            "0.3",
            "--keep",
            "60s",
            "--until",
            "allocated>1T",
        ]);
        command.args(["-p", &target.pid().to_string(), "-o"]).arg(folder.path().join("t.bin"));
        command.args(words);
        in_time(command);
        ["t.bin", "t.oom-report.txt"].map(|name| {
            let path = folder.path().join(name);
            std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
        })
    };
    assert_eq!(record(&[]), [0o600; 2]);
    assert_eq!(record(&["--force"]), [0o600; 2]);
    assert_eq!(record(&["--force", "--file-mode", "644"]), [0o644; 2]);
    target.finish();
}

/// A thread's rights, from `/proc/…/status`.
fn rights(status: &str) -> Vec<(String, u64)> {
    let lines = status.lines().filter_map(|line| line.split_once(":\t"));
    let lines = lines.filter(|(name, _)| ["CapEff", "CapPrm", "NoNewPrivs"].contains(name));
    lines.map(|(name, hex)| (name.to_owned(), u64::from_str_radix(hex, 16).unwrap())).collect()
}

#[test]
fn a_recorder_of_root_keeps_only_the_rights_it_needs() {
    assert_root();
    const SYS_PTRACE: u64 = 1 << 19;
    const NOT_NEEDED: u64 = 1 << 16 | 1 << 21 | 1 << 12; // SYS_MODULE, SYS_ADMIN, NET_ADMIN
    let target = Target::start(pythons::newest_here().target("life.py"));
    let mut recording = crate::support::memspy::Recording::start(target.pid(), &[]);
    recording.wait_for_block();
    let threads = std::fs::read_dir(format!("/proc/{}/task", recording.pid())).unwrap();
    let mut seen = 0;
    for thread in threads {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        let has = rights(&status);
        assert_eq!(has.len(), 3, "{status}");
        for (name, bits) in &has {
            match name.as_str() {
                "NoNewPrivs" => assert_eq!(*bits, 1, "{status}"),
                _ => assert!(bits & NOT_NEEDED == 0 && bits & SYS_PTRACE != 0, "{status}"),
            }
        }
        seen += 1;
    }
    assert!(seen > 1, "it has threads");
    recording.interrupt();
    target.finish();
}

#[test]
fn a_program_started_by_memspy_has_all_of_its_rights() {
    let folder = tempfile::tempdir().unwrap();
    let program = "import time; time.sleep(0.5); print(open('/proc/self/status').read())";
    let mut command = crate::support::memspy::command(None);
    command.args(["record", "--cpu", "10", "-o"]).arg(folder.path().join("t.bin"));
    let done = run(command.args(["--", "python3", "-c", program])).ok();
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    assert_eq!(rights(&done.out), rights(&own));
}

#[test]
fn code_that_opens_named_files_avoids_other_users_jobs() {
    assert_root();
    let files = Files::new();
    // A library named like an unknown Python, in a program that is no Python.
    let library = files.path("libpython3.6.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&library);
    assert!(compiler.status().unwrap().success());
    let start = |user: u32| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), "--clear-groups", "cat"]);
        command.env("LD_PRELOAD", &library).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let comm = format!("/proc/{}/comm", child.id());
        while std::fs::read(&comm).unwrap() != b"cat\n" {
            std::thread::yield_now();
        }
        let process = memspy::target::Process::open(child.id()).unwrap();
        let is_library = |name: &str| name.starts_with("libpython");
        while process.mappings().unwrap().object(is_library).is_none() {
            std::thread::yield_now();
        }
        let done = crate::support::memspy::memspy_at(child.id(), &["dump"]);
        child.kill().unwrap();
        child.wait().unwrap();
        done
    };
    start(NOBODY).refused(&["CPython 3.6 is not known", "no more rights than the job"]);
    let own = start(0);
    assert!(!own.err.contains("no more rights"), "{}", own.err);
    own.refused(&["CPython 3.6 is not known"]);
}

#[test]
fn roots_private_file_gets_into_no_other_users_trace() {
    assert_root();
    let files = Files::new();
    let secret = files.with("secret.py", SECRET, 0o600);
    let open = files.with("open.py", OPEN, 0o644);
    let link = files.path("link.py");
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    std::fs::create_dir(files.path("closed")).unwrap();
    let inside = files.with("closed/inside.py", SECRET, 0o644);
    std::fs::set_permissions(files.path("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    let environment = "/proc/self/environ";
    let target = job(&[], &[&secret, link.to_str().unwrap(), &inside, environment, &open]);
    let (texts, _) = sources(&target);
    assert!(texts.iter().any(|text| text.starts_with(OPEN)), "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains(SECRET)), "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains("PATH=")), "{texts:?}");
}

#[test]
fn a_link_in_a_jobs_root_does_not_lead_outside() {
    assert_root();
    let files = Files::new();
    let outside = files.with("outside.py", SECRET, 0o644);
    let root = files.path("root");
    std::fs::create_dir(&root).unwrap();
    files.with("root/open.py", OPEN, 0o644);
    std::os::unix::fs::symlink(&outside, root.join("link.py")).unwrap();
    std::os::unix::fs::symlink("/open.py", root.join("good.py")).unwrap();
    let up = Path::new("/../..").join(outside.strip_prefix("/").unwrap());
    let words = ["--chroot", root.to_str().unwrap()];
    let target = job(&words, &["/link.py", up.to_str().unwrap(), "/good.py"]);
    let (texts, _) = sources(&target);
    assert!(texts.iter().any(|text| text.starts_with(OPEN)), "{texts:?}");
    assert!(!texts.iter().any(|text| text.contains(SECRET)), "{texts:?}");
}

#[test]
fn a_pipe_or_device_named_as_source_stops_nothing() {
    assert_root();
    let files = Files::new();
    let pipe = files.path("pipe.py");
    assert!(Command::new("mkfifo").args(["-m", "666"]).arg(&pipe).status().unwrap().success());
    let open = files.with("open.py", OPEN, 0o644);
    let pipe = pipe.to_str().unwrap();
    let target = job(&[], &[pipe, "/dev/ptmx", "/dev/zero", &open]);
    let (texts, _) = sources(&target);
    assert!(texts.iter().any(|text| text.starts_with(OPEN)), "{texts:?}");
}
