//! `docs/json.md` lists every field of every `--json` document, from the structs of `src/render`.
//!
//! `UPDATE_DOCS=1 cargo test --test fast json_docs` regenerates it.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const HEAD: &str = "# JSON\n\n\
    Every JSON document begins with two fields: `format` says which one it is, `version` which version of that. The version \
    counts up when a field goes or changes its meaning; a new field does not change it. What is unknown is `null`, never 0. \
    Sizes are in bytes. `docs/schema/` has a JSON Schema of each document.\n";

/// A struct or an enum with its doc, and its fields or variants: name, type, doc.
struct Item {
    name: String,
    doc: String,
    fields: Vec<(String, String, String)>,
}

/// The structs of JSON documents in a file of `src/render`.
fn items(text: &str) -> Vec<Item> {
    let (mut items, mut doc, mut rename) = (Vec::<Item>::new(), String::new(), None);
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            write!(doc, "{}{}", if doc.is_empty() { "" } else { " " }, text.trim()).unwrap();
        } else if let Some(renamed) = line.strip_prefix("#[serde(rename = \"") {
            rename = renamed.split('"').next().map(str::to_owned);
        } else if let Some(name) = line.strip_prefix("pub struct ") {
            let name = name.trim_end_matches(" {").to_owned();
            inside = name.ends_with("Json");
            if inside {
                items.push(Item { name, doc: std::mem::take(&mut doc), fields: Vec::new() });
            }
        } else if line == "}" {
            inside = false;
        } else if let (true, Some((name, kind))) =
            (inside, line.strip_prefix("pub ").and_then(|field| field.split_once(": ")))
        {
            let name = name.trim_start_matches("r#");
            let name = rename.take().unwrap_or_else(|| name.to_owned());
            let kind = kind_of(kind.trim_end_matches(','));
            items.last_mut().unwrap().fields.push((name, kind, std::mem::take(&mut doc)));
        } else if !line.starts_with("#[") {
            doc.clear();
        }
    }
    items
}

/// All files below `folder`, sorted by path.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    paths.into_iter().flat_map(below).collect()
}

/// A Rust type as JSON has it.
fn kind_of(rust: &str) -> String {
    let inner = |prefix: &str| rust.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('>'));
    if let Some(of) = inner("Option<") {
        return format!("{} or null", kind_of(of));
    }
    if let Some(of) = inner("Vec<") {
        return format!("list of {}", kind_of(of));
    }
    if let Some(of) = inner("BTreeMap<String, ") {
        return format!("{} by name", kind_of(of));
    }
    match rust {
        "u8" | "u32" | "u64" | "i32" | "i64" => "integer".to_owned(),
        "serde_json::Number" => "number".to_owned(),
        "f64" => "number".to_owned(),
        "bool" => "boolean".to_owned(),
        "String" | "FindingStatus" => "string".to_owned(),
        "[u64; 2]" => "two integers".to_owned(),
        part if part.ends_with("Json") => format!("[{part}](#{})", part.to_lowercase()),
        other => panic!("no JSON type is known for {other}"),
    }
}

fn document() -> String {
    let mut out = HEAD.to_owned();
    let files = files_below(Path::new("src/render"));
    for file in files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")) {
        let text = fs::read_to_string(file).unwrap();
        for Item { name, doc, fields } in items(&text) {
            let format = text
                .split_once(&format!("impl JsonFormat for {name} {{"))
                .and_then(|(_, rest)| rest.split('"').nth(1));
            let version = text
                .split_once(&format!("impl JsonFormat for {name} {{"))
                .and_then(|(_, rest)| rest.split("VERSION: u32 = ").nth(1)?.split(';').next());
            writeln!(out, "\n{} {name}\n\n{doc}\n", if format.is_some() { "##" } else { "###" })
                .unwrap();
            if let (Some(format), Some(version)) = (format, version) {
                writeln!(out, "`\"format\": \"{format}\"`, `\"version\": {version}`\n").unwrap();
            }
            writeln!(out, "| field | type | meaning |\n|---|---|---|").unwrap();
            assert!(!fields.is_empty(), "{name} has no fields");
            for (field, kind, doc) in fields {
                assert!(!doc.is_empty(), "{name}.{field} has no doc");
                writeln!(out, "| `{field}` | {kind} | {doc} |").unwrap();
            }
        }
    }
    out
}

/// The lines of `src` that are compiled into memspy: up to the unit tests of each file.
fn program_lines(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path
            .file_stem()
            .is_some_and(|stem| stem == "tests" || stem.to_string_lossy().ends_with("_tests"));
        if path.is_dir() {
            program_lines(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !is_test {
            let text = fs::read_to_string(&path).unwrap();
            let program = text.lines().take_while(|line| *line != "#[cfg(test)]");
            let place = path.display().to_string();
            found.extend(program.map(|line| (place.clone(), line.to_owned())));
        }
    }
}

#[test]
fn every_json_document_is_a_struct_with_documented_fields() {
    let mut lines = Vec::new();
    program_lines(Path::new("src"), &mut lines);
    assert!(lines.len() > 10_000, "the sources are not where they were");
    // The Model Context Protocol defines its messages; the documents in them are the commands'.
    let of_memspy = lines.iter().filter(|(place, _)| !place.starts_with("src/cli/mcp/"));
    let untyped: Vec<_> = of_memspy.filter(|(_, line)| line.contains("json!")).collect();
    assert!(untyped.is_empty(), "a struct of src/render belongs here: {untyped:#?}");
}

#[test]
fn the_list_of_json_fields_is_that_of_the_structs() {
    let made = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write("docs/json.md", &made).unwrap();
    }
    let kept = fs::read_to_string("docs/json.md").unwrap_or_default();
    assert!(
        made == kept,
        "docs/json.md is not up to date: UPDATE_DOCS=1 cargo test --test fast json_docs"
    );
}
