//! What references would free, compared with what their removal frees.

use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use memspy::render::json::{FreesJson, OwnershipJson};
use serde_json::Value;

/// What only C has goes with it, too: at least as much is freed as is said, and memspy says so.
const AT_LEAST: [&str; 1] = ["in_cpp_only"];

fn said(pid: u32, reference: &str) -> Option<FreesJson> {
    let out = memspy_at(pid, &["tensors", "--json"]).ok().out;
    let snapshot: Value = document::<OwnershipJson>(&out);
    let snapshot: OwnershipJson = serde_json::from_value(snapshot).unwrap();
    snapshot.retained.into_iter().find(|it| it.reference.as_deref() == Some(reference))
}

#[test]
fn what_a_reference_frees_is_what_its_removal_frees() {
    let mut target = sim::start("retained_truth.py", &[]);
    let names: Vec<String> = serde_json::from_str(target.said.first().unwrap()).unwrap();
    let mut wrong = Vec::new();
    for name in &names {
        target.say(name);
        let line = target.read_until_ready().pop().unwrap();
        let reference: String = serde_json::from_str(&line).unwrap();
        let said = said(target.pid(), &reference);
        target.say("remove");
        let line = target.read_until_ready().pop().unwrap();
        let freed: [u64; 2] = serde_json::from_str(&line).unwrap();
        let is_right = said.as_ref().is_some_and(|said| match AT_LEAST.contains(&&**name) {
            true => said.is_least && said.at_once <= freed[0],
            false => !said.is_least && [said.at_once, said.after_collect] == freed,
        });
        if !is_right {
            wrong.push(format!("{name}: '{reference}' frees {freed:?}, memspy says {said:?}"));
        }
    }
    assert!(names.len() >= 50, "{}", names.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), names.len(), wrong.join("\n"));
    target.finish();
}

#[test]
fn why_shows_the_way_and_the_change() {
    let mut target = sim::start("retained_truth.py", &[]);
    target.say("shared_checkpoint");
    target.read_until_ready();
    let said = |words: &[&str]| memspy_at(target.pid(), &[&["why"], words].concat()).ok().out;
    let owner = said(&["shared_checkpoint: checkpoint"]);
    for part in [
        "shared_checkpoint: checkpoint[\"moments\"][1]: 5.00 MiB",
        "    8.00 MiB    16.00 MiB  shared_checkpoint: checkpoint  <dict>",
        "    5.00 MiB     5.00 MiB  [1]  <Tensor>",
        "del checkpoint[\"moments\"][1] in shared_checkpoint frees 5.00 MiB",
        "del checkpoint in shared_checkpoint frees 8.00 MiB",
    ] {
        assert!(owner.contains(part), "no '{part}' in:\n{owner}");
    }
    let shared = said(&["shared_checkpoint: weights[0]"]);
    for part in ["         0 B", "all references to it together", "anything"] {
        assert!(shared.contains(part), "no '{part}' in:\n{shared}");
    }
    let tensors = memspy_at(target.pid(), &["tensors"]).ok().out;
    let row = tensors.lines().find(|line| line.contains("shared_checkpoint: checkpoint")).unwrap();
    assert!(row.contains("8.00 MiB  shared_checkpoint"), "{tensors}");
}
