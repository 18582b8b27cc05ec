//! An exception keeps the frames of its traceback, and these keep their tensors.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::listed;
use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{HandledError, TensorCategory, bytes};
use crate::ownership::{held_storages, is_garbage, name_pattern};

const TRACEBACK: &str = ".__traceback__";

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    // By what leads to the traceback: bytes, and local variables.
    let mut kept: BTreeMap<String, (u64, BTreeSet<&str>)> = BTreeMap::new();
    for (group, held) in held_storages(snapshot) {
        let names = group.tensors.iter().flat_map(|&row| &snapshot.tensors[row].names);
        let mut names = names.map(|name| name.split_once(TRACEBACK));
        let Some(Some((exception, rest))) = names.next() else { continue };
        let is_plain = group.device.is_cuda() && group.category != TensorCategory::Parameter;
        if is_plain && names.all(|name| name.is_some()) && !is_garbage(snapshot, &group) {
            let variable = rest.rsplit_once("<locals>.").map_or(rest, |(_, variable)| variable);
            // Those of one list are one finding.
            let (size, variables) = kept.entry(name_pattern(exception)).or_default();
            *size += held;
            variables.insert(variable);
        }
    }
    let large = kept.into_iter().filter(|(_, (size, _))| *size >= MIN_BYTES);
    let found = large.map(|(exception, (size, variables))| {
        let variables: Vec<String> = variables.into_iter().map(str::to_owned).collect();
        finding(facts, &exception, size, &variables)
    });
    found.collect()
}

fn finding(facts: &FindingFacts<'_>, exception: &str, size: u64, variables: &[String]) -> Finding {
    let exception = exception.strip_prefix("no variable: ").unwrap_or(exception);
    let class = exception.strip_prefix('<').and_then(|class| class.strip_suffix('>'));
    let handled = facts.threads.map_or(&[][..], |threads| &threads.handled).iter();
    let handled = class.and_then(|class| handled.into_iter().find(|error| error.class == class));
    let what = match class {
        Some(class) => format!("{class} is being handled{}", whereabouts(handled)),
        None if exception.contains('*') => format!("{exception} keeps exceptions"),
        None => format!("{exception} keeps an exception"),
    };
    let locals = if variables.len() == 1 { "local variable" } else { "local variables" };
    let problem =
        format!("{what}; the traceback keeps the {locals} {}, {}", listed(variables), bytes(size));
    let change = match class {
        Some(_) => "leave the except block before going on",
        None => "keep str(error) in its place",
    };
    Finding::new("exception kept", size, problem).change(change).frees(size).of(exception)
}

fn whereabouts(error: Option<&HandledError>) -> String {
    let Some(error) = error else { return String::new() };
    let by = error.thread.as_ref().map_or_else(String::new, |name| format!(" by thread {name}"));
    match &error.handler {
        Some((function, file, line)) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{by} in {function} ({file}:{line})")
        }
        None => by,
    }
}
