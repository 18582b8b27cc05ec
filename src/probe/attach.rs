//! Places probes by the best allowed way.

use std::sync::Arc;

use super::bpf_probes::BpfProbes;
use super::error::PlacementError;
use super::keeper::ProbeKeeper;
use super::perf_probes::PerfProbes;
use super::placement::Attachment;
use super::plan::AttachPlan;
use super::ring_events::{ProgramTime, RingCounts, RingRecord};
use super::targets::{DRIVER, ProbeTargets, TORCH, library};
use crate::abi::{CounterAddresses, WatchedSteps};
use crate::model::{CudaIndex, ProbeBackend};
use crate::target::Process;

/// Probes in a process; they end when dropped, and with memspy.
pub struct AttachedProbes {
    by: ProbeMechanism,
    torch: bool,
    driver: bool,
}

enum ProbeMechanism {
    Programs(Box<BpfProbes>),
    Samples(Box<PerfProbes>),
}

impl AttachedProbes {
    /// Places the probes of `plan` by the first allowed way, or returns the best way's error.
    pub fn attach(process: &Process, plan: &AttachPlan) -> Result<AttachedProbes, PlacementError> {
        let found = ProbeTargets::in_process(process)?;
        let _keeper = ProbeKeeper::shared();
        if let Some(way) = plan.backend {
            return Self::attach_by(process, plan, &found, way, None);
        }
        let multi = match Self::attach_by(process, plan, &found, ProbeBackend::UprobeMulti, None) {
            Err(error) if error.is_about_programs() => error,
            other => return other,
        };
        // An unfit program affects both ways.
        if multi.is_about_links()
            && let Ok(probe) =
                Self::attach_by(process, plan, &found, ProbeBackend::PerfUprobes, None)
        {
            return Ok(probe);
        }
        if plan.needs_programs {
            return Err(multi);
        }
        Self::attach_by(process, plan, &found, ProbeBackend::PerfSamples, Some(&multi))
            .map_err(|_| multi)
    }

    /// `instead_of` says why better ways failed.
    fn attach_by(
        process: &Process,
        plan: &AttachPlan,
        found: &ProbeTargets,
        way: ProbeBackend,
        instead_of: Option<&PlacementError>,
    ) -> Result<AttachedProbes, PlacementError> {
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

    /// Passes on records until `take` returns `false` (perf samples: all). Returns how many.
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

    /// Whether a library to probe was loaded later.
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
    pub fn counts(&self) -> RingCounts {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.counts(),
            ProbeMechanism::Samples(samples) => samples.counts(),
        }
    }

    /// How often the kernel programs ran; `None` without such programs.
    pub fn program_time(&self) -> Option<ProgramTime> {
        match &self.by {
            ProbeMechanism::Programs(placed) => placed.time(),
            ProbeMechanism::Samples(_) => None,
        }
    }

    /// Sets the addresses of a device's counters.
    pub fn set_levels(
        &mut self,
        device: CudaIndex,
        at: CounterAddresses,
    ) -> Result<(), PlacementError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.set_levels(device, at),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Whether the programs can watch words of the target.
    pub fn can_watch(&self) -> bool {
        matches!(self.by, ProbeMechanism::Programs(_))
    }

    /// Sets the words that count training steps, if planned. Changes arrive as [`RingRecord::Step`]
    /// with `number`.
    pub fn watch(
        &mut self,
        steps: Option<&WatchedSteps>,
        number: u32,
    ) -> Result<(), PlacementError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.watch(steps, number),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Sets the vtable of autograd nodes written in Python.
    pub fn set_py_node(&mut self, vtable: u64) -> Result<(), PlacementError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.set_py_node(vtable),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Sets the code objects of functions whose first argument is a `torch.nn.Module`, which it
    /// calls; 0: not known.
    pub fn set_module_calls(&mut self, codes: [u64; 2]) -> Result<(), PlacementError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.set_module_calls(codes),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Makes the program describe all stacks under new keys; old ones may be forgotten.
    pub fn renew_keys(&mut self) -> Result<(), PlacementError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.renew_keys(),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Makes the program describe these code objects again.
    pub fn forget_codes(&mut self, codes: &[u64]) -> Result<(), PlacementError> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.forget_codes(codes),
            ProbeMechanism::Samples(_) => Ok(()),
        }
    }

    /// Links of ended threads.
    pub fn take_ended(&mut self) -> Vec<Attachment> {
        match &mut self.by {
            ProbeMechanism::Programs(_) => Vec::new(),
            ProbeMechanism::Samples(samples) => samples.take_ended(),
        }
    }

    /// Releases the links; records can still be drained. Dropping a link waits some 30 ms for the
    /// end of its program: drop all in parallel.
    pub fn take_links(&mut self) -> Vec<Attachment> {
        match &mut self.by {
            ProbeMechanism::Programs(placed) => placed.take_links(),
            ProbeMechanism::Samples(samples) => samples.take_links(),
        }
    }
}
