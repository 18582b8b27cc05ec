//! Keeps the invariants of `docs/architecture.md`: imports, crates per room, file length, clocks,
//! `unsafe`, type names.

mod floors;
mod kernel_files;
mod parts;
mod rooms;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use floors::Sources;
use rooms::{THREADS, UNSAFE, rooms};
use source::Source;

/// About 500 lines a file; the slack is for a single concept not worth a cut.
const MAX_LINES: usize = 560;
/// As rustfmt cuts code.
const MAX_COLUMNS: usize = 100;

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Whether a file holds its neighbour's unit tests.
fn is_test(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("_tests"))
}

/// All sources but files of unit tests.
fn sources() -> Sources {
    let files = rust_files(Path::new("src")).into_iter().filter(|file| !is_test(file));
    files.map(|file| (file.display().to_string(), Source::read(&file))).collect()
}

/// The crates that the manifest names.
fn external_crates() -> Vec<String> {
    let manifest = fs::read_to_string("Cargo.toml").unwrap();
    let section = manifest.split("[dependencies]").nth(1).unwrap();
    let lines = section.split("\n[").next().unwrap().lines();
    lines
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim().replace('-', "_")))
        .collect()
}

fn check_rooms(sources: &Sources, complain: &mut dyn FnMut(String)) {
    let rooms = rooms();
    for complaint in floors::complaints(&rooms, sources, &external_crates()) {
        complain(complaint);
    }
    for entry in fs::read_dir("src").unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() && !rooms.contains_key(name.as_str()) {
            complain(format!("src/{name}: a room that this test does not know"));
        }
    }
    for home in THREADS.iter().chain(UNSAFE) {
        if !Path::new(home).exists() {
            complain(format!("{home}: is listed, but is not there"));
        }
    }
}

/// Type names are unique, so that a search finds one.
fn check_type_names(sources: &Sources, complain: &mut dyn FnMut(String)) {
    let mut homes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, source) in sources {
        for name in &source.types {
            homes.entry(name).or_default().push(file);
        }
    }
    for (name, files) in homes.into_iter().filter(|(_, files)| files.len() > 1) {
        complain(format!("{name}: a type of this name is in {}", files.join(" and ")));
    }
}

fn check_files(sources: &Sources, complain: &mut dyn FnMut(String)) {
    for folder in ["src", "tests", "benches"] {
        if !Path::new(folder).exists() {
            continue;
        }
        for file in rust_files(Path::new(folder)) {
            let text = fs::read_to_string(&file).unwrap();
            let shown = file.display().to_string();
            if !text.starts_with("//! ") {
                complain(format!("{shown}: does not open with a `//!` sentence"));
            }
            let lines = text.lines().count();
            if lines > MAX_LINES {
                complain(format!("{shown}: {lines} lines; about 500 at most, one concept each"));
            }
            let is_wide = |line: &&str| {
                line.trim_start().starts_with("//") && line.chars().count() > MAX_COLUMNS
            };
            let is_replaced = shown.starts_with("src/analysis/followed/");
            if let Some(line) = text.lines().find(is_wide).filter(|_| !is_replaced) {
                complain(format!("{shown}: a comment wider than {MAX_COLUMNS} columns: {line}"));
            }
            let is_unsafe = sources.get(&shown).is_some_and(|source| source.is_unsafe);
            if is_unsafe && !UNSAFE.contains(&shown.as_str()) {
                complain(format!("{shown}: unsafe stands here without being listed"));
            }
            let stem = file.file_stem().unwrap().to_str().unwrap();
            if [
                "util", "utils", "helper", "helpers", "common", "misc", "manager", "data", "info",
                "handler",
            ]
            .contains(&stem)
            {
                complain(format!("{shown}: a name that says nothing"));
            }
        }
    }
    for name in rooms().keys() {
        let text = fs::read_to_string(format!("src/{name}/mod.rs")).unwrap();
        let opening =
            text.lines().take_while(|l| l.starts_with("//!")).collect::<Vec<_>>().join("\n");
        for promise in ["Turns", "May import", "Never", "Start reading"] {
            if !opening.contains(promise) {
                complain(format!("src/{name}/mod.rs: the opening lacks a line '{promise} …'"));
            }
        }
    }
}

fn check_top_level(complain: &mut dyn FnMut(String)) {
    let fixed = [
        "Cargo.toml",
        "Cargo.lock",
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "src",
        "cuda",
        "docs",
        "scripts",
        "tests",
        "benches",
        "target",
        "rustfmt.toml",
        "clippy.toml",
        "deny.toml",
    ];
    for entry in fs::read_dir(".").unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if !name.starts_with('.') && !name.starts_with("LICENSE") && !fixed.contains(&name.as_str())
        {
            complain(format!("{name}: not one of the top-level names"));
        }
    }
}

#[test]
fn the_house_is_as_the_map_says() {
    let sources = sources();
    let mut complaints = Vec::new();
    let mut complain = |c: String| complaints.push(c);
    check_rooms(&sources, &mut complain);
    parts::complaints(&sources).into_iter().for_each(&mut complain);
    kernel_files::check(&sources, &mut complain);
    check_type_names(&sources, &mut complain);
    check_files(&sources, &mut complain);
    check_top_level(&mut complain);
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Violations in a tree of only these files.
fn of(files: &[(&str, &str)]) -> Vec<String> {
    let source = |(path, text): &(&str, &str)| {
        let below = Path::new(path).strip_prefix("src").unwrap().with_extension("");
        let names = below.iter().map(|name| name.to_str().unwrap().to_owned());
        let module = names.filter(|name| name != "mod").collect();
        ((*path).to_owned(), Source::parse(text, module))
    };
    let sources: Sources = files.iter().map(source).collect();
    floors::complaints(&rooms(), &sources, &external_crates())
}

#[test]
fn every_form_of_importing_a_higher_room_is_found() {
    for text in [
        "use crate::cli::Words;",
        "use crate::{model::Record, cli::Words};",
        "use super::super::super::cli::Words;",
        "fn f() { crate::cli::run() }",
        "fn f() { let x: Option<crate::cli::Words> = None; }",
        "fn f() { assert!(crate::cli::run()); }",
        "use crate::cli as model; fn f() { model::run() }",
        "mod inner { use crate::cli::Words; }",
        "pub use crate::cli::*;",
    ] {
        let found = of(&[("src/python/stacks/walk.rs", text)]);
        assert!(
            found.iter().any(|it| it.contains("python may not import cli")),
            "{text}: {found:?}"
        );
    }
    assert_eq!(
        of(&[("src/python/stacks/walk.rs", "use crate::model::Record; use super::thread;")]),
        [""; 0]
    );
}

#[test]
fn an_import_through_a_re_export_counts_as_its_origin() {
    let found = of(&[
        ("src/sampler/mod.rs", "pub use crate::probe::{ProbeBuffer, ProbeProgram as Renamed};"),
        ("src/cli/record.rs", "use crate::sampler::{ProbeBuffer, Renamed};"),
    ]);
    for name in ["ProbeBuffer", "ProbeProgram"] {
        let told = format!("src/cli/record.rs: cli may not import probe::{name}");
        assert!(found.contains(&told), "{found:?}");
    }
}

#[test]
fn a_public_field_or_result_gives_a_room_away() {
    let found = of(&[(
        "src/sampler/readers.rs",
        "use crate::python::StackReader; use crate::torch::AllocatorReader; use crate::gpu;
         pub struct TargetReaders { pub python: Option<StackReader>, torch: AllocatorReader, pub gpu: gpu::Nvml }
         impl TargetReaders { pub fn torch(&mut self) -> &mut AllocatorReader { &mut self.torch } fn own(&self) -> AllocatorReader { x } }",
    )]);
    for told in [
        "TargetReaders.python gives python::StackReader to cli and tui",
        "TargetReaders.gpu gives gpu::Nvml to cli and tui",
        "torch() gives torch::AllocatorReader to cli and tui",
    ] {
        assert!(found.iter().any(|it| it.ends_with(told)), "{told}: {found:?}");
    }
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn of_what_is_handed_on_only_values_may_be_used() {
    let found = of(&[(
        "src/cli/hints.rs",
        "use crate::target::{AccessFacts, ProcessError};
         fn f() { let it = ProcessError::NotFound { pid: 1 }; AccessFacts::to(&it); }",
    )]);
    assert_eq!(found, ["src/cli/hints.rs: cli may not import target::AccessFacts::to"]);
}

#[test]
fn threads_are_seen_by_whatever_starts_them() {
    for text in [
        "fn f() { std::thread::Builder::new().spawn(g); }",
        "use std::thread; fn f() { thread::scope(|s| s.spawn(g)); }",
        "use std::thread::sleep; fn f() { sleep(x) }",
        "use std::thread::{self as t}; fn f() { t::spawn(g); }",
    ] {
        let found = of(&[("src/analysis/fold.rs", text)]);
        assert!(found.iter().any(|it| it.contains("is no place for threads")), "{text}: {found:?}");
    }
}

#[test]
fn rooms_whose_time_comes_with_the_records_know_no_clock() {
    let text = "use std::time::{Duration, Instant}; fn f() { Instant::now(); }";
    let found = of(&[("src/analysis/fold.rs", text)]);
    assert_eq!(found, ["src/analysis/fold.rs: analysis knows no clock: std::time::Instant"]);
    let text = "use std::time::Duration;";
    assert_eq!(of(&[("src/analysis/fold.rs", text)]), [""; 0]);
}

#[test]
fn unit_tests_are_skipped_but_not_code_below_them() {
    let text = "#[cfg(test)] mod tests { use crate::cli::Words; fn f() { println!(); } }
                #[cfg(test)] use crate::cli::Words;
                fn g() { eprintln!(\"x\"); std::process::exit(1); }";
    assert_eq!(
        of(&[("src/model/stack.rs", text)]),
        ["src/model/stack.rs: only a face prints or exits: eprintln!"]
    );
    let text = "use nix::unistd::Pid;";
    assert_eq!(
        of(&[("src/model/stack.rs", text)]),
        ["src/model/stack.rs: model is not a home of crate nix"]
    );
}
