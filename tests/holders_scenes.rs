//! Tensors held in every way a program can hold them: each scene says itself what is true of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(unreachable_pub, missing_docs, reason = "support is a module of each test binary")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};
use support::memspy::{memspy_at, run};
use support::sim;

/// What is wrong with memspy's look at a scene.
fn differences(scene: &str, device: &str) -> Vec<String> {
    let target = sim::start("holders_scenes.py", &[scene, "--device", device]);
    let truth: Value = serde_json::from_str(target.said.last().unwrap()).unwrap();
    let done = memspy_at(target.pid(), &["tensors", "--json"]).ok();
    let look: Value = serde_json::from_str(&done.out).unwrap();
    let mut wrong = Vec::new();
    let mut check = |what: &str, read: Value, said: &Value| {
        if read != *said {
            wrong.push(format!("{scene} on {device}: {what}: {read}, not {said}"));
        }
    };
    let listed = |list: &Value| list.as_array().unwrap().clone();
    let rows: BTreeMap<u64, Value> = listed(&look["tensors"])
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
            ("data_ptr", "data_ptr"),
            ("storage_bytes", "storage_bytes"),
            ("version", "version"),
            ("requires_grad", "requires_grad"),
            ("is_leaf", "is_leaf"),
            ("made_by", "grad_fn"),
            ("class", "type"),
        ] {
            check(&format!("{ours} of {:?}", row["names"]), row[ours].clone(), &said[theirs]);
        }
        if said["layout"] == "strided" {
            check("stride", row["stride"].clone(), &said["stride"]);
            check("offset", row["storage_offset"].clone(), &said["offset"]);
        }
        let garbage = listed(&truth["garbage"]).contains(&said["id"]);
        check(&format!("garbage: {said}"), row["garbage"].clone(), &json!(garbage));
    }
    for name in listed(&truth["names"]) {
        let Some(text) = name["name"].as_str() else { continue };
        let named = |row: &&Value| row["names"].as_array().unwrap().contains(&json!(text));
        let found = match name["id"].as_u64() {
            Some(id) => rows.get(&id).filter(named).is_some(),
            // A gradient that Python has not seen, by its storage.
            None => listed(&look["tensors"]).iter().filter(named).any(|row| {
                name["storage"].is_null()
                    || json!([row["data_ptr"], row["storage_bytes"]]) == name["storage"]
            }),
        };
        check(&format!("the name {text}"), json!(found), &json!(true));
    }
    let graph = &truth["graphs"]["all"];
    let mut classes: BTreeMap<String, u64> = BTreeMap::new();
    for node in listed(&look["nodes"]) {
        *classes.entry(node["class"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    check("nodes", json!(classes), &graph["classes"]);
    let saved: BTreeSet<(u64, u64)> = listed(&look["tensors"])
        .iter()
        .filter(|row| !row["saved_by"].as_array().unwrap().is_empty())
        .filter_map(|row| Some((row["data_ptr"].as_u64()?, row["storage_bytes"].as_u64()?)))
        .collect();
    check("saved storages", json!(saved), &graph["storages"]);
    for (place, sums) in truth["by_category"].as_object().unwrap() {
        for (category, bytes) in sums.as_object().unwrap() {
            let read = look["devices"][place][category].clone();
            check(&format!("{category} on {place}"), read, bytes);
        }
    }
    wrong
}

/// All scenes, two at a time.
fn check_all(device: &str) {
    let mut list: Command = sim::command("holders_scenes.py", &["--list"]);
    let scenes: Vec<String> =
        run(&mut list).ok().out.split_whitespace().map(str::to_owned).collect();
    assert!(scenes.len() > 20, "{scenes:?}");
    let (first, second) = scenes.split_at(scenes.len() / 2);
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let check = |part: &[String]| -> Vec<String> {
            part.iter().flat_map(|scene| differences(scene, device)).collect()
        };
        let first = scope.spawn(move || check(first));
        let second = check(second);
        [first.join().unwrap(), second].concat()
    });
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_scene_is_seen_as_it_says_on_the_cpu() {
    check_all("cpu");
}

#[test]
fn every_scene_is_seen_as_it_says_on_a_gpu() {
    check_all("cuda");
}
