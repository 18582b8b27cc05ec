//! Keeps the promises of the map in `src/lib.rs`: floors, external crates per room, openings, file length, `unsafe`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A room: the rooms it may import, and the external crates of which it is a home.
struct Room {
    imports: &'static [&'static str],
    crates: &'static [&'static str],
}

/// Crates that any room may use.
const EVERYWHERE: &[&str] = &["std", "core", "crate", "self", "super", "thiserror", "rustc_hash"];

/// About 500 lines a file; the slack is for a file that is one concept and not worth a cut.
const MAX_LINES: usize = 560;

/// Files in which `unsafe` may stand, each for one stated reason.
const UNSAFE: &[&str] = &[
    "src/probe/syscall.rs",  // bpf(2)
    "src/gpu/checkpoint.rs", // calls the driver's library
];

fn rooms() -> BTreeMap<&'static str, Room> {
    let room = |imports, crates| Room { imports, crates };
    BTreeMap::from([
        ("model", room(&[], &[])),
        ("files", room(&[], &["rustix", "tempfile"])),
        ("target", room(&["model"], &["memmap2", "nix", "procfs", "object", "rustix"])),
        ("trace", room(&["model", "files"], &["bincode", "zstd", "crc32c"])),
        ("analysis", room(&["model"], &[])),
        ("python", room(&["model", "target"], &["py_spy", "remoteprocess"])),
        ("torch", room(&["model", "target"], &[])),
        ("gpu", room(&["model", "target"], &["nvml_wrapper", "cudarc", "libloading"])),
        ("probe", room(&["model", "target"], &["aya", "aya_obj", "perf_event", "nix", "rustix"])),
        (
            "render",
            room(&["model", "analysis"], &["inferno", "serde", "serde_json", "csv", "chrono"]),
        ),
        ("holders", room(&["model", "target", "python", "torch"], &[])),
        (
            "sampler",
            room(
                &["model", "files", "target", "python", "torch", "gpu", "probe", "holders"],
                &["rustix"],
            ),
        ),
        ("tui", room(&["model", "analysis", "render", "sampler"], &["ratatui"])),
        (
            "cli",
            room(
                &["model", "files", "target", "trace", "analysis", "render", "sampler", "tui"],
                &[
                    "clap",
                    "clap_complete",
                    "anyhow",
                    "chrono",
                    "indicatif",
                    "signal_hook",
                    "terminal_size",
                    "rustix",
                ],
            ),
        ),
    ])
}

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

/// Whether a file holds the unit tests of its neighbour.
fn is_test(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("_tests"))
}

/// The code of a file, without comments and without its unit tests.
fn code(text: &str) -> Vec<&str> {
    text.lines()
        .take_while(|line| line.trim() != "#[cfg(test)]")
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect()
}

/// The names that stand before `::` at the start of a path in `line`, with what follows.
fn path_heads(line: &str) -> Vec<(&str, &str)> {
    let mut heads = Vec::new();
    let mut from = 0;
    while let Some(at) = line[from..].find("::") {
        let at = from + at;
        let start =
            line[..at].rfind(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(0, |i| i + 1);
        let continues = line[..start].ends_with("::");
        if !continues && start < at {
            heads.push((&line[start..at], &line[at + 2..]));
        }
        from = at + 2;
    }
    heads
}

fn check_rooms(complain: &mut dyn FnMut(String)) {
    let rooms = rooms();
    let manifest = fs::read_to_string("Cargo.toml").unwrap();
    let section = manifest.split("[dependencies]").nth(1).unwrap();
    let external: Vec<String> = section
        .split("\n[")
        .next()
        .unwrap()
        .lines()
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim().replace('-', "_")))
        .collect();
    for (name, room) in &rooms {
        let files = rust_files(&Path::new("src").join(name));
        for file in files.into_iter().filter(|file| !is_test(file)) {
            let text = fs::read_to_string(&file).unwrap();
            for line in code(&text) {
                for (head, rest) in path_heads(line) {
                    if head == "crate" {
                        let to: &str = rest
                            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                            .next()
                            .unwrap();
                        let listed = rest.starts_with('{');
                        if listed {
                            complain(format!(
                                "{}: import one room a line, not crate::{{..}}",
                                file.display()
                            ));
                        } else if to != *name
                            && rooms.contains_key(to)
                            && !room.imports.contains(&to)
                        {
                            complain(format!("{}: {name} may not import {to}", file.display()));
                        }
                    } else if external.iter().any(|e| e == head)
                        && !EVERYWHERE.contains(&head)
                        && !room.crates.contains(&head)
                    {
                        complain(format!(
                            "{}: {name} is not a home of crate {head}",
                            file.display()
                        ));
                    }
                }
                if *name != "cli"
                    && ["println!", "eprintln!", "print!(", "eprint!", "process::exit"]
                        .iter()
                        .any(|p| line.contains(p))
                {
                    complain(format!(
                        "{}: only a face prints or exits: {}",
                        file.display(),
                        line.trim()
                    ));
                }
                if !matches!(*name, "sampler" | "cli" | "tui")
                    && (line.contains("thread::sleep") || line.contains("thread::spawn"))
                {
                    complain(format!(
                        "{}: threads and sleeping belong to the sampler: {}",
                        file.display(),
                        line.trim()
                    ));
                }
            }
        }
    }
    for entry in fs::read_dir("src").unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() && !rooms.contains_key(name.as_str()) {
            complain(format!("src/{name}: a room that this test does not know"));
        }
    }
}

fn check_files(complain: &mut dyn FnMut(String)) {
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
            if folder == "src"
                && !UNSAFE.contains(&shown.as_str())
                && code(&text).iter().any(|l| l.contains("unsafe "))
            {
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
        "build.rs",
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
    let mut complaints = Vec::new();
    let mut complain = |c: String| complaints.push(c);
    check_rooms(&mut complain);
    check_files(&mut complain);
    check_top_level(&mut complain);
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn the_checks_see_what_they_should() {
    let heads: Vec<&str> =
        path_heads("use crate::model::Record; nix::unistd::getpid(std::mem::size_of::<T>())")
            .into_iter()
            .map(|(h, _)| h)
            .collect();
    assert_eq!(heads, ["crate", "nix", "std"]);
    assert_eq!(code("a // b\n#[cfg(test)]\nc"), ["a "]);
}
