//! What references would free, compared with what their removal frees.

use std::collections::BTreeMap;

use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use crate::support::target::Target;
use memspy::render::json::{FreesJson, OwnershipJson};
use serde_json::Value;

/// What only C has may go with it, too: at least as much is freed as is said, and memspy says so.
const AT_LEAST: [&str; 2] = ["in_cpp_only", "storage_of_tensor"];

fn retained(pid: u32) -> BTreeMap<String, FreesJson> {
    let out = memspy_at(pid, &["tensors", "--json"]).ok().out;
    let snapshot: Value = document::<OwnershipJson>(&out);
    let snapshot: OwnershipJson = serde_json::from_value(snapshot).unwrap();
    let named = snapshot.retained.into_iter();
    named.filter_map(|frees| Some((frees.reference.clone()?, frees))).collect()
}

fn start(arguments: &[&str]) -> (Target, BTreeMap<String, String>) {
    let target = sim::start("retained_truth.py", arguments);
    let references = serde_json::from_str(target.said.last().unwrap()).unwrap();
    (target, references)
}

/// Bytes that each removal frees, at once and after `gc.collect()`.
fn freed(target: &mut Target) -> BTreeMap<String, [u64; 2]> {
    target.say("remove");
    let line = target.read_until_ready().pop().unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn what_a_reference_frees_is_what_its_removal_frees() {
    let (mut target, references) = start(&[]);
    let retained = retained(target.pid());
    let all = freed(&mut target);
    let mut wrong = Vec::new();
    for (name, reference) in &references {
        let (said, freed) = (retained.get(reference), all[name]);
        let is_right = said.is_some_and(|said| match AT_LEAST.contains(&&**name) {
            true => said.is_least && said.at_once <= freed[0],
            false => !said.is_least && [said.at_once, said.after_collect] == freed,
        });
        if !is_right {
            wrong.push(format!("{name}: '{reference}' frees {freed:?}, memspy says {said:?}"));
        }
    }
    assert!(references.len() >= 50, "{}", references.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), references.len(), wrong.join("\n"));
}

#[test]
fn figures_are_right_where_other_objects_change_while_they_are_read() {
    let (mut target, references) = start(&["busy"]);
    let retained = retained(target.pid());
    let all = freed(&mut target);
    let (mut known, mut wrong) = (0, Vec::new());
    for (name, reference) in &references {
        let Some(said) = retained.get(reference) else { continue };
        let freed = all[name];
        let is_right = match said.is_least {
            true => said.at_once <= freed[0],
            false => [said.at_once, said.after_collect] == freed,
        };
        known += usize::from(!said.is_least);
        if !is_right {
            wrong.push(format!("{name}: '{reference}' frees {freed:?}, memspy says {said:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), references.len(), wrong.join("\n"));
    assert!(known * 4 >= references.len() * 3, "{known} of {} are known", references.len());
}

#[test]
fn why_shows_the_way_and_the_change() {
    let (target, _) = start(&[]);
    let said = |words: &[&str]| memspy_at(target.pid(), &[&["why"], words].concat()).ok().out;
    let owner = said(&["shared_checkpoint: checkpoint"]);
    for part in [
        "shared_checkpoint: checkpoint[\"moments\"][1]: 5.00 MiB",
        "  shared_checkpoint: checkpoint  <dict>",
        "    5.00 MiB     5.00 MiB  [1]  <Tensor>",
        "del checkpoint[\"moments\"][1] in shared_checkpoint frees 5.00 MiB",
        "del checkpoint in shared_checkpoint frees ",
    ] {
        assert!(owner.contains(part), "no '{part}' in:\n{owner}");
    }
    let snapshot = document::<OwnershipJson>(&said(&["shared_checkpoint: checkpoint", "--json"]));
    let snapshot: OwnershipJson = serde_json::from_value(snapshot).unwrap();
    let first = &snapshot.ways[0].steps[0];
    let frees = first.frees.as_ref().unwrap();
    assert_eq!(first.holds, frees.at_once + (8 << 20), "the weights stay: {first:?}");
    let shared = said(&["two_names: first"]);
    for part in [
        "         0 B     2.00 MiB  two_names: ",
        "2.00 MiB               all references to it together",
        "no single reference on this way frees anything",
    ] {
        assert!(shared.contains(part), "no '{part}' in:\n{shared}");
    }
    let tensors = memspy_at(target.pid(), &["tensors", "--limit", "0"]).ok().out;
    let row = tensors.lines().find(|line| line.contains("shared_checkpoint: weights")).unwrap();
    assert!(row.contains(" 0 B  shared_checkpoint"), "{tensors}");
}
