//! Bad input gets one clear line (what was tried, why it failed, what to do) and exit code 1.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use assert_cmd::cargo::cargo_bin;

fn memspy(words: &[&str]) -> (i32, String, String) {
    let done = Command::new(cargo_bin("memspy")).args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

/// Runs memspy, which must refuse with one line that contains every part.
#[track_caller]
fn refused(words: &[&str], parts: &[&str]) {
    let (code, out, err) = memspy(words);
    assert_eq!(code, 1, "{words:?}: {out}{err}");
    assert_eq!(err.lines().count(), 1, "{words:?} gives one line, not: {err}");
    for part in parts {
        assert!(err.contains(part), "{words:?}: no '{part}' in: {err}");
    }
}

/// A process that waits until it is dropped.
struct Waiting(Child);

impl Waiting {
    fn start(program: &str, arguments: &[&str]) -> Waiting {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null());
        Waiting(command.spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pid_that_does_not_exist() {
    for command in ["dump", "record", "doctor"] {
        refused(&[command, "-p", "2147483000"], &["no process with pid 2147483000", "pgrep"]);
    }
}

/// "No such file or directory (os error 2)", and "unexpected argument '-1'", without advice.
#[test]
fn words_that_name_no_trace_no_pid_and_no_moment() {
    for command in ["flame", "lines", "report", "iterations"] {
        refused(&[command, "no.bin"], &["cannot open no.bin", "memspy record -p PID -o no.bin"]);
        refused(&[command, "-"], &["standard input", "write it to a file"]);
    }
    for (words, part) in [
        (&["dump", "-p", "-1"][..], "a process id is a number from 1 on"),
        (&["lines", "a.bin", "--at", "end"], "memspy flame TRACE --at MOMENT"),
        (&["flame", "a.bin", "--gpu", "cpu"], "memspy tensors -p PID --gpu cpu"),
        (&["tensors", "-p", "1", "--gpu", "x"], "or cpu"),
    ] {
        let (code, _, err) = memspy(words);
        assert_eq!((code, err.lines().count()), (2, 1), "{words:?}: {err}");
        assert!(err.contains(part), "{words:?}: no '{part}' in: {err}");
    }
}

#[test]
fn a_process_that_is_not_python() {
    let cat = Waiting::start("cat", &[]);
    refused(&["dump", "-p", &cat.pid()], &["cat", "not a Python program", "pgrep -af python"]);
    refused(&["record", "-p", &cat.pid()], &["not a Python program"]);
    let (code, out, err) = memspy(&["doctor", "-p", &cat.pid()]);
    assert_eq!(code, 1);
    assert!(out.contains("not a Python program"), "{out}");
    assert!(err.contains("cannot be recorded"), "{err}");
}

#[test]
fn missing_rights_are_not_reported_as_a_missing_python() {
    assert!(nix::unistd::geteuid().is_root(), "this test has to run as root");
    let python = Waiting::start("python3", &["-c", "input()"]);
    let process = memspy::target::Process::open(python.0.id()).unwrap();
    while !process
        .mappings()
        .is_ok_and(|maps| maps.object(|name| name.starts_with("libc")).is_some())
    {
        std::thread::yield_now();
    }
    for word in ["dump", "record"] {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_ptrace"]).arg(cargo_bin("memspy"));
        let done = command.args([word, "-p", &python.pid()]).output().unwrap();
        let err = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{err}");
        assert!(err.contains("permission denied") && err.contains("SYS_PTRACE"), "{err}");
        assert!(!err.contains("not a Python program"), "{err}");
    }
}

#[test]
fn a_launcher_whose_child_is_python() {
    let script = "python3 -c 'input()' & wait";
    let shell = Waiting::start("sh", &["-c", script]);
    let process = memspy::target::Process::open(shell.0.id()).unwrap();
    let is_python = |words: &[String]| words.first().is_some_and(|w| w.ends_with("python3"));
    while !process.children().iter().any(|(_, words)| is_python(words)) {
        std::thread::yield_now();
    }
    let child = process.children()[0].0.to_string();
    refused(&["dump", "-p", &shell.pid()], &["its child", &child]);
    let _ = Command::new("kill").arg(child).status();
}

/// `record -s -o nodir/rank-%r.bin -- PROGRAM` ran the program first, and all reports read their
/// traces before they checked the name.
#[test]
fn a_wrong_output_name_is_refused_before_any_work() {
    let folder = tempfile::tempdir().unwrap();
    let started = folder.path().join("started");
    let touch = started.to_str().unwrap();
    let (letter, place) = ("has %q: memspy knows %p", "there is no directory /nonexistent");
    for (words, says) in [
        (&["-s", "-o", "/nonexistent/rank-%r.bin"][..], place),
        (&["-s", "--until", "oom", "-o", "/nonexistent/rank-%r.bin"], place),
        (&["-s", "-o", "rank-%r-%q.bin"], letter),
        (&["--until", "oom", "-o", "x-%q.bin"], letter),
        (&["-o", "/nonexistent/%p.bin"], "cannot write /nonexistent/%p.bin: there is no directory"),
    ] {
        refused(&[&["record"], words, &["--", "touch", touch]].concat(), &[says]);
        assert!(!started.exists(), "{words:?}");
    }
    // No such trace either: the first error shows what is checked first.
    for command in [
        &["flame"][..],
        &["lines"],
        &["iterations"],
        &["report"],
        &["oom-report"],
        &["join"],
        &["export", "-f", "pprof"],
        &["diff", "--from", "1s", "--to", "2s"],
    ] {
        refused(&[command, &["/nonexistent/a.bin", "-o", "x-%q"]].concat(), &[letter]);
        refused(&[command, &["/nonexistent/a.bin", "-o", "/nonexistent/%p"]].concat(), &[place]);
    }
}

#[test]
fn outputs_that_may_not_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there.bin");
    std::fs::write(&there, "x").unwrap();
    let python = Waiting::start("python3", &["-c", "input()"]);
    let record = |path: &Path, parts: &[&str]| {
        refused(&["record", "-d", "1", "-p", &python.pid(), "-o", path.to_str().unwrap()], parts);
    };
    record(&there, &["exists already", "--force"]);
    record(folder.path(), &["is a directory", "-o"]);
    record(&folder.path().join("no/such/x.bin"), &["no directory"]);
    record(Path::new("x-%q.bin"), &["%q", "%p"]);
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "x", "what was there is unharmed");
}

#[test]
fn files_that_are_no_traces() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("empty"), "").unwrap();
    std::fs::write(path("text"), "just some text\n").unwrap();
    std::fs::write(path("newer"), b"MEMSPY\r\n\xff\x00").unwrap();
    std::fs::write(path("cut"), b"MEMSPY\r\n\x01\x00").unwrap();
    for command in ["flame", "lines"] {
        refused(&[command, &path("missing")], &["cannot open", "missing"]);
        refused(&[command, &path("empty")], &["is empty"]);
        refused(&[command, &path("text")], &["not a memspy trace", "text"]);
        refused(&[command, &path("newer")], &["version 255", "newer memspy"]);
        refused(&[command, &path("cut")], &["no whole block"]);
        refused(&[command, folder.path().to_str().unwrap()], &["directory"]);
    }
}

/// clap's own errors had four or five lines, and none named the command with the help.
#[test]
fn words_that_make_no_sense_get_one_line() {
    let cases: [(&[&str], &[&str]); 10] = [
        (&["frobnicate"], &["'frobnicate'", "see 'memspy --help'"]),
        (&["flme", "a.bin"], &["'flme'", "'flame'", "see 'memspy --help'"]),
        (
            &["flame"],
            &["flame: ", "<TRACE>...", "usage: memspy flame", "see 'memspy flame --help'"],
        ),
        (&["flame", "a.bin", "--form", "svg"], &["'--form'", "'--from'", "memspy flame --help"]),
        (&["flame", "a.bin", "--nosuch"], &["'--nosuch'", "see 'memspy flame --help'"]),
        (
            &["flame", "a.bin", "-f", "png"],
            &["'png'", "flamegraph, collapsed", "memspy flame --help"],
        ),
        (
            &["--file-mode", "600", "flamegraph", "a.bin", "-f"],
            &["--format", "see 'memspy flame --help'"],
        ),
        (
            &["rec"],
            &[
                "record: ",
                "memspy record -p PID",
                "record -- PROGRAM",
                "see 'memspy record --help'",
            ],
        ),
        (&["lines", "a.bin", "--at"], &["'--at", "see 'memspy lines --help'"]),
        (&["dump", "-p", "a\u{1b}[31m\nb"], &["dump: ", "see 'memspy dump --help'"]),
    ];
    for (words, parts) in cases {
        let (code, out, err) = memspy(words);
        assert_eq!((code, &*out), (2, ""), "{words:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{words:?} gives one line, not: {err}");
        assert!(err.starts_with("memspy: error: ") && !err.contains('\u{1b}'), "{words:?}: {err}");
        for part in parts {
            assert!(err.contains(part), "{words:?}: no '{part}' in: {err}");
        }
    }
    // Every command, with an option that none has.
    let (_, help, _) = memspy(&["--help"]);
    let names = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names: Vec<&str> = names
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let (code, _, err) = memspy(&[name, "--no-such-option"]);
        assert_eq!((code, err.lines().count()), (2, 1), "{name}: {err}");
        assert!(err.contains(&format!("see 'memspy {name} --help'")), "{name}: {err}");
    }
}

#[test]
fn more_than_two_processors_for_following_one_process_are_refused() {
    refused(&["record", "-p", "1", "--cpu", "201"], &["--cpu 201", "-s and --match"]);
}

#[test]
fn words_that_make_no_sense_end_with_code_2() {
    for words in [
        &["record"][..],
        &["record", "-p", "abc"],
        &["record", "-p", "1", "-d", "-3"],
        &["record", "-p", "1", "-r", "200", "--follow"],
        &["record", "-p", "1", "-r", "200", "--cpu", "5"],
        &["record", "-p", "1", "--exact", "--follow"],
        &["lines", "t.bin", "--columns", "nonsense"],
        &["frobnicate"],
    ] {
        let (code, _, err) = memspy(words);
        assert_eq!(code, 2, "{words:?}: {err}");
    }
}

#[test]
fn a_full_output_device_is_an_error_not_a_panic() {
    for words in [
        &["completions", "bash"][..],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["--help"],
        &["--version"],
        &["lines", "--help"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let done = Command::new(cargo_bin("memspy")).args(words).stdout(full).output().unwrap();
        let err = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{words:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{words:?} gives one line, not: {err}");
        assert!(err.contains("cannot write to standard output"), "{words:?}: {err}");
    }
}

#[test]
fn what_a_command_reads_it_does_not_overwrite() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("a.bin");
    let records = crate::trace_support::Loop::story(3, 300);
    let bytes = crate::trace_support::write(&records);
    std::fs::write(&trace, &bytes).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&trace, &link).unwrap();
    let (trace, link) = (trace.to_str().unwrap(), link.to_str().unwrap());
    for words in [&["lines"][..], &["flame"], &["report"], &["export", "-f", "json"]] {
        for output in [trace, link] {
            refused(
                &[words, &["--force", trace, "-o", output]].concat(),
                &["what this command reads", "-o"],
            );
        }
    }
    let ring = folder.path().join("ring");
    std::fs::create_dir(&ring).unwrap();
    let segment = ring.join("00000001.memspy");
    std::fs::copy(trace, &segment).unwrap();
    let words = ["join", ring.to_str().unwrap(), "--force", "-o", segment.to_str().unwrap()];
    refused(&words, &["what this command reads"]);
    assert!(std::fs::read(trace).unwrap() == bytes && std::fs::read(&segment).unwrap() == bytes);
}

#[test]
fn tables_go_into_their_own_folders_never_through_a_link() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bytes = crate::trace_support::write(&crate::trace_support::Loop::story(3, 300));
    std::fs::write(at("a.bin"), bytes).unwrap();
    let export = |output: &str| {
        let (trace, output) = (at("a.bin"), at(output));
        memspy(&[
            "export",
            "-f",
            "parquet",
            trace.to_str().unwrap(),
            "-o",
            output.to_str().unwrap(),
        ])
    };
    let (code, _, err) = export("deep/tables");
    assert_eq!(code, 0, "{err}");
    for made in ["deep", "deep/tables", "deep/tables/samples", "deep/tables/frames"] {
        let mode = std::fs::metadata(at(made)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{made}");
    }
    // In a shared folder, another user may have put a link, or the folder may be one.
    std::fs::create_dir_all(at("elsewhere")).unwrap();
    std::fs::create_dir_all(at("planted")).unwrap();
    symlink(at("elsewhere"), at("planted/samples")).unwrap();
    symlink(at("elsewhere"), at("link")).unwrap();
    for output in ["planted", "link"] {
        let (code, _, err) = export(output);
        assert!(code == 1 && err.contains("is a symbolic link"), "{output}: {err}");
    }
    assert_eq!(std::fs::read_dir(at("elsewhere")).unwrap().count(), 0);
}
