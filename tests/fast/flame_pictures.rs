//! Flamegraphs: inverted, as text, with a title, beside another recording.

use std::path::PathBuf;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;

use crate::analysis_script::MIB;
use crate::exact_script::Probed;
use crate::trace_support;

struct Recordings(tempfile::TempDir);

impl Recordings {
    fn new() -> Recordings {
        let folder = tempfile::tempdir().unwrap();
        for (name, of_forward, of_loss, line) in [("a.bin", 60, 30, 20), ("b.bin", 90, 10, 25)] {
            let mut s = Probed::new();
            s.enter(0, "train", 10);
            s.begin();
            s.enter(0, "forward", line);
            s.malloc(0, 0, of_forward * MIB);
            s.leave(0);
            s.enter(0, "loss", 30);
            s.malloc(0, 0, of_loss * MIB);
            s.leave(0);
            if name == "a.bin" {
                s.enter(0, "gone", 40);
                s.malloc(0, 0, 5 * MIB);
            }
            s.finish();
            std::fs::write(folder.path().join(name), trace_support::write(&s.records)).unwrap();
        }
        Recordings(folder)
    }

    fn memspy(&self, words: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(cargo_bin("memspy"));
        let done = command.args(words).current_dir(self.0.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
    }

    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let (code, out, err) = self.memspy(words);
        assert_eq!(code, 0, "{err}");
        out
    }

    #[track_caller]
    fn refused(&self, words: &[&str], part: &str) {
        let (code, out, err) = self.memspy(words);
        assert_eq!((code, err.lines().count()), (1, 1), "{out}{err}");
        assert!(err.contains(part), "{err}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn a_tree_is_printed_in_the_terminal() {
    let recordings = Recordings::new();
    let text = recordings.ok(&["flame", "a.bin", "--text"]);
    let tree: Vec<&str> = text.lines().skip(2).collect();
    assert_eq!(
        tree,
        [
            "  95.0 MiB 100.0 %  all",
            "  95.0 MiB 100.0 %    train (train.py:10)",
            "  60.0 MiB  63.2 %      forward (train.py:20)",
            "  30.0 MiB  31.6 %      loss (train.py:30)",
            "  5.00 MiB   5.3 %      gone (train.py:40)",
        ],
        "{text}"
    );
    assert!(!recordings.path("a.svg").exists());
}

#[test]
fn an_inverted_picture_begins_with_what_allocates() {
    let recordings = Recordings::new();
    let text = recordings.ok(&["flame", "a.bin", "--text", "--inverted", "--min-width", "20"]);
    let names: Vec<&str> = text.lines().skip(3).map(|l| l[19..].trim()).collect();
    assert_eq!(names.last(), Some(&"[1 smaller]"));
    assert!(names[0].starts_with("forward") && names[1].starts_with("└ train"), "{text}");
    let straight = recordings.ok(&["flame", "a.bin", "-o", "-"]);
    let inverted = recordings.ok(&["flame", "a.bin", "-o", "-", "--inverted"]);
    // One frame for each of three callers, where all had one.
    let frames = |svg: &str| svg.matches("<title>train · ").count();
    assert_eq!((frames(&straight), frames(&inverted)), (1, 3));
}

#[test]
fn a_title_and_a_least_width_are_those_asked_for() {
    let recordings = Recordings::new();
    let svg =
        recordings.ok(&["flame", "a.bin", "-o", "-", "--title", "Run <7>", "--min-width", "10"]);
    assert!(svg.contains("Run &lt;7&gt;"));
    assert!(svg.contains("<title>loss · ") && !svg.contains("<title>gone · "));
    for option in [&["--inverted"][..], &["--title", "x"], &["--min-width", "3"]] {
        let words = [&["flame", "a.bin", "-f", "collapsed", "-o", "-"], option].concat();
        recordings.refused(&words, option[0]);
    }
}

#[test]
fn differences_are_red_for_growth_and_blue_for_shrinkage() {
    let recordings = Recordings::new();
    // The lines of forward have moved: it is the same function.
    let folded =
        recordings.ok(&["flame", "b.bin", "--diff", "a.bin", "-f", "collapsed", "-o", "-"]);
    let expected = format!(
        "train (train.py);forward (train.py) {} {}\ntrain (train.py);gone (train.py) {} 0\n\
         train (train.py);loss (train.py) {} {}\n",
        60 * MIB,
        90 * MIB,
        5 * MIB,
        30 * MIB,
        10 * MIB
    );
    assert_eq!(folded, expected);
    let svg = recordings.ok(&["flame", "b.bin", "--diff", "a.bin", "-o", "-"]);
    let colour = |function: &str| -> (u8, u8, u8) {
        let after = svg.split(&format!("<title>{function} · ")).nth(1).unwrap();
        let rgb = after.split("fill=\"rgb(").nth(1).unwrap().split(')').next().unwrap();
        let parts: Vec<u8> = rgb.split(',').map(|part| part.parse().unwrap()).collect();
        (parts[0], parts[1], parts[2])
    };
    let (red, _, blue) = colour("forward");
    assert!(red > blue, "{red} {blue}");
    let (red, _, blue) = colour("loss");
    assert!(blue > red, "{red} {blue}");
    assert!(svg.contains("5.00 MiB of the other are in stacks that hold nothing now"));
    recordings.refused(&["flame", "a.bin", "b.bin", "--diff", "a.bin"], "one trace");
}

const TORCH: &str = "/v/lib/python3.12/site-packages/torch";

#[test]
fn functions_that_only_call_are_left_out_unless_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.begin();
    s.enter_module(0, None);
    s.enter_in(0, "Module._call_impl", &format!("{TORCH}/nn/modules/module.py"), 1762);
    s.malloc(0, 0, MIB);
    s.enter_in(0, "Linear.forward", &format!("{TORCH}/nn/modules/linear.py"), 125);
    s.malloc(0, 0, 3 * MIB);
    s.finish();
    std::fs::write(folder.path().join("a.bin"), trace_support::write(&s.records)).unwrap();
    let recordings = Recordings(folder);
    let names = |words: &[&str]| -> Vec<String> {
        let text = recordings.ok(&[&["flame", "a.bin", "--text"], words].concat());
        let name = |line: &str| {
            line[20..].trim_start_matches([' ', '└']).split(' ').next().unwrap().to_owned()
        };
        text.lines().skip(2).map(name).collect()
    };
    // What it allocates itself stays.
    assert_eq!(names(&[]), ["all", "train", "Linear.forward", "Module._call_impl"]);
    let all = ["all", "train", "Module._wrapped_call_impl", "Module._call_impl", "Linear.forward"];
    assert_eq!(names(&["--all-frames"]), all);
    // Folded stacks are whole: other programs draw them.
    let folded = recordings.ok(&["flame", "a.bin", "-f", "collapsed", "-o", "-"]);
    assert!(folded.contains("_wrapped_call_impl"), "{folded}");
}

#[test]
fn a_picture_is_opened_only_on_request_and_by_its_path() {
    use std::os::unix::fs::PermissionsExt;
    let recordings = Recordings::new();
    let tools = tempfile::tempdir().unwrap();
    let flame = |script: Option<&str>, words: &[&str]| {
        let opener = tools.path().join("xdg-open");
        let _ = std::fs::remove_file(&opener);
        if let Some(script) = script {
            std::fs::write(&opener, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&opener, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(cargo_bin("memspy"));
        command.args(["flame", "a.bin", "--force"]).args(words).env("PATH", tools.path());
        let done = command.current_dir(recordings.0.path()).output().unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stderr).unwrap())
    };
    let note = tools.path().join("opened");
    let says = format!("echo \"$1\" > {}", note.display());
    let (code, err) = flame(Some(&says), &[]);
    assert!(code == 0 && !note.exists(), "{err}");
    let (code, err) = flame(Some(&says), &["--open"]);
    assert_eq!(code, 0, "{err}");
    let opened = std::fs::read_to_string(note).unwrap();
    assert_eq!(PathBuf::from(opened.trim()), recordings.path("a.svg").canonicalize().unwrap());
    let (code, err) = flame(Some("exit 3"), &["--open"]);
    assert!(code == 1 && err.contains("a.svg is written, but xdg-open could not open it"), "{err}");
    let (code, err) = flame(None, &["--open"]);
    assert!(code == 1 && err.contains("there is no xdg-open (package xdg-utils)"), "{err}");
    let (code, err) = flame(None, &["--open", "-o", "-"]);
    assert!(code == 1 && err.contains("leave out -o -"), "{err}");
}
