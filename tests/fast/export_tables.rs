//! `memspy export -f parquet`: the tables equal the recording, row by row.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::Value;

use crate::analysis_script::MIB;
use crate::exact_script;
use crate::trace_support;

fn memspy(folder: &Path, words: &[&str]) -> (i32, String) {
    let done = Command::new(cargo_bin("memspy")).args(words).current_dir(folder).output().unwrap();
    (done.status.code().unwrap(), String::from_utf8(done.stderr).unwrap())
}

/// A table's rows, from the crate's reader.
fn rows(file: &Path) -> Vec<Value> {
    let reader = SerializedFileReader::new(std::fs::File::open(file).unwrap()).unwrap();
    reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_json_value()).collect()
}

trait RowJson {
    fn to_json_value(&self) -> Value;
}

impl RowJson for parquet::record::Row {
    fn to_json_value(&self) -> Value {
        use parquet::record::Field;
        let value = |field: &Field| match field {
            Field::Long(number) => Value::from(*number),
            Field::Double(number) => Value::from(*number),
            Field::Str(text) => Value::from(text.as_str()),
            Field::Null => Value::Null,
            other => panic!("{other:?}"),
        };
        self.get_column_iter().map(|(name, field)| (name.clone(), value(field))).collect()
    }
}

fn recording(folder: &Path) {
    let records = exact_script::two_lines();
    std::fs::write(folder.join("run.bin"), trace_support::write(&records)).unwrap();
}

#[test]
fn the_tables_have_every_event_block_stack_and_frame() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    let (code, err) = memspy(folder.path(), &["export", "run.bin", "-f", "parquet", "-o", "out"]);
    assert_eq!(code, 0, "{err}");
    let table = |name: &str| rows(&folder.path().join("out").join(name).join("run.parquet"));
    let (events, stacks, frames) = (table("events"), table("stacks"), table("frames"));
    let of: Vec<(String, u64)> = events
        .iter()
        .map(|row| (row["action"].as_str().unwrap().to_owned(), row["size"].as_u64().unwrap()))
        .collect();
    let expected =
        [("alloc", 64), ("alloc", 32), ("free", 64)].map(|(a, n)| (a.to_owned(), n * MIB));
    assert_eq!(of, expected);
    let function = |stack: &Value| {
        let row = stacks.iter().find(|row| row["stack_id"] == *stack && row["depth"] == 0).unwrap();
        let frame = frames.iter().find(|frame| frame["frame_id"] == row["frame_id"]).unwrap();
        (frame["function"].as_str().unwrap().to_owned(), frame["line"].as_i64())
    };
    assert_eq!(function(&events[0]["stack_id"]), ("forward".to_owned(), Some(20)));
    assert_eq!(function(&events[1]["stack_id"]), ("train".to_owned(), Some(11)));
    let held: u64 = table("blocks")
        .iter()
        .filter(|row| row["state"] == "active_allocated")
        .map(|row| row["size"].as_u64().unwrap())
        .sum();
    assert_eq!(held, 396 * MIB, "at the peak");
    let peak =
        table("samples").iter().map(|row| row["allocated_bytes_peak"].as_u64().unwrap()).max();
    assert_eq!(peak, Some(396 * MIB));
    let (code, err) = memspy(folder.path(), &["export", "run.bin", "-f", "parquet", "-o", "out"]);
    assert!(code == 1 && err.contains("--force"), "{err}");
}

#[test]
fn tables_need_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    recording(folder.path());
    for words in [
        &["export", "run.bin", "-f", "parquet"][..],
        &["export", "run.bin", "-f", "parquet", "-o", "-"],
    ] {
        let (code, err) = memspy(folder.path(), words);
        assert!(code == 1 && err.lines().count() == 1 && err.contains("-o"), "{err}");
    }
}
