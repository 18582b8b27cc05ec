//! What references would free, as text and JSON.

use serde::{Deserialize, Serialize};

use crate::analysis::OwnerFrees;
use crate::model::{FreedBytes, KeptWay, RetainedReference, WayStep};
use crate::render::shared::bytes;

/// Explains [`frees_text`].
pub(crate) const COLLECT_NOTE: &str = "* some of it only after gc.collect()";

/// What would come back if one reference went (`del`, `= None`), as the counts of references say.
/// Sizes in bytes, of the allocator's blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FreesJson {
    /// The reference: `server: sessions`; `null` for garbage, which has none.
    pub reference: Option<String>,
    /// What comes back at once.
    pub at_once: u64,
    /// What comes back besides, after `gc.collect()`.
    pub after_collect: u64,
    /// An object of C goes with it that may hold more: these are the least.
    pub is_least: bool,
}

/// How a variable leads to a tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct KeptWayJson {
    /// The address of its `TensorImpl`.
    pub tensor: u64,
    /// From the variable on.
    pub steps: Vec<WayStepJson>,
    /// What comes back if all references to it and to its memory that were found go, over all
    /// devices; `null` where it is not known.
    pub all_references: Option<FreesJson>,
    /// References to it that no object and no variable was found to have: temporary values, C and
    /// C++.
    pub unknown_references: u64,
}

/// A step of a way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WayStepJson {
    /// The step: `main: cache`, `["a"]`.
    pub step: String,
    /// Class of the object that it leads to.
    pub class: String,
    /// Bytes that the object leads to, shared ones too, but not over modules and classes.
    pub holds: u64,
    /// What comes back if this reference goes, over all devices; `null` where it is not known.
    pub frees: Option<FreesJson>,
}

/// `64.00 MiB`, `≥64.00 MiB` where it may be more, `64.00 MiB*` where some waits for the collector.
pub(crate) fn frees_text(frees: Option<&OwnerFrees>) -> String {
    let Some(frees) = frees else { return "?".to_owned() };
    figure(frees.at_once, frees.after_collect, frees.is_least)
}

fn figure(at_once: u64, after_collect: u64, is_least: bool) -> String {
    let mark = if after_collect > 0 { "*" } else { "" };
    match at_once.saturating_add(after_collect) {
        0 if is_least => "?".to_owned(),
        all if is_least => format!("≥{}{mark}", bytes(all)),
        all => format!("{}{mark}", bytes(all)),
    }
}

/// Over all devices.
pub(super) fn retained_text(retained: Option<&RetainedReference>) -> String {
    let Some(retained) = retained else { return "?".to_owned() };
    let (at_once, after_collect) = sum(retained);
    figure(at_once, after_collect, retained.is_least)
}

/// At once, and after `gc.collect()`.
pub(super) fn sum(retained: &RetainedReference) -> (u64, u64) {
    let of = |bytes: fn(&FreedBytes) -> u64| retained.frees.iter().map(bytes).sum();
    (of(|freed| freed.at_once), of(|freed| freed.after_collect))
}

impl FreesJson {
    pub(crate) fn new(frees: &OwnerFrees) -> FreesJson {
        let OwnerFrees { reference, at_once, after_collect, is_least } = frees.clone();
        FreesJson { reference, at_once, after_collect, is_least }
    }

    pub(super) fn of(retained: &RetainedReference) -> FreesJson {
        let (at_once, after_collect) = sum(retained);
        let name = Some(retained.name.to_string()).filter(|name| !name.is_empty());
        FreesJson { reference: name, at_once, after_collect, is_least: retained.is_least }
    }
}

impl KeptWayJson {
    pub(super) fn new(way: &KeptWay) -> KeptWayJson {
        let step = |step: &WayStep| WayStepJson {
            step: step.step.clone(),
            class: step.class.to_string(),
            holds: step.holds,
            frees: step.retained.as_ref().map(FreesJson::of),
        };
        KeptWayJson {
            tensor: way.tensor,
            steps: way.steps.iter().map(step).collect(),
            all_references: way.all_names.as_ref().map(FreesJson::of),
            unknown_references: way.unknown_holders,
        }
    }
}
