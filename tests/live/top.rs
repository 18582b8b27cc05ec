//! `memspy top` in a terminal: tmux shows it a job on the simulated device, presses keys, reads the
//! screen.

use std::process::{Command, Stdio};

use crate::support::memspy::{command, memspy_at, wait_until};
use crate::support::sim;
use crate::support::target::Target;
use crate::support::terminal::Terminal;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// What the simulated job says about itself.
fn truth(target: &Target) -> Value {
    let said = target.said.iter().find(|line| line.starts_with('{')).unwrap();
    serde_json::from_str(said).unwrap()
}

/// The size, two words, before a name on its line.
#[track_caller]
fn size_before(screen: &str, column: usize, name: &str) -> String {
    let line = screen.lines().find(|line| line.contains(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in\n{screen}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    words[2 * column..2 * column + 2].join(" ")
}

fn mib(bytes: i64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
}

#[test]
fn a_job_that_holds_still_is_shown_to_the_byte() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let device = &truth(&target)["devices"][0];
    let stat = |key: &str| device["stats"][key].as_i64().unwrap();
    let (allocated, reserved) =
        (stat("allocated_bytes.all.current"), stat("reserved_bytes.all.current"));
    let terminal = Terminal::start("truth", (160, 40));
    terminal.run(target.pid(), "top");
    let expected = [
        format!("allocated {}  ", mib(allocated)),
        format!("cached free {}  ", mib(reserved - allocated)),
        "other processes 0 B".to_owned(),
        format!("{} in blocks", mib(allocated)),
    ];
    let screen = terminal
        .wait_for("the counters", |screen| expected.iter().all(|part| screen.contains(part)));
    // What the driver attributes to the job, less PyTorch's part.
    let dump = memspy_at(target.pid(), &["dump", "--json", "--no-stop"]).ok();
    let dump: Value = serde_json::from_str(&dump.out).unwrap();
    let outside = mib(dump["devices"][0]["outside_pytorch"].as_i64().unwrap());
    assert!(screen.contains(&format!("outside PyTorch {outside}")), "{outside}: {screen}");
    let (own, total) = (
        size_before(&screen, 0, "[before recording]"),
        size_before(&screen, 1, "[before recording]"),
    );
    assert_eq!((own, total), (mib(allocated), mib(allocated)));

    terminal.press(&["h"]);
    let screen = terminal.wait_for("holders", |screen| screen.contains("the job was stopped for"));
    let title = format!("By owner: {}", mib(allocated));
    assert!(screen.contains(&title), "{screen}");
    terminal.press(&["q"]);
    terminal.wait_for_end("code 0");
    target.finish();
}

#[test]
fn a_training_job_in_80_columns_and_its_end() {
    let mut command = sim::command("train.py", &["--seconds", "30", "--layers", "2"]);
    command.env("PYTHONUNBUFFERED", "1");
    let mut target = Target::start_when(command, |line| line.starts_with("step"));
    let terminal = Terminal::start("train", (80, 24));
    terminal.run(target.pid(), "top --refresh 0.5");
    let screen = terminal.wait_for("lines of the job", |screen| {
        screen.contains("train.py:")
            && screen.contains("(the program's own lines)")
            // The evidence: followed, or not yet.
            && screen.contains("lines: proven ")
    });
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    terminal.press(&["s"]);
    terminal.wait_for("stacks", |screen| screen.contains("By stack:") && screen.contains(" ← "));
    terminal.press(&["Space"]);
    let frozen = terminal.wait_for("a frozen picture", |screen| screen.contains("FROZEN"));
    terminal.press(&["Down", "Enter"]);
    terminal.wait_for("a stack in full", |screen| screen.contains("innermost first:"));
    terminal.press(&["Escape"]);
    let still = terminal.wait_for("the list", |screen| !screen.contains("innermost first:"));
    assert_eq!(frozen.lines().nth(3), still.lines().nth(3), "a frozen picture has moved");
    terminal.press(&["p", "?"]);
    terminal.wait_for("help", |screen| screen.contains("by Python stack"));
    terminal.press(&["x", "l"]);
    terminal.wait_for("the list of lines", |screen| {
        !screen.contains("by Python stack") && !screen.contains("By stack:")
    });
    terminal.ask(&["resize-window", "-x", "40", "-y", "10"]);
    terminal.wait_for("a small picture, whole", |screen| {
        ["OWN", "alloc "].iter().all(|word| screen.contains(word))
            && screen.lines().all(|line| line.chars().count() <= 40)
    });
    terminal.ask(&["resize-window", "-x", "80", "-y", "24"]);

    // Where SIGINT is ignored, as in a shell's background, it ends at its time limit.
    kill(Pid::from_raw(target.pid().cast_signed()), Signal::SIGINT).unwrap();
    assert!(target.wait().success());
    let screen = terminal.wait_for("the end of the job", |screen| screen.contains("ENDED"));
    assert!(screen.contains("the job has ended; this is the last picture"), "{screen}");
    let said = target.finish();
    let value = |name: &str| -> u64 {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap();
        line.split(' ').nth(1).unwrap().parse().unwrap()
    };
    // The job's own figures, rounded like the picture: three digits.
    let short = |bytes: u64| match bytes as f64 / f64::from(1 << 20) {
        mib if mib >= 1023.5 => format!("{:.2} GiB", mib / 1024.0),
        mib => format!("{} MiB", mib as u64),
    };
    let peak = format!(
        "peak: allocated {}, reserved {}",
        short(value("max_memory_allocated")),
        short(value("max_memory_reserved"))
    );
    assert!(screen.contains(&peak), "no {peak} in\n{screen}");
    terminal.press(&["q"]);
    terminal.wait_for_end("code 0");
}

#[test]
fn signals_and_lost_terminals_end_it_in_order() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let terminal = Terminal::start("signals", (100, 30));
    let memspy_of = |pid: u32| -> Option<u32> {
        let found = Command::new("pgrep")
            .args(["-f", &format!("memspy top .*-p {pid}$")])
            .output()
            .unwrap();
        String::from_utf8(found.stdout).unwrap().lines().next().and_then(|pid| pid.parse().ok())
    };
    for ending in ["TERM", "HUP", "C-c"] {
        terminal.run(target.pid(), "top");
        terminal.wait_for("the view", |screen| screen.contains("[before recording]"));
        if ending == "C-c" {
            terminal.press(&["C-c"]);
        } else {
            let pid = memspy_of(target.pid()).unwrap();
            let sent = Command::new("kill").args(["-s", ending, &pid.to_string()]).status();
            assert!(sent.unwrap().success());
        }
        terminal.wait_for_end("code 0");
    }
    terminal.run(target.pid(), "top");
    terminal.wait_for("the view", |screen| screen.contains("[before recording]"));
    assert!(memspy_of(target.pid()).is_some());
    drop(terminal);
    wait_until("memspy to end with its terminal", || memspy_of(target.pid()).is_none());
    target.finish();
}

#[test]
fn exact_events_are_shown_as_they_come() {
    let mut target = sim::start("allocator_truth.py", &["plain"]);
    let terminal = Terminal::start("exact", (120, 40));
    terminal.run(target.pid(), "top --exact");
    terminal.wait_for("the view", |screen| screen.contains("live by exact events"));
    target.say("again");
    let said = target.read_until_ready();
    let truth: Value =
        serde_json::from_str(said.iter().find(|line| line.starts_with('{')).unwrap()).unwrap();
    let allocated = truth["devices"][0]["stats"]["allocated_bytes.all.current"].as_i64().unwrap();
    let expected = format!("{} live by exact events", mib(allocated));
    let screen = terminal.wait_for("the new allocations", |screen| screen.contains(&expected));
    assert!(screen.contains("exact, ") && screen.contains(" 0 lost"), "{screen}");
    let sure = "lines: proven 100 %, probable 0 %, unattributed 0 %";
    assert!(screen.contains(sure), "{screen}");
    assert!(screen.contains("Workload.bytes") || screen.contains("Workload.pattern"), "{screen}");
    terminal.press(&["q"]);
    terminal.wait_for_end("code 0");
    target.finish();
}

/// What memspy writes on a terminal that answers no query (a slow line, a terminal recording).
#[test]
fn a_picture_is_written_once_and_then_what_changed() {
    let mut target = sim::start("allocator_truth.py", &["plain"]);
    let pid = target.pid();
    let memspy = command(Some(pid));
    let program = memspy.get_program().to_str().unwrap().to_owned();
    let words: Vec<&str> = memspy.get_args().map(|word| word.to_str().unwrap()).collect();
    let line = format!(
        "stty rows 24 cols 80; exec {program} {} top --refresh 0.1 -p {pid}",
        words.join(" ")
    );
    let mut script = Command::new("script")
        .args(["-qefc", &line, "/dev/null"])
        .envs([("TERM", "xterm"), ("LC_ALL", "C.UTF-8"), ("NO_COLOR", "1"), ("SHELL", "/bin/sh")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = script.stdout.take().unwrap();
    let (sender, written) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = std::io::Read::read(&mut output, &mut bytes) {
            sender.send(bytes[..count].to_vec()).unwrap();
        }
    });
    let mut all = Vec::new();
    let begin = b"\x1b[?2026h";
    let count = |all: &[u8], what: &[u8]| all.windows(what.len()).filter(|at| *at == what).count();
    wait_until("20 pictures", || {
        all.extend(written.try_iter().flatten());
        count(&all, begin) >= 20
    });
    std::io::Write::write_all(script.stdin.as_mut().unwrap(), b"q").unwrap();
    assert!(script.wait().unwrap().success());
    all.extend(written.iter().flatten());
    let text = String::from_utf8_lossy(&all);
    assert_eq!(count(&all, begin) + 1, count(&all, b"\x1b[?2026l"), "each update has its end");
    assert_eq!(count(&all, b"\x1b[2J"), 1, "cleared once, not for each picture: {text}");
    assert_eq!(count(&all, b"before recording"), 1, "what stays is not written again: {text}");
    let styles = text.split("\x1b[").filter_map(|part| part.split_once('m'));
    let mut numbers =
        styles.flat_map(|(numbers, _)| numbers.split(';')).filter_map(|n| n.parse().ok());
    assert!(!numbers.any(|n: u32| n >= 30), "NO_COLOR is set: {text}");
    assert_eq!((count(&all, b"\x1b[?1049h"), count(&all, b"\x1b[?1049l")), (1, 1));
    assert!(text.contains("\x1b[?25h"), "the cursor is shown again: {text}");
    target.kill();
}

#[test]
fn without_a_terminal_it_says_what_to_use_instead() {
    let mut target = sim::start("allocator_truth.py", &["plain"]);
    let pid = target.pid().to_string();
    memspy_at(target.pid(), &["top"]).refused(&["on a terminal", "memspy dump", "memspy record"]);
    target.kill();
    let terminal = Terminal::start("refused", (200, 20));
    terminal.run(pid.parse().unwrap(), "top");
    let screen = terminal.wait_for("the end", |screen| screen.contains("code "));
    assert!(
        screen.contains("code 1") && screen.contains(&format!("no process with pid {pid}")),
        "{screen}"
    );
    terminal.run_with("TERM=dumb", 1, "top");
    let screen = terminal.wait_for("the end", |screen| screen.contains("(TERM is unset or dumb)"));
    assert!(screen.contains("memspy dump"), "{screen}");
}
