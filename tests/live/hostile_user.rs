//! Another user's job attacks a memspy of root: files, pipes, devices, names, crafted objects, all
//! at once.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::memspy::command;
use crate::support::sim;
use crate::support::target::Target;
use crate::support::terminal::Terminal;

/// Only root may read it.
const SECRET: &str = "SECRET-OF-ROOT-7c1f";
/// Of memspy itself, whatever the heap holds.
const MAX_BYTES: u64 = 1200 << 20;
/// All takes some seconds; this is for a busy machine.
const HANGS: Duration = Duration::from_secs(100);
const MAX_PAUSE: f64 = 0.5;
/// Seconds by which a busy kernel may delay the thread that continues the job.
const LATE: f64 = 1.0;

/// What memspy printed, and its peak memory (0: ended before it was measured).
fn run(pid: u32, words: &[&str]) -> (String, u64) {
    let mut command = command(Some(pid));
    command.args(words).args(["-p", &pid.to_string()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let read = |mut from: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            String::from_utf8(bytes).expect("what memspy prints is UTF-8")
        })
    };
    let (out, err) = (read(Box::new(out)), read(Box::new(err)));
    let since = Instant::now();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<u64>().ok());
        most = most.max(kib.unwrap_or(0) << 10);
        if since.elapsed() > HANGS {
            let _ = child.kill();
            panic!("memspy {words:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = out.join().unwrap() + &err.join().unwrap();
    // It may give up earlier, if the rest is not enough; it says so.
    let is_up = said.contains("the limit of 15s for the snapshot was reached");
    assert!(!is_up || since.elapsed() >= Duration::from_secs(15), "{:?}: {said}", since.elapsed());
    (said, most)
}

/// The longest stop in seconds, as memspy reports it.
fn longest_stop(said: &str) -> Option<f64> {
    let sentence = said.split("the process was stopped for ").nth(1)?;
    let first = sentence.split_once(" ms")?.0.parse::<f64>().ok()?;
    Some(first / 1e3)
}

/// The job's longest standstill in some seconds without memspy, caused by the machine.
fn stands_still_alone(target: &mut Target) -> f64 {
    stood_still(target);
    let second = |_| {
        std::thread::sleep(Duration::from_secs(1));
        stood_still(target)
    };
    (0..2).map(second).fold(0.0, f64::max)
}

/// The job's longest standstill since the last request.
fn stood_still(target: &mut Target) -> f64 {
    target.say("told");
    let told = target.read_until_ready().pop().unwrap();
    serde_json::from_str::<serde_json::Value>(&told).unwrap()["stood_still"].as_f64().unwrap()
}

fn holds_secret(path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap();
    bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes())
}

#[test]
fn a_hostile_users_job_gets_nothing_from_roots_memspy() {
    assert!(nix::unistd::geteuid().is_root(), "only root can start a job of another user");
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let secret = folder.path().join("secret.py");
    std::fs::write(&secret, format!("{SECRET} = 1\n").repeat(50)).unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let paths = [folder.path().to_str().unwrap(), secret.to_str().unwrap()];
    let arguments = [&paths[..], &["\u{1b}]0;PWNED\u{7}"]].concat();
    let mut target = Target::start(sim::command("hostile.py", &arguments));
    let pid = target.pid();
    let alone = stands_still_alone(&mut target);

    let outputs = tempfile::tempdir().unwrap();
    let trace = |name: &str| outputs.path().join(name).to_str().unwrap().to_owned();
    let (sampled, exact) = (trace("sampled.bin"), trace("exact.bin"));
    let pause = format!("{}ms", MAX_PAUSE * 1e3);
    let limits = ["--max-pause", &pause];
    let (mut printed, mut stops, mut seen) = (String::new(), Vec::new(), 0);
    for words in [
        &["record", "--cpu", "10", "-d", "3", "--owners=50", "-o", &sampled][..],
        &["record", "--exact", "-d", "3", "-o", &exact],
        &[&["dump"][..], &limits].concat(),
        &[&["tensors"][..], &limits].concat(),
        &["tensors", "--no-stop"],
        &[&["graph"][..], &limits].concat(),
        &["doctor"],
        &["devices"],
    ] {
        let (text, bytes) = run(pid, words);
        assert!(bytes <= MAX_BYTES, "{words:?} took {} MiB", bytes >> 20);
        seen += usize::from(bytes > 0);
        stops.extend(longest_stop(&text));
        printed.push_str(&text);
    }
    let still = stood_still(&mut target);
    let alone = alone.max(stands_still_alone(&mut target));
    eprintln!("stood still {still} s, alone {alone} s, by memspy itself {stops:?} s");
    assert!(seen >= 4, "only of {seen} the memory was seen");
    // memspy's own measurement keeps its promise.
    assert!(!stops.is_empty(), "none says how long the job stood still: {printed}");
    assert!(stops.iter().all(|stop| *stop <= MAX_PAUSE + LATE), "{stops:?} s");
    // It is right: the job sees hardly more, besides the machine's own delays.
    let limit = MAX_PAUSE + LATE + 2.0 * alone + 1.0;
    assert!(still <= limit, "the job stood still for {still} s ({alone} s alone, {stops:?} s)");

    let terminal = Terminal::start("hostile-user", (100, 30));
    terminal.run(pid, "top");
    terminal.wait_for("the first picture", |screen| screen.contains("GPU 0"));
    terminal.press(&["h"]);
    terminal.press(&["q"]);
    terminal.wait_for_end("code 0");

    for name in [&sampled, &exact] {
        assert!(!holds_secret(Path::new(name)), "{name} holds a file of root");
        for words in
            [&["lines"][..], &["lines", "--json"], &["flame", "-f", "collapsed", "-o", "-"]]
        {
            let mut command = command(None);
            let done = command.args(words).arg(name).output().unwrap();
            let error = String::from_utf8_lossy(&done.stderr);
            // A busy job may have changed its blocks during each of the few snapshots.
            let is_empty = name == &sampled && error.contains("no snapshot of GPU 0 was recorded");
            assert!(done.status.success() || is_empty, "{words:?}: {error}");
            printed.push_str(std::str::from_utf8(&done.stdout).unwrap());
            printed.push_str(std::str::from_utf8(&done.stderr).unwrap());
        }
    }
    assert!(!printed.contains(SECRET), "a file of root was printed");
    let strange = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    assert_eq!(printed.chars().find(|c| strange(*c)), None, "something reached the terminal");
    target.finish();
}
