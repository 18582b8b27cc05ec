//! Suggested commands can be pasted: they run, whatever the names of the job and the trace.

use std::path::Path;

use crate::support::memspy::{Done, command, memspy, memspy_at, run};
use crate::support::sim;
use crate::support::suggestions::{commands, words};
use crate::support::terminal::Terminal;

/// Unoptimized builds on a busy machine take longer than people would wait.
const PATIENCE: [&str; 4] = ["--max-time", "120s", "--max-stop", "60s"];

/// Runs a suggested command in `folder`, observing for less than a minute.
fn paste(pid: u32, command_line: &str, folder: &Path) -> Done {
    let mut words = words(command_line);
    assert_eq!(words.remove(0), "memspy");
    for word in words.iter_mut().filter(|word| *word == "60s") {
        *word = "2s".to_owned();
    }
    let looks = ["tensors", "graph", "why", "growth", "dump"];
    if looks.contains(&&*words[0]) {
        words.extend(PATIENCE.map(str::to_owned));
    }
    run(command(Some(pid)).args(words).current_dir(folder)).ok()
}

#[test]
fn what_summary_and_recording_suggest_runs_unchanged() {
    let target = sim::start("shell_names.py", &[]);
    let pid = target.pid();
    let folder = tempfile::tempdir().unwrap();

    let summary = memspy_at(pid, &[&["summary"], &PATIENCE[..]].concat()).ok().out;
    let suggested = commands(&summary);
    for wanted in ["memspy tensors -p", "memspy growth -p"] {
        assert!(suggested.iter().any(|it| it.starts_with(wanted)), "{wanted}: {summary}");
    }
    let mut referrers = 0;
    for command_line in &suggested {
        let done = paste(pid, command_line, folder.path());
        if command_line.starts_with("memspy why") {
            referrers += 1;
            assert!(command_line.contains(r"it'\''s $HOME; `step`"), "{command_line}");
            assert!(done.out.contains("kept"), "{command_line}: {}", done.out);
        }
    }
    assert!(referrers > 0, "{summary}");

    let trace = "it's a trace.bin";
    let recorded = run(command(Some(pid))
        .args(["record", "-p", &pid.to_string(), "-d", "2s", "-o", trace])
        .current_dir(folder.path()))
    .ok();
    let suggested = commands(&recorded.err);
    assert!(suggested.len() >= 2, "{}", recorded.err);
    for command_line in suggested {
        assert!(command_line.contains(r"'it'\''s a trace.bin'"), "{command_line}");
        let done = paste(pid, &command_line, folder.path());
        for line in commands(&done.out).iter().chain(&commands(&done.err)) {
            paste(pid, line, folder.path());
        }
    }
}

/// A line wider than the terminal was cut or broken within a word; a warning appeared twice.
#[test]
fn terminal_text_wraps_between_words_and_warnings_appear_once() {
    const WIDTH: usize = 72;
    let target = sim::start("shell_names.py", &[]);
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("a trace.bin");
    let (pid, name) = (target.pid().to_string(), trace.to_str().unwrap());
    run(command(Some(target.pid())).args(["record", "-p", &pid, "-d", "2s", "-o", name])).ok();
    let bytes = std::fs::read(&trace).unwrap();
    std::fs::write(&trace, &bytes[..bytes.len() - 20]).unwrap();
    let whole = memspy(&["lines", name]).ok();
    let abruptly = "ended abruptly";
    assert!(whole.out.lines().any(|line| line.chars().count() > WIDTH), "{}", whole.out);

    let terminal = Terminal::start("wrap", (WIDTH as u32, 60));
    let program = env!("CARGO_BIN_EXE_memspy");
    terminal.ask(&["send-keys", "-l", &format!("clear; {program} lines '{name}'; echo co''de $?")]);
    terminal.press(&["Enter"]);
    let screen = terminal.wait_for("the table", |screen| screen.contains("code 0"));
    let words = |text: &str| -> Vec<String> {
        let text = text.lines().filter(|line| line.contains(' ') && !line.contains("source"));
        text.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    // The sentences above and below the table, word by word.
    let shown = words(&screen);
    let head = whole.out.lines().next().unwrap();
    for word in words(head).iter().chain(&words(whole.out.lines().last().unwrap())) {
        assert!(shown.contains(word), "'{word}' is broken on:\n{screen}");
    }
    let joined = shown.join(" ");
    assert_eq!(joined.matches(abruptly).count(), 1, "{screen}");
    assert!(whole.err.contains(abruptly) && whole.out.contains(abruptly), "{whole:?}");
}
