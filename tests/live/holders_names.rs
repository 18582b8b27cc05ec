//! Names of tensors with unusual owners, and what `referrers` accepts as a name.

use std::collections::BTreeMap;

use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use crate::support::target::Target;
use memspy::render::json::OwnershipJson;
use serde_json::Value;

fn start() -> (Target, Value) {
    let target = sim::start("hidden_names.py", &[]);
    let truth = serde_json::from_str(target.said.first().unwrap()).unwrap();
    (target, truth)
}

fn names_by_id(target: &Target) -> BTreeMap<String, Vec<String>> {
    let snapshot = memspy_at(target.pid(), &["tensors", "--json"]).ok().out;
    let snapshot: Value = serde_json::from_str(&snapshot).unwrap();
    let rows = snapshot["tensors"].as_array().unwrap().iter();
    let names = |row: &Value| serde_json::from_value(row["names"].clone()).unwrap();
    rows.filter_map(|row| Some((row["id"].as_u64()?.to_string(), names(row)))).collect()
}

/// `weakref.finalize`, hooks of all modules and list items beyond the eighth were "[a Tensor
/// without a name]".
#[test]
fn tensors_in_hooks_contexts_threads_tasks_and_tees_have_names() {
    let (target, truth) = start();
    let names = names_by_id(&target);
    let mut wrong = Vec::new();
    for kind in ["names", "of_script"] {
        for (id, name) in truth[kind].as_object().unwrap() {
            let name = name.as_str().unwrap();
            if names.get(id).and_then(|names| names.first()).is_none_or(|first| first != name) {
                wrong.push(format!("{name}: {:?}", names.get(id)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// These were "[a Tensor without a name]": more than eight steps from a variable; in an iterator of
/// a loop, a C queue, ctypes, a DLPack capsule or the table of signal handlers.
#[test]
fn distant_tensors_and_those_kept_by_c_code_have_names() {
    let target = sim::start("far_names.py", &[]);
    let truth: Value = serde_json::from_str(target.said.first().unwrap()).unwrap();
    let snapshot = memspy_at(target.pid(), &["tensors", "--json"]).ok().out;
    let snapshot: Value = serde_json::from_str(&snapshot).unwrap();
    let mut wrong = Vec::new();
    for (kind, field) in [("names", "id"), ("addresses", "data_ptr")] {
        for (number, name) in truth[kind].as_object().unwrap() {
            let is_it = |row: &&Value| row[field].as_u64().unwrap_or(0).to_string() == *number;
            // Several tensors may have the same memory: one of them names the owner.
            let rows = snapshot["tensors"].as_array().unwrap().iter().filter(is_it);
            let names: Vec<&Value> = rows.map(|row| &row["names"]).collect();
            if !names.iter().any(|names| names[0] == *name) {
                wrong.push(format!("{name}: {names:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (word, says) in [
        (
            "loss\"][1]",
            "  list           main: root.trainer.loop.epoch.batch.progress.state.results.store.metrics.val.items[\"loss\"]",
        ),
        ("cell_contents[0]", "  list           no variable: <function "),
    ] {
        let name = truth["names"]
            .as_object()
            .unwrap()
            .values()
            .filter_map(Value::as_str)
            .find(|name| name.ends_with(word));
        let said = memspy_at(target.pid(), &["referrers", name.unwrap()]).ok().out;
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn tensors_in_numpy_arrays_of_objects_have_names() {
    let target = sim::start("object_arrays.py", &[]);
    let truth: Value = serde_json::from_str(target.said.first().unwrap()).unwrap();
    let truth = truth["names"].as_object().unwrap();
    // The other versions of PyTorch are installed without NumPy.
    assert_eq!(truth.len(), if std::env::var_os("MEMSPY_SIM").is_none() { 13 } else { 0 });
    let names = names_by_id(&target);
    for (id, name) in truth {
        let name = name.as_str().unwrap();
        assert_eq!(names[id].first().map(String::as_str), Some(name), "{:?}", names[id]);
    }
}

/// A snapshot ended with "has overflowed its stack" when such classes changed while they were read.
#[test]
fn classes_that_are_each_others_bases_end_no_look() {
    let mut target = sim::start("heap_damage.py", &["--objects", "100"]);
    target.say("classes");
    target.read_until_ready();
    let snapshot = memspy_at(target.pid(), &["tensors", "--json"]).ok().out;
    let snapshot: Value = serde_json::from_str(&snapshot).unwrap();
    assert!(snapshot["tensors"].as_array().unwrap().len() > 100);
    target.say("whole");
    target.read_until_ready();
    target.finish();
}

#[test]
fn referrers_finds_what_tensors_finds() {
    let (target, truth) = start();
    let names = truth["names"].as_object().unwrap().values().map(|name| name.as_str().unwrap());
    for name in names
        .filter(|name| name.contains("_forward_hooks[6]") || name.contains("leaf._backward_hooks"))
    {
        let said = memspy_at(target.pid(), &["referrers", name]).ok().out;
        let container = name.rsplit_once('.').unwrap().0;
        assert!(said.contains(container), "{name}: {said}");
        assert!(!said.contains("no variable leads to it"), "{name}: {said}");
    }
}

#[test]
fn referrers_searches_all_tensors_of_a_name_not_only_sixteen() {
    let (target, truth) = start();
    let cached = truth["cached"].as_array().unwrap();
    let said = memspy_at(target.pid(), &["referrers", "work: cache[…]"]).ok().out;
    assert_eq!(said.matches("  dict           work: cache[…]").count(), 3, "{said}");
    let more = format!("{} more work: cache[…] (--json has all)", cached.len() - 3);
    assert!(said.contains(&more) && !said.contains("no Python object refers to it"), "{said}");
    // The way to the cache is clear, and its name frees all.
    assert!(said.contains("del cache in work"), "{said}");
    let json = memspy_at(target.pid(), &["referrers", "--json", "work: cache[…]"]).ok().out;
    let json = document::<OwnershipJson>(&json);
    assert_eq!(json["referrers"].as_array().unwrap().len(), cached.len());
}

#[test]
fn referrers_takes_decimal_ids_and_names_without_their_function() {
    let (target, truth) = start();
    let id = truth["val_loss"].as_u64().unwrap();
    for word in [
        id.to_string(),
        format!("{id:#x}"),
        "val_losses[0]".to_owned(),
        "work: val_losses[0]".to_owned(),
    ] {
        let said = memspy_at(target.pid(), &["referrers", &word]).ok().out;
        assert!(said.starts_with("work: val_losses[0]: "), "{word}: {said}");
        assert!(said.contains("  list           work: val_losses[0]"), "{word}: {said}");
    }
    memspy_at(target.pid(), &["referrers", "val_losses[1]"]).refused(&["no tensor called"]);
}
