//! Probes in a process, by the best way that the kernel allows.

use std::sync::Arc;

use super::bpf_probes::BpfProbes;
use super::error::ProbeError;
use super::keeper::ProbeKeeper;
use super::perf_probes::PerfProbes;
use super::placement::ProbeLink;
use super::plan::ProbePlan;
use super::ring_events::{ProbeCounts, ProgramTime, RingRecord};
use super::targets::{DRIVER, ProbeTargets, TORCH, library};
use crate::abi::{CounterAddresses, WatchedSteps};
use crate::model::{CudaIndex, ProbeBackend};
use crate::target::Process;

/// Probes in a process. They go when this is dropped, and when memspy ends in whatever way.
pub struct AttachedProbes {
    by: ProbeMechanism,
    /// Whether each was loaded when the probes were placed.
    torch: bool,
    driver: bool,
}

/// What stands at the probes.
enum ProbeMechanism {
    Programs(Box<BpfProbes>),
    Samples(Box<PerfProbes>),
}

impl AttachedProbes {
    /// Puts the probes of `plan` into `process`, by the first way that the kernel allows. Where all are refused, the error
    /// is that of the best.
    pub fn attach(process: &Process, plan: &ProbePlan) -> Result<AttachedProbes, ProbeError> {
        let found = ProbeTargets::in_process(process)?;
        // Begins while the program is prepared.
        let _keeper = ProbeKeeper::shared();
        if let Some(way) = plan.backend {
            return Self::attach_by(process, plan, &found, way, None);
        }
        let multi = match Self::attach_by(process, plan, &found, ProbeBackend::UprobeMulti, None) {
            Err(error) if error.is_about_programs() => error,
            other => return other,
        };
        // A program that is not there or unfit is so for both.
        if multi.is_about_links()
            && let Ok(probe) =
                Self::attach_by(process, plan, &found, ProbeBackend::PerfUprobes, None)
        {
            return Ok(probe);
        }
        Self::attach_by(process, plan, &found, ProbeBackend::PerfSamples, Some(&multi))
            .map_err(|_| multi)
    }

    /// `instead_of` says why the better ways are not open.
    fn attach_by(
        process: &Process,
        plan: &ProbePlan,
        found: &ProbeTargets,
        way: ProbeBackend,
        instead_of: Option<&ProbeError>,
    ) -> Result<AttachedProbes, ProbeError> {
        let keeper = ProbeKeeper::shared();
        let by = match way {
            ProbeBackend::UprobeMulti | ProbeBackend::PerfUprobes => ProbeMechanism::Programs(
                Box::new(BpfProbes::attach(process, plan, found, way, keeper)?),
            ),
            ProbeBackend::PerfSamples => ProbeMechanism::Samples(Box::new(PerfProbes::attach(
                process, plan, found, instead_of, keeper,
            )?)),
        };
        Ok(AttachedProbes { by, torch: found.torch.is_some(), driver: found.driver.is_some() })
    }

    /// Passes on what was recorded since the last call, until `take` says that it is enough for now (`false`; samples of perf
    /// events are passed on to the last); returns how many records that were.
    pub fn drain(&mut self, take: &mut dyn FnMut(RingRecord<'_>) -> bool) -> usize {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.drain(take),
            ProbeMechanism::Samples(samples) => samples.drain(take),
        }
    }

    /// How the probes are in place.
    pub fn way(&self) -> ProbeBackend {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.way(),
            ProbeMechanism::Samples(_) => ProbeBackend::PerfSamples,
        }
    }

    /// What is probed.
    pub fn probes(&self) -> &[Arc<str>] {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.probes(),
            ProbeMechanism::Samples(samples) => samples.probes(),
        }
    }

    /// What could not be probed, one sentence each.
    pub fn uncovered(&self) -> &[Arc<str>] {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.uncovered(),
            ProbeMechanism::Samples(samples) => samples.uncovered(),
        }
    }

    /// Whether something that can be probed has been loaded since the probes were placed.
    pub fn misses_something(&self, process: &Process) -> bool {
        // Samples never cover the driver.
        let driver = self.driver || matches!(self.by, ProbeMechanism::Samples(_));
        if self.torch && driver {
            return false;
        }
        let Ok(mappings) = process.mappings() else { return false };
        let loaded = |stem| mappings.object(library(stem)).is_some();
        !self.torch && loaded(TORCH) || !driver && loaded(DRIVER)
    }

    /// Whether PyTorch's allocator is probed.
    pub fn has_torch(&self) -> bool {
        self.torch
    }

    /// What the probes counted so far.
    pub fn counts(&self) -> ProbeCounts {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.counts(),
            ProbeMechanism::Samples(samples) => samples.counts(),
        }
    }

    /// How often the programs in the kernel ran, and how long that took; `None` where there are none.
    pub fn program_time(&self) -> Option<ProgramTime> {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.time(),
            ProbeMechanism::Samples(_) => None,
        }
    }

    /// Says where the counters of a device are, once it is in use.
    pub fn set_levels(
        &mut self,
        device: CudaIndex,
        at: CounterAddresses,
    ) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.set_levels(device, at),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Whether words of the target can be watched at its events.
    pub fn can_watch(&self) -> bool {
        matches!(self.by, ProbeMechanism::Programs(_))
    }

    /// Says which words count the steps of training from now on; `None`: none do. What is seen in them comes as
    /// [`RingRecord::Step`] with `number`. The plan has to have asked for it.
    pub fn watch(&mut self, steps: Option<&WatchedSteps>, number: u32) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.watch(steps, number),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Says what the vtable of autograd nodes written in Python is, once that is known.
    pub fn set_py_node(&mut self, vtable: u64) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.set_py_node(vtable),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Has the kernel's program describe all stacks again when they are met, under other keys than before: what is known of
    /// the old ones may be forgotten.
    pub fn renew_keys(&mut self) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.renew_keys(),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Has it describe these code objects again when they are met.
    pub fn forget_codes(&mut self, codes: &[u64]) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.forget_codes(codes),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Links that have done their work: of threads that have ended.
    pub fn take_ended(&mut self) -> Vec<ProbeLink> {
        match &mut self.by {
            ProbeMechanism::Programs(_) => Vec::new(),
            ProbeMechanism::Samples(samples) => samples.take_ended(),
        }
    }

    /// Gives up the links; what they have recorded can still be drained. Each ends its probes when it is
    /// dropped, for which the kernel waits some 30 ms until no program of theirs runs any more: better all at once
    /// than one after the other.
    pub fn take_links(&mut self) -> Vec<ProbeLink> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.take_links(),
            ProbeMechanism::Samples(samples) => samples.take_links(),
        }
    }
}
