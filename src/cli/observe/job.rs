//! What is known of an observed job so far: threads fill it in, the screen shows it.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::analysis::{
    GpuFacts, GrowthWatch, LastingCopies, LastingGradients, ObservedDevice, OwnerGroup,
    ProcessSnapshot,
};
use crate::cli::eprint_detail;
use crate::model::{GpuNeighbour, HostReading, JobThreads, OwnershipSnapshot, StopTotals};
use crate::render::{GrowthKeeper, ObservedLines};

pub(in crate::cli) struct ObservedJob {
    pub(in crate::cli) pid: u32,
    /// The rank, for one of several.
    pub(in crate::cli) label: Option<String>,
    /// When memspy began.
    pub(super) began: Instant,
    state: Mutex<JobObservation>,
}

impl ObservedJob {
    pub(in crate::cli) fn new(pid: u32, label: Option<String>) -> ObservedJob {
        let state = JobObservation { doing: "attaching", ..JobObservation::default() };
        ObservedJob { pid, label, began: Instant::now(), state: Mutex::new(state) }
    }

    pub(in crate::cli) fn state(&self) -> MutexGuard<'_, JobObservation> {
        self.state.lock()
    }

    /// Changes what is shown.
    pub(in crate::cli) fn change(&self, change: impl FnOnce(&mut JobObservation)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.changes += 1;
    }

    pub(in crate::cli) fn begin(&self, phase: &'static str) {
        self.state.lock().doing = phase;
        let (pid, seconds) = (self.pid, self.began.elapsed().as_secs_f64());
        eprint_detail(|| format!("process {pid}: {phase}, after {seconds:.2} s"));
    }
}

#[derive(Default)]
pub(in crate::cli) struct JobObservation {
    pub(in crate::cli) process: Option<ProcessSnapshot>,
    pub(in crate::cli) growth: GrowthWatch,
    pub(in crate::cli) last: Option<OwnershipSnapshot>,
    /// What stayed in autocast's cache.
    pub(in crate::cli) lasting: LastingCopies,
    /// Gradients that no step replaced.
    pub(in crate::cli) gradients: LastingGradients,
    /// Other processes on its GPUs that perhaps nobody needs.
    pub(in crate::cli) neighbours: Vec<GpuNeighbour>,
    /// What its threads do.
    pub(in crate::cli) threads: JobThreads,
    /// With seconds since some moment.
    pub(in crate::cli) host: Vec<(f64, HostReading)>,
    /// Why the last snapshot failed, and whether more time would have helped.
    pub(in crate::cli) failed: Option<(String, bool)>,
    pub(in crate::cli) stops: StopTotals,
    pub(in crate::cli) lines: ObservedLines,
    pub(in crate::cli) devices: Vec<ObservedDevice>,
    pub(in crate::cli) keepers: Vec<GrowthKeeper>,
    /// Why it cannot be observed.
    pub(in crate::cli) error: Option<anyhow::Error>,
    /// The present phase, for the progress line.
    pub(in crate::cli) doing: &'static str,
    /// How often something was added.
    pub(in crate::cli) changes: u64,
}

impl JobObservation {
    pub(in crate::cli) fn gpus(&self) -> Vec<GpuFacts> {
        let blocks = self.last.as_ref().map_or(&[][..], |look| &look.blocks);
        let at_snapshot = |facts: GpuFacts| {
            let map = blocks.iter().find(|map| map.device.0 == facts.gpu);
            map.map_or(facts, |map| facts.with_blocks(map))
        };
        let devices = self.process.as_ref().map(ProcessSnapshot::devices).unwrap_or_default();
        devices.iter().filter_map(GpuFacts::new).map(at_snapshot).collect()
    }

    pub(super) fn add_snapshot(
        &mut self,
        time: Duration,
        snapshot: OwnershipSnapshot,
        groups: Option<Vec<OwnerGroup>>,
    ) {
        if let Some(groups) = groups {
            self.lasting.add(time.as_secs_f64(), &snapshot);
            self.gradients.add(&snapshot);
            self.growth.add_owners(time.as_secs_f64(), groups);
        }
        if self.last.as_ref().is_none_or(|last| !is_poorer(&snapshot, last)) {
            self.last = Some(snapshot);
        }
    }
}

/// A deadline may cut a later snapshot: names that an earlier one has are worth more than seconds.
fn is_poorer(snapshot: &OwnershipSnapshot, before: &OwnershipSnapshot) -> bool {
    let missing = |snapshot: &OwnershipSnapshot| {
        snapshot.incomplete.as_ref().map_or(0, |incomplete| incomplete.missing.len())
    };
    !snapshot.has_all_tensors() && (before.has_all_tensors() || missing(snapshot) > missing(before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{IncompleteSnapshot, ReachedLimit};

    fn lacking(missing: &[&'static str], objects: u64) -> OwnershipSnapshot {
        let limit = ReachedLimit::Time(Duration::from_secs(1));
        let incomplete = IncompleteSnapshot { limit, missing: missing.to_vec() };
        let incomplete = (!missing.is_empty()).then_some(incomplete);
        OwnershipSnapshot { incomplete, objects, ..OwnershipSnapshot::default() }
    }

    #[test]
    fn a_cut_snapshot_takes_no_names_away() {
        let (graph, names) = (IncompleteSnapshot::GRAPH, IncompleteSnapshot::VARIABLES);
        let mut state = JobObservation::default();
        let taken: [(&[&'static str], u64); 7] = [
            (&[graph, names], 0),
            (&[names], 1),
            (&[graph, names], 1),
            (&[names], 3),
            (&[], 4),
            (&[names], 4),
            (&[IncompleteSnapshot::GARBAGE], 6),
        ];
        for ((missing, shown), number) in taken.into_iter().zip(0..) {
            state.add_snapshot(Duration::ZERO, lacking(missing, number), None);
            assert_eq!(state.last.as_ref().map(|last| last.objects), Some(shown));
        }
    }
}
