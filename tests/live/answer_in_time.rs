//! `memspy summary` answers in time: first what it has, then the rest in its place.

use std::time::Instant;

use crate::support::memspy::memspy_at;
use crate::support::sim;
use crate::support::target::Target;
use crate::support::terminal::Terminal;

/// A snapshot of this job takes long.
fn large_job() -> Target {
    sim::start("large_heap.py", &["--objects", "300000"])
}

/// The screen with what has scrolled off it.
fn whole_screen(terminal: &Terminal) -> String {
    terminal.ask(&["capture-pane", "-p", "-S", "-"])
}

/// So that also a busy machine completes the answer.
const PATIENCE: &str = "--max-time 120s --max-stop 60s";

#[test]
fn the_first_screen_comes_before_the_snapshot_and_is_completed_in_place() {
    let target = large_job();
    let terminal = Terminal::start("answer", (80, 24));
    terminal.run(target.pid(), &format!("summary --for 300ms {PATIENCE}"));
    let is_first = |screen: &str| screen.contains("█ allocated") && screen.contains(" s…");
    let screen = terminal.wait_for("the first screen", is_first);
    assert!(screen.starts_with("before\nProcess "), "{screen}");
    assert!(!screen.contains("held by"), "the snapshot took no time:\n{screen}");
    assert!(!screen.contains("no findings") && !screen.contains("too few"), "{screen}");
    terminal.wait_for("the answer", |screen| screen.contains("code 0"));
    let screen = whole_screen(&terminal);
    assert!(screen.contains("held by") && screen.contains("was stopped"), "{screen}");
    assert!(!screen.contains(" s…"), "progress is left over:\n{screen}");
    for once in ["Process ", "█ allocated"] {
        assert_eq!(screen.matches(once).count(), 1, "{screen}");
    }
}

#[test]
fn growth_says_what_it_is_doing() {
    let target = large_job();
    let terminal = Terminal::start("growing", (80, 24));
    terminal.run(target.pid(), &format!("growth --for 2s {PATIENCE}"));
    terminal.wait_for("the progress", |screen| screen.contains(" s…"));
    let screen = terminal.wait_for("the answer", |screen| screen.contains("code 0"));
    assert!(screen.contains("what kept growing") && !screen.contains(" s…"), "{screen}");
}

#[test]
fn ctrl_c_prints_what_is_known() {
    let target = large_job();
    let terminal = Terminal::start("interrupted", (80, 24));
    terminal.run(target.pid(), &format!("summary --for 60s {PATIENCE}"));
    terminal.wait_for("the first screen", |screen| screen.contains("█ allocated"));
    terminal.press(&["C-c"]);
    terminal.wait_for("the end", |screen| screen.contains("code 0"));
    let screen = whole_screen(&terminal);
    assert_eq!(screen.matches("█ allocated").count(), 1, "{screen}");
    assert!(screen.contains("held by") || screen.contains("its owners are unknown"), "{screen}");
}

#[test]
fn a_pipe_gets_only_the_final_text() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let words = ["summary", "--for", "300ms", "--max-time", "120s", "--max-stop", "60s"];
    let done = memspy_at(target.pid(), &words).ok();
    assert!(done.out.starts_with("Process ") && done.out.contains("held by"), "{}", done.out);
    for absent in ["\x1b", " s…", "\r"] {
        assert!(!done.out.contains(absent) && !done.err.contains(absent), "{done:?}");
    }
}

#[test]
fn what_is_not_known_in_time_is_left_out_and_its_command_named() {
    let target = large_job();
    let began = Instant::now();
    let done = memspy_at(target.pid(), &["summary", "--for", "300ms", "--max-time", "20ms"]).ok();
    let took = began.elapsed();
    assert!(done.out.contains("█ allocated"), "{}", done.out);
    for line in [
        "its owners are unknown: ".to_owned(),
        format!("    memspy tensors -p {} --max-time 60s", target.pid()),
        format!("to say what grows (memspy growth -p {})", target.pid()),
    ] {
        assert!(done.out.contains(&line), "no '{line}' in {}", done.out);
    }
    // The deadline is 6.3 s at most; a busy machine starts and ends programs slowly.
    assert!(took.as_secs() < 30, "{took:?}");
}
