//! What references would free, compared with what their removal frees.

use crate::support::memspy::{document, memspy_at};
use crate::support::sim;
use memspy::render::json::OwnershipJson;
use serde_json::Value;

/// Jobs of these kinds hold references that only C has, and memspy says so instead of a figure.
const UNKNOWN: [&str; 0] = [];

/// The bytes that the reference frees at once and after `gc.collect()`; `None`: not said.
fn said(pid: u32, reference: &str) -> Option<[u64; 2]> {
    let out = memspy_at(pid, &["tensors", "--json"]).ok().out;
    let snapshot: Value = document::<OwnershipJson>(&out);
    let frees = snapshot["retained"].as_array().unwrap().iter();
    let figure = frees.filter(|it| it["reference"] == reference).collect::<Vec<_>>();
    let [figure] = figure[..] else { return None };
    assert_eq!(figure["is_least"], false, "{reference}");
    Some([figure["at_once"].as_u64()?, figure["after_collect"].as_u64()?])
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
        let is_unknown = UNKNOWN.contains(&name.as_str());
        if said != (!is_unknown).then_some(freed) {
            wrong.push(format!("{name}: '{reference}' frees {freed:?}, memspy says {said:?}"));
        }
    }
    assert!(names.len() >= 40, "{}", names.len());
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), names.len(), wrong.join("\n"));
    target.finish();
}
