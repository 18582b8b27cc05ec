//! `docs/schema` has a JSON Schema of each document. `UPDATE_DOCS=1 cargo test --lib schema_tests`
//! regenerates them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{
    CheckpointJson, DevicesJson, DoctorJson, DryRunJson, DumpJson, ExportJson, FindingsJson,
    GrowthJson, IterationsJson, JsonFormat, LinesJson, ModelsizeJson, OwnershipJson, RankLinesJson,
    SummaryJson, TrumpyJson, WhatIfJson,
};

/// With the two fields that all documents begin with.
fn schema<T: JsonFormat + JsonSchema>() -> (String, Value) {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    schema["properties"]["format"] = json!({"const": T::FORMAT});
    schema["properties"]["version"] = json!({"const": T::VERSION});
    let required = schema["required"].as_array_mut().unwrap();
    required.splice(0..0, [json!("format"), json!("version")]);
    (T::FORMAT.to_owned(), schema)
}

#[test]
fn the_schema_files_are_those_of_the_structs() {
    let schemas = BTreeMap::from([
        schema::<CheckpointJson>(),
        schema::<DevicesJson>(),
        schema::<DoctorJson>(),
        schema::<DryRunJson>(),
        schema::<DumpJson>(),
        schema::<ExportJson>(),
        schema::<FindingsJson>(),
        schema::<GrowthJson>(),
        schema::<IterationsJson>(),
        schema::<LinesJson>(),
        schema::<ModelsizeJson>(),
        schema::<OwnershipJson>(),
        schema::<RankLinesJson>(),
        schema::<SummaryJson>(),
        schema::<TrumpyJson>(),
        schema::<WhatIfJson>(),
    ]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema");
    let of = |format: &str| folder.join(format!("{format}.json"));
    let text = |schema: &Value| format!("{}\n", serde_json::to_string_pretty(schema).unwrap());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(&folder).unwrap();
        for (format, schema) in &schemas {
            std::fs::write(of(format), text(schema)).unwrap();
        }
    }
    for (format, schema) in &schemas {
        assert!(
            std::fs::read_to_string(of(format)).is_ok_and(|kept| kept == text(schema)),
            "docs/schema/{format}.json is not up to date: UPDATE_DOCS=1 cargo test --lib schema_tests"
        );
    }
    let kept: BTreeSet<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    let made: BTreeSet<PathBuf> = schemas.keys().map(|format| of(format)).collect();
    assert_eq!(kept, made, "each schema is of a document");
    let render = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render");
    assert_eq!(documents_below(&render), schemas.len(), "every document is above");
}

fn documents_below(folder: &Path) -> usize {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let documents = paths.map(|path| match path.is_dir() {
        true => documents_below(&path),
        false => {
            let text = std::fs::read_to_string(path).unwrap();
            text.lines().filter(|line| line.starts_with("impl JsonFormat for ")).count()
        }
    });
    documents.sum()
}
