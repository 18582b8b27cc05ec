//! Arrays of JAX are those of `jax.live_arrays()`, by shape, type and bytes, with the variables
//! that lead to them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::support::memspy::{document, memspy_at};
use crate::support::target::Target;
use memspy::render::json::OwnershipJson;
use serde_json::Value;

/// Set up by scripts/setup.sh jax.
const VERSIONS: [&str; 2] = ["0.5.3", "0.10.2"];

type Array = (Vec<u64>, String, u64);

/// Arrays, and the bytes that they hold together.
type Listed = (Vec<Array>, u64);

fn start(version: &str) -> Target {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join(format!("target/envs/jax-{version}/bin/python"));
    assert!(python.exists(), "{} is missing: run scripts/setup.sh jax", python.display());
    let mut command = Command::new(python);
    command.arg(root.join("tests/targets/jax_arrays.py"));
    Target::start(command)
}

fn truth(line: &str) -> Listed {
    let told: Value = serde_json::from_str(line).unwrap();
    let array = |array: &Value| {
        let shape = array[0].as_array().unwrap().iter().map(|size| size.as_u64().unwrap());
        (shape.collect(), array[1].as_str().unwrap().to_owned(), array[2].as_u64().unwrap())
    };
    let arrays = told["arrays"].as_array().unwrap().iter().map(array);
    (sorted(arrays.collect()), told["held"].as_u64().unwrap())
}

fn sorted(mut arrays: Vec<Array>) -> Vec<Array> {
    arrays.sort();
    arrays
}

/// What memspy lists, and the names.
fn listed(target: &Target) -> (Listed, Vec<String>) {
    let told = document::<OwnershipJson>(&memspy_at(target.pid(), &["tensors", "--json"]).ok().out);
    let rows = told["tensors"].as_array().unwrap();
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    let mut arrays = Vec::new();
    for row in rows {
        let shape = row["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap());
        let bytes = row["storage_bytes"].as_u64().unwrap();
        arrays.push((shape.collect(), row["dtype"].as_str().unwrap().to_owned(), bytes));
        let storage = held.entry(row["data_ptr"].as_u64().unwrap()).or_default();
        *storage = bytes.max(*storage);
    }
    let names = rows.iter().flat_map(|row| row["names"].as_array().unwrap());
    let names = names.map(|name| name.as_str().unwrap().to_owned()).collect();
    ((sorted(arrays), held.values().sum()), names)
}

#[test]
fn arrays_of_jax_are_those_that_it_lists_itself() {
    for version in VERSIONS {
        let mut target = start(version);
        let before = truth(target.said.last().unwrap());
        let (seen, names) = listed(&target);
        assert_eq!(seen, before, "{version}");
        assert!(before.0.len() >= 12, "{before:?}");
        for name in ["main: params[\"w\"]", "main: state.moments[1]", "main: batch"] {
            assert!(names.iter().any(|known| known == name), "{version}: no {name} in {names:?}");
        }
        target.say("more");
        let after = truth(&target.line());
        assert_ne!(after, before);
        assert_eq!(listed(&target).0, after, "{version}: one more, one deleted");
    }
}

#[test]
fn owners_of_jax_s_arrays_are_on_the_screen() {
    let target = start(VERSIONS[1]);
    let tensors = memspy_at(target.pid(), &["tensors"]).ok().out;
    assert!(tensors.contains("main: params[*]"), "{tensors}");
    let why = memspy_at(target.pid(), &["why", "main: params[\"w\"]"]).ok().out;
    assert!(why.contains("main: params") && !why.contains("no Python object"), "{why}");
    let summary = memspy_at(target.pid(), &["summary", "--for", "0.2s"]).ok().out;
    assert!(summary.contains("main: params"), "{summary}");
    assert!(!summary.contains("its owners are unknown"), "{summary}");
}
