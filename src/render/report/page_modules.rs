//! A page's memory by module.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ReportedRecording;
use crate::analysis::Moment;
use crate::analysis::modules::{self, ModuleBytes, nested_steps};
use crate::model::CudaIndex;
use crate::render::modules::evidence_note;
use crate::render::shared::visible;

const MAX_MODULES: usize = 20_000;

/// Bytes at the peak, and all that was allocated.
#[derive(Debug, Serialize)]
pub(super) struct PageModules {
    note: &'static str,
    total: u64,
    has_allocated: bool,
    /// The steps of a path, bytes at the peak, bytes allocated in all.
    rows: Vec<(Vec<String>, u64, u64)>,
}

pub(super) fn page_modules(
    recording: &ReportedRecording<'_>,
    device: CudaIndex,
) -> Option<PageModules> {
    let live = modules::live(recording.profile, device, Moment::Peak).ok().flatten()?;
    let allocated = modules::allocated(recording.profile, device);
    let mut rows: BTreeMap<Vec<String>, (u64, u64)> = BTreeMap::new();
    let steps = |memory: &ModuleBytes| -> Vec<(Vec<String>, u64)> {
        let rows = memory.rows.iter().map(|(place, bytes)| {
            let steps = nested_steps(place, None).into_iter();
            (steps.map(|step| visible(&step).into_owned()).collect(), *bytes)
        });
        rows.collect()
    };
    for (path, bytes) in steps(&live) {
        rows.entry(path).or_default().0 += bytes;
    }
    for (path, bytes) in allocated.iter().flat_map(steps) {
        rows.entry(path).or_default().1 += bytes;
    }
    let rows = rows.into_iter().map(|(path, (live, all))| (path, live, all));
    Some(PageModules {
        note: evidence_note(live.evidence),
        total: live.total,
        has_allocated: allocated.is_some(),
        rows: rows.take(MAX_MODULES).collect(),
    })
}
