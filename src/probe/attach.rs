//! Places probes in a process by the best way that the kernel allows.

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

/// Probes in a process. They end when this is dropped and when memspy ends for any reason.
pub struct AttachedProbes {
    by: ProbeMechanism,
    /// Libraries loaded when the probes were placed.
    torch: bool,
    driver: bool,
}

enum ProbeMechanism {
    Programs(Box<BpfProbes>),
    Samples(Box<PerfProbes>),
}

impl AttachedProbes {
    /// Places the probes of `plan` in `process` by the first way that the kernel allows. If it
    /// refuses all, returns the best way's error.
    pub fn attach(process: &Process, plan: &ProbePlan) -> Result<AttachedProbes, ProbeError> {
        let found = ProbeTargets::in_process(process)?;
        // Starts it while the program is prepared.
        let _keeper = ProbeKeeper::shared();
        if let Some(way) = plan.backend {
            return Self::attach_by(process, plan, &found, way, None);
        }
        let multi = match Self::attach_by(process, plan, &found, ProbeBackend::UprobeMulti, None) {
            Err(error) if error.is_about_programs() => error,
            other => return other,
        };
        // A missing or unfit program affects both ways.
        if multi.is_about_links()
            && let Ok(probe) =
                Self::attach_by(process, plan, &found, ProbeBackend::PerfUprobes, None)
        {
            return Ok(probe);
        }
        Self::attach_by(process, plan, &found, ProbeBackend::PerfSamples, Some(&multi))
            .map_err(|_| multi)
    }

    /// `instead_of` says why better ways failed.
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

    /// Passes on records since the last call until `take` returns `false` (samples of perf events:
    /// all of them). Returns how many.
    pub fn drain(&mut self, take: &mut dyn FnMut(RingRecord<'_>) -> bool) -> usize {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.drain(take),
            ProbeMechanism::Samples(samples) => samples.drain(take),
        }
    }

    /// How the probes are placed.
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

    /// What is not probed, one sentence each.
    pub fn uncovered(&self) -> &[Arc<str>] {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.uncovered(),
            ProbeMechanism::Samples(samples) => samples.uncovered(),
        }
    }

    /// Whether a library that can be probed was loaded since the probes were placed.
    pub fn has_unprobed_library(&self, process: &Process) -> bool {
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

    /// The probes' counts so far.
    pub fn counts(&self) -> ProbeCounts {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.counts(),
            ProbeMechanism::Samples(samples) => samples.counts(),
        }
    }

    /// How often the programs in the kernel ran, and how long that took; `None` where there are
    /// none.
    pub fn program_time(&self) -> Option<ProgramTime> {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.time(),
            ProbeMechanism::Samples(_) => None,
        }
    }

    /// Sets the addresses of a device's counters once it is in use.
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

    /// Whether the programs can watch words of the target.
    pub fn can_watch(&self) -> bool {
        matches!(self.by, ProbeMechanism::Programs(_))
    }

    /// Sets the words that count training steps; `None`: none. Their changes arrive as
    /// [`RingRecord::Step`] with `number`. The plan must have requested it.
    pub fn watch(&mut self, steps: Option<&WatchedSteps>, number: u32) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.watch(steps, number),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Sets the vtable of autograd nodes written in Python, once known.
    pub fn set_py_node(&mut self, vtable: u64) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.set_py_node(vtable),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Makes the BPF program describe all stacks again under new keys, so that the old ones may be
    /// forgotten.
    pub fn renew_keys(&mut self) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.renew_keys(),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Makes it describe these code objects again.
    pub fn forget_codes(&mut self, codes: &[u64]) -> Result<(), ProbeError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.forget_codes(codes),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Links of ended threads.
    pub fn take_ended(&mut self) -> Vec<ProbeLink> {
        match &mut self.by {
            ProbeMechanism::Programs(_) => Vec::new(),
            ProbeMechanism::Samples(samples) => samples.take_ended(),
        }
    }

    /// Releases the links; their records can still be drained. Dropping a link ends its probes and
    /// waits some 30 ms until no program of theirs runs, so drop all at once.
    pub fn take_links(&mut self) -> Vec<ProbeLink> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.take_links(),
            ProbeMechanism::Samples(samples) => samples.take_links(),
        }
    }
}
