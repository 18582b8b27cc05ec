//! Names from a target or trace reach terminal, spreadsheet and browser as text only.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::hostile_support::strange::{HOSTILE, strange};
use crate::hostile_support::{exact, sampled, save, with_strings};
use crate::support::memspy::{Done, command, run};

fn memspy(words: &[&str], traces: &[&Path]) -> Done {
    run(command(None).args(words).args(traces)).ok()
}

/// A recording, and one with all strings hostile, in their own folders.
struct Pair {
    _folder: tempfile::TempDir,
    plain: Vec<PathBuf>,
    hostile: Vec<PathBuf>,
}

impl Pair {
    /// For the recordings of several ranks.
    fn of(all: &[Vec<memspy::model::Record>], hostile: &str) -> Pair {
        let folder = tempfile::tempdir().unwrap();
        let mut pair = Pair { plain: Vec::new(), hostile: Vec::new(), _folder: folder };
        for (n, records) in all.iter().enumerate() {
            let plain = pair._folder.path().join(format!("plain-{n}.bin"));
            let spoiled = pair._folder.path().join(format!("hostile-{n}.bin"));
            save(&plain, records);
            // At both ends: formulas show by how they begin, counts by how they end.
            let change = |text: &str| format!("{hostile}{text}{hostile}");
            save(&spoiled, &with_strings(records.clone(), &change));
            pair.plain.push(plain);
            pair.hostile.push(spoiled);
        }
        pair
    }

    /// memspy's output on both.
    fn run(&self, words: &[&str]) -> (Done, Done) {
        let paths = |all: &'_ [PathBuf]| all.to_vec();
        let (plain, hostile) = (paths(&self.plain), paths(&self.hostile));
        let of = |all: &[PathBuf]| {
            let all: Vec<&Path> = all.iter().map(PathBuf::as_path).collect();
            memspy(words, &all)
        };
        (of(&plain), of(&hostile))
    }
}

/// The commands that read traces, in each format.
const TEXT: [&[&str]; 9] = [
    &["lines"],
    &["lines", "--all", "--full-filenames"],
    &["lines", "--source"],
    &["lines", "--columns", "allocated_bytes.all.peak", "--full-filenames"],
    &["iterations"],
    &["iterations", "--parameters"],
    &["oom-report"],
    &["oom-report", "--until", "exit"],
    &["flame", "-f", "collapsed", "--threads", "-o", "-"],
];

fn each(mut check: impl FnMut(&str, &Pair, bool)) {
    for hostile in HOSTILE {
        check(hostile, &Pair::of(&[sampled(None)], hostile), false);
        check(hostile, &Pair::of(&[exact()], hostile), true);
    }
}

#[test]
fn a_name_cannot_command_the_terminal_or_add_a_line() {
    each(|name, pair, is_exact| {
        for words in TEXT.iter().filter(|words| !is_exact || words[0] != "iterations") {
            let (plain, hostile) = pair.run(words);
            for (what, text) in [("out", &hostile.out), ("err", &hostile.err)] {
                assert_eq!(strange(text), [' '; 0], "{name:?} by {words:?} on std{what}: {text}");
            }
            let lines = |done: &Done| (done.out.lines().count(), done.err.lines().count());
            assert_eq!(
                lines(&hostile),
                lines(&plain),
                "{name:?} by {words:?}:\n{}\n{}",
                hostile.out,
                hostile.err
            );
        }
    });
}

#[test]
fn json_is_valid_and_has_the_names_as_they_are() {
    each(|name, pair, is_exact| {
        for words in [&["lines", "--json"][..], &["iterations", "--json", "--parameters"]] {
            if is_exact && words[0] == "iterations" {
                continue;
            }
            let (_, hostile) = pair.run(words);
            assert_eq!(strange(&hostile.out), [' '; 0], "{name:?} by {words:?}");
            let value: serde_json::Value = serde_json::from_str(&hostile.out).unwrap();
            if words[0] == "lines" {
                let functions = value["functions"].as_array().unwrap();
                let wanted = if is_exact { "work" } else { "train" };
                let wanted = format!("{name}{wanted}{name}");
                assert!(functions.iter().any(|f| f["function"] == *wanted), "{name:?}");
            }
        }
    });
}

#[test]
fn a_csv_cell_is_no_formula_and_no_second_row() {
    let is_number = |cell: &str| cell.parse::<f64>().is_ok() && !cell.ends_with("inf");
    each(|name, pair, is_exact| {
        for words in [&["lines", "--format", "csv"][..], &["iterations", "--format", "csv"]] {
            if is_exact && words[0] == "iterations" {
                continue;
            }
            let (plain, hostile) = pair.run(words);
            let rows = |text: &str| -> Vec<Vec<String>> {
                let mut reader =
                    csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
                let row = |row: csv::StringRecord| row.iter().map(str::to_owned).collect();
                reader.records().map(|r| row(r.unwrap())).collect()
            };
            let (plain, hostile) = (rows(&plain.out), rows(&hostile.out));
            assert_eq!(plain.len(), hostile.len(), "{name:?} by {words:?}");
            for cell in hostile.iter().flatten() {
                assert_eq!(strange(cell), [' '; 0], "{name:?} by {words:?}: {cell}");
                let formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']);
                assert!(!formula || is_number(cell), "{name:?} by {words:?}: {cell}");
            }
            // memspy's own negative numbers stay numbers.
            let numbers = |rows: &[Vec<String>]| -> Vec<String> {
                rows.iter().flatten().filter(|cell| is_number(cell)).cloned().collect()
            };
            // Limits depend on where source statements end, and the source differs here.
            assert_eq!(numbers(&plain).len(), numbers(&hostile).len(), "{name:?} by {words:?}");
        }
    });
}

#[test]
fn a_folded_stack_keeps_its_frames_and_bytes() {
    let shape = |text: &str| -> Vec<(usize, u64)> {
        let line = |line: &str| {
            let (stack, bytes) = line.rsplit_once(' ').unwrap();
            // As other programs read it: a second number at the end is a second count.
            let end = stack.rsplit(' ').next().unwrap();
            let second =
                stack.contains(' ') && end.bytes().all(|b| b.is_ascii_digit() || b == b'.');
            assert!(!second, "two counts: {line}");
            (stack.split(';').count(), bytes.parse().unwrap())
        };
        let mut all: Vec<_> = text.lines().map(line).collect();
        all.sort_unstable();
        all
    };
    let common = ["flame", "-f", "collapsed", "-o", "-"];
    each(|name, pair, is_exact| {
        for more in [&[][..], &["--threads"], &["--by", "owner"]] {
            if is_exact && more.contains(&"owner") {
                continue;
            }
            let (plain, hostile) = pair.run(&[&common, more].concat());
            assert_eq!(strange(&hostile.out), [' '; 0], "{name:?}");
            let by_holder = more.contains(&"owner");
            // Dots in an owner's name make its path: frames differ there.
            let shapes = [&hostile, &plain].map(|done| {
                let all = shape(&done.out).into_iter();
                let mut all: Vec<_> = all
                    .map(|(frames, bytes)| (if by_holder { 0 } else { frames }, bytes))
                    .collect();
                all.sort_unstable();
                all
            });
            assert_eq!(shapes[0], shapes[1], "{name:?}: {}", hostile.out);
        }
    });
}

#[test]
fn a_flamegraph_is_xml_without_markup_of_others() {
    let titles = |text: &str| text.matches("<title>").count();
    let common = ["flame", "-o", "-"];
    each(|name, pair, is_exact| {
        for more in [&[][..], &["--threads"], &["--by", "owner"]] {
            if is_exact && more.contains(&"owner") {
                continue;
            }
            let (plain, hostile) = pair.run(&[&common, more].concat());
            let allowed = |c: &char| *c != '\t';
            let strange: Vec<char> = strange(&hostile.out).into_iter().filter(allowed).collect();
            assert_eq!(strange, [' '; 0], "{name:?}");
            assert!(!hostile.out.contains("<script>alert"), "{name:?}");
            if !more.contains(&"owner") {
                assert_eq!(titles(&hostile.out), titles(&plain.out), "{name:?}");
            }
            let mut reader = quick_xml::Reader::from_str(&hostile.out);
            reader.config_mut().check_end_names = true;
            loop {
                match reader.read_event() {
                    Ok(quick_xml::events::Event::Eof) => break,
                    Ok(_) => {}
                    Err(error) => panic!("{name:?}: {error}"),
                }
            }
        }
    });
}

#[test]
fn reports_of_several_ranks_keep_their_form_too() {
    for name in HOSTILE {
        // Two traces of one rank are named by their files.
        let pair = Pair::of(&[sampled(Some(1)), sampled(Some(1)), sampled(Some(2))], name);
        for words in [
            &["lines"][..],
            &["lines", "--merge"],
            &["lines", "--merge", "--source"],
            &["lines", "--merge", "--format", "csv"],
            &["lines", "--merge", "--json"],
            &["flame", "-f", "collapsed", "-o", "-"],
        ] {
            let (plain, hostile) = pair.run(words);
            assert_eq!(strange(&hostile.out), [' '; 0], "{name:?} by {words:?}");
            assert_eq!(strange(&hostile.err), [' '; 0], "{name:?} by {words:?}");
            let lines = |done: &Done| (done.out.lines().count(), done.err.lines().count());
            assert_eq!(lines(&hostile), lines(&plain), "{name:?} by {words:?}: {}", hostile.out);
        }
    }
}

#[test]
fn names_of_files_cannot_command_the_terminal_either() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    for name in [&b"a\x1b[2J\nb"[..], b"\xff\xfe", "\u{202e}gnp".as_bytes()] {
        let name = std::ffi::OsStr::from_bytes(name);
        let there = folder.path().join(name);
        let none = folder.path().join("none").join(name);
        save(&there, &sampled(Some(1)));
        let svg = there.with_extension("svg");
        for words in [
            vec![Path::new("lines"), &none],
            vec![Path::new("lines"), &there, &there, Path::new("--merge")],
            vec![Path::new("flame"), &there, Path::new("-o"), &svg],
            vec![Path::new("flame"), &there, Path::new("-o"), &svg],
            vec![Path::new("join"), &none],
        ] {
            let done = Command::new(env!("CARGO_BIN_EXE_memspy")).args(&words).output().unwrap();
            for text in [done.stdout, done.stderr] {
                let text = String::from_utf8(text).unwrap();
                assert_eq!(strange(&text), [' '; 0], "{words:?}: {text}");
            }
        }
    }
}

/// `iterations --parameters` was accepted, and showed no parameters.
#[test]
fn iterations_print_requested_parameters_or_why_there_are_none() {
    let pair = Pair::of(&[sampled(None)], "");
    let told = |words: &[&str]| {
        let out = pair.run(words).0.out;
        let says = ["all parameters", "No parameter was seen in any step"];
        says.iter().filter(|text| out.contains(**text)).count()
    };
    assert_eq!((told(&["iterations"]), told(&["iterations", "--parameters"])), (0, 1));
}
