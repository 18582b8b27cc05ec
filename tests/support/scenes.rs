//! Scenes that state their own truth, compared with memspy's snapshot.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::memspy::memspy_at;
use super::target::Target;
use super::versions::Environment;

/// A process that shows scenes one after another, each in a child.
pub struct Stage {
    target: Target,
    label: String,
    /// The names of all scenes.
    pub scenes: Vec<String>,
}

impl Stage {
    pub fn start(environment: &Environment) -> Stage {
        let target = environment.start("holders_scenes.py", &["--serve"]);
        let scenes = target.said.last().unwrap().split_whitespace().map(str::to_owned).collect();
        Stage { target, label: environment.name.clone(), scenes }
    }

    /// The differences between memspy's snapshot and the truth of a scene.
    pub fn differences(&mut self, scene: &str, device: &str) -> Vec<String> {
        self.target.say(&format!("{scene} {device}"));
        let said = self.target.read_until_ready();
        let truth: Value = serde_json::from_str(said.last().unwrap()).unwrap();
        let wrong = differences(&truth, &format!("{scene} on {device} with {}", self.label));
        self.target.say("");
        self.target.read_until_ready();
        wrong
    }
}

/// The differences between memspy's snapshot and `truth`, from the process itself.
fn differences(truth: &Value, scene: &str) -> Vec<String> {
    let pid = truth["pid"].as_u64().unwrap() as u32;
    let done = memspy_at(pid, &["tensors", "--json"]).ok();
    let snapshot: Value = serde_json::from_str(&done.out).unwrap();
    let mut wrong = Vec::new();
    let mut check = |what: &str, read: Value, said: &Value| {
        if read != *said {
            wrong.push(format!("{scene}: {what}: {read}, not {said}"));
        }
    };
    let listed = |list: &Value| list.as_array().unwrap().clone();
    let rows: BTreeMap<u64, Value> = listed(&snapshot["tensors"])
        .into_iter()
        .filter_map(|row| Some((row["id"].as_u64()?, row)))
        .collect();
    let said: BTreeMap<u64, Value> = listed(&truth["tensors"])
        .into_iter()
        .map(|row| (row["id"].as_u64().unwrap(), row))
        .collect();
    check(
        "tensors",
        json!(rows.keys().collect::<Vec<_>>()),
        &json!(said.keys().collect::<Vec<_>>()),
    );
    for (id, said) in &said {
        let Some(row) = rows.get(id) else { continue };
        for (ours, theirs) in [
            ("shape", "shape"),
            ("dtype", "dtype"),
            ("device", "device"),
            ("nested_sizes", "nested"),
            ("numel", "numel"),
            ("version", "version"),
            ("requires_grad", "requires_grad"),
            ("is_leaf", "is_leaf"),
            ("made_by", "grad_fn"),
            ("class", "type"),
        ] {
            check(&format!("{ours} of {:?}", row["names"]), row[ours].clone(), &said[theirs]);
        }
        let has_memory = row["data_ptr"].as_u64().unwrap_or(0) != 0;
        for (ours, theirs, means_something) in [
            // A tensor without memory still has an address: null.
            ("data_ptr", "data_ptr", has_memory && !row["storage_bytes"].is_null()),
            ("storage_bytes", "storage_bytes", has_memory),
            ("stride", "stride", !said["stride"].is_null()),
            ("storage_offset", "offset", !said["offset"].is_null()),
        ] {
            let read = if means_something { row[ours].clone() } else { Value::Null };
            check(&format!("{ours} of {:?}", row["names"]), read, &said[theirs]);
        }
        let garbage = listed(&truth["garbage"]).contains(&said["id"]);
        check(&format!("garbage: {said}"), row["garbage"].clone(), &json!(garbage));
    }
    for name in listed(&truth["names"]) {
        let Some(text) = name["name"].as_str() else { continue };
        let named = |row: &&Value| row["names"].as_array().unwrap().contains(&json!(text));
        let found = match name["id"].as_u64() {
            Some(id) => rows.get(&id).filter(named).is_some(),
            // A gradient that Python has not seen; found by its storage.
            None => listed(&snapshot["tensors"]).iter().filter(named).any(|row| {
                name["storage"].is_null()
                    || json!([row["data_ptr"], row["storage_bytes"]]) == name["storage"]
            }),
        };
        check(&format!("the name {text}"), json!(found), &json!(true));
    }
    let graph = &truth["graphs"]["all"];
    let mut classes: BTreeMap<String, u64> = BTreeMap::new();
    for node in listed(&snapshot["nodes"]) {
        *classes.entry(node["class"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    check("nodes", json!(classes), &graph["classes"]);
    let saved: BTreeSet<(u64, u64)> = listed(&snapshot["tensors"])
        .iter()
        .filter(|row| !row["saved_by"].as_array().unwrap().is_empty())
        .filter_map(|row| Some((row["data_ptr"].as_u64()?, row["storage_bytes"].as_u64()?)))
        .collect();
    check("saved storages", json!(saved), &graph["storages"]);
    for (place, sums) in truth["by_category"].as_object().unwrap() {
        for (category, bytes) in sums.as_object().unwrap() {
            let read = snapshot["devices"][place][category].clone();
            check(&format!("{category} on {place}"), read, bytes);
        }
    }
    wrong
}

/// The differences for all scenes, shown by two processes at a time.
pub fn differences_of_all(environment: &Environment, device: &str) -> Vec<String> {
    let check = |half: usize| -> Vec<String> {
        let mut stage = Stage::start(environment);
        assert!(stage.scenes.len() > 20, "{:?}", stage.scenes);
        let scenes: Vec<String> = stage.scenes.iter().skip(half).step_by(2).cloned().collect();
        scenes.iter().flat_map(|scene| stage.differences(scene, device)).collect()
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| check(0));
        let second = check(1);
        [first.join().unwrap(), second].concat()
    })
}
