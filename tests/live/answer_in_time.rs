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

/// The rows that a summary printed on a terminal.
fn answer(target: &Target, name: &str, size: (u32, u32)) -> Vec<String> {
    let terminal = Terminal::start(name, size);
    terminal.run(target.pid(), &format!("summary {PATIENCE}"));
    terminal.wait_for("the answer", |screen| screen.contains("code 0"));
    let screen = whole_screen(&terminal);
    let from = screen.rfind("\nProcess ").unwrap() + 1;
    let until = from + screen[from..].find("\ncode 0").unwrap();
    screen[from..until].lines().map(str::to_owned).collect()
}

/// Five owners, three lines, two findings, the rest behind commands: nothing scrolls off.
#[test]
fn an_answer_fits_the_terminal() {
    let jobs = [
        ("trainer", sim::command("train.py", &["--seconds", "600", "--device", "cuda"])),
        ("server", sim::command("growing_caches.py", &[])),
        ("losses", sim::command("findings.py", &["losses"])),
    ];
    for (name, command) in jobs {
        let is_ready = |line: &str| line == "READY" || line.contains("step ");
        let target = Target::start_when(command, is_ready);
        for (width, height) in [(80, 24), (200, 60)] {
            let rows = answer(&target, &format!("{name}{width}"), (width, height));
            let text = rows.join("\n");
            assert!(rows.len() <= height as usize - 2, "{} rows:\n{text}", rows.len());
            let too_long = rows.iter().find(|row| row.chars().count() > width as usize);
            assert_eq!(too_long, None, "{text}");
            assert!(rows[1].contains(" holds "), "the sentence that matters is first:\n{text}");
            for part in ["█ allocated", "held by (memspy tensors", "lines", "was stopped"] {
                assert!(text.contains(part), "no '{part}' in\n{text}");
            }
            assert_eq!(text.contains("host: "), width == 200, "{text}");
            assert!(!text.contains("as root"), "this is root:\n{text}");
            assert_eq!(text.contains("* 96.00 MiB back"), name == "losses", "{text}");
        }
    }
}

#[test]
fn colours_are_as_the_user_wants() {
    let target = sim::start("findings.py", &["losses"]);
    let said = |words: &[&str]| {
        let words = [&["summary", "--for", "300ms"], words].concat();
        memspy_at(target.pid(), &words).ok().out
    };
    assert!(!said(&[]).contains('\x1b'), "a pipe has none by itself");
    let painted = said(&["--color", "always"]);
    assert!(painted.contains("\x1b[1mProcess ") && painted.contains("\x1b[32m█"), "{painted:?}");
    for (words, wanted) in [("--color never", false), ("", true)] {
        let terminal = Terminal::start(&format!("colours-{wanted}"), (100, 40));
        terminal.run(target.pid(), &format!("summary --for 300ms {words}"));
        terminal.wait_for("the answer", |screen| screen.contains("code 0"));
        let screen = terminal.ask(&["capture-pane", "-p", "-e"]);
        assert_eq!(screen.contains("\x1b[32m"), wanted, "{words}: {screen:?}");
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
        "not checked: owners, and what they keep, what grows (too few snapshots)".to_owned(),
    ] {
        assert!(done.out.contains(&line), "no '{line}' in {}", done.out);
    }
    // The deadline is 6.3 s at most; a busy machine starts and ends programs slowly.
    assert!(took.as_secs() < 30, "{took:?}");
}
