//! Documents stay short: words of a page, words of a table's cell, lines.

use std::fs;
use std::path::{Path, PathBuf};

/// Documents with their own word limit.
const WORDS: [(&str, usize); 3] =
    [("README.md", 900), ("SECURITY.md", 700), ("docs/architecture.md", 4000)];
/// Words of every other page of `docs/`.
const PAGE_WORDS: usize = 800;
/// Words of a table's cell.
const CELL_WORDS: usize = 40;
/// Lines of the benchmark results, which are tables and no diary.
const BENCH_LINES: usize = 300;
/// Words of the changelog on one version.
const VERSION_WORDS: usize = 600;
/// Generated from the structs of `--json` (`json_docs`).
const GENERATED: &str = "docs/json.md";

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

/// The pages of `docs/` that people write.
fn pages() -> Vec<PathBuf> {
    let files = fs::read_dir("docs").unwrap().map(|entry| entry.unwrap().path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "md");
    files.filter(|path| is_page(path) && path != Path::new(GENERATED)).collect()
}

/// Cells of tables, outside code fences, with more words than allowed.
fn long_cells(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2).flat_map(str::lines);
    let rows = prose.filter(|line| line.starts_with('|'));
    rows.flat_map(|row| row.split('|')).filter(|cell| words(cell) > CELL_WORDS).collect()
}

#[test]
fn pages_have_no_more_words_than_allowed() {
    let limit = |path: &Path| {
        let own = WORDS.iter().find(|(name, _)| path == Path::new(name));
        own.map_or(PAGE_WORDS, |(_, limit)| *limit)
    };
    let mut pages = pages();
    assert!(pages.len() > 15, "{pages:?}");
    pages.extend(["README.md", "SECURITY.md"].map(PathBuf::from));
    for path in pages {
        let (count, limit) = (words(&read(&path)), limit(&path));
        assert!(count <= limit, "{}: {count} words, at most {limit}", path.display());
    }
}

#[test]
fn cells_of_tables_have_no_more_words_than_allowed() {
    let others = ["README.md", "SECURITY.md", "CHANGELOG.md", "benches/README.md"];
    for path in pages().into_iter().chain(others.map(PathBuf::from)) {
        let text = read(&path);
        let found = long_cells(&text);
        assert!(found.is_empty(), "{}: at most {CELL_WORDS} words: {found:#?}", path.display());
    }
}

#[test]
fn a_long_cell_of_a_table_is_found() {
    let (long, short) = ("word ".repeat(CELL_WORDS + 1), "word ".repeat(CELL_WORDS));
    let text = format!("{long}\n| a | {long}| {short}|\n```\n| {long}|\n```\n");
    assert_eq!(long_cells(&text), [format!(" {long}")]);
}

#[test]
fn results_of_benches_are_tables_and_no_diary() {
    let lines = read("benches/README.md").lines().count();
    assert!(lines <= BENCH_LINES, "benches/README.md: {lines} lines, at most {BENCH_LINES}");
}

#[test]
fn the_changelog_begins_with_unreleased_and_is_short() {
    let text = read("CHANGELOG.md");
    let versions: Vec<&str> = text.split("\n## [").skip(1).collect();
    let name = |version: &&str| version.split(']').next().unwrap().to_owned();
    let names: Vec<String> = versions.iter().map(name).collect();
    assert_eq!(names.first().map(String::as_str), Some("Unreleased"), "{names:?}");
    assert!(names.iter().any(|name| name == env!("CARGO_PKG_VERSION")), "{names:?}");
    for (version, name) in versions.iter().zip(names) {
        let count = words(version);
        assert!(count <= VERSION_WORDS, "{name}: {count} words, at most {VERSION_WORDS}");
    }
}

#[test]
fn the_code_map_has_every_room() {
    let map = read("docs/architecture.md");
    for entry in fs::read_dir("src").unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let is_there = map.lines().any(|line| line.contains(&format!(" | `{name}` | ")));
        assert!(is_there || entry.path().is_file(), "docs/architecture.md has no room {name}");
    }
}
