//! Probes in a process, by the best way that the kernel allows.

use std::sync::Arc;

use super::error::ProbeError;
use super::found::{DRIVER, Found, TORCH, library};
use super::placed::{Link, Placed};
use super::plan::Plan;
use super::raw::{ProbeCounts, Raw};
use super::samples::Samples;
use crate::model::{CudaIndex, ExactWay, LevelsAt, WatchedSteps};
use crate::target::Process;

/// Probes in a process. They go when this is dropped, and when memspy ends in whatever way.
pub struct Probe {
    by: By,
    /// Whether each was loaded when the probes were placed.
    torch: bool,
    driver: bool,
}

/// What stands at the probes.
enum By {
    Programs(Box<Placed>),
    Samples(Box<Samples>),
}

impl Probe {
    /// Puts the probes of `plan` into `process`, by the first way that the kernel allows. Where all are refused, the error
    /// is that of the best.
    pub fn attach(process: &Process, plan: &Plan) -> Result<Probe, ProbeError> {
        let found = Found::in_process(process)?;
        if let Some(way) = plan.way {
            return Self::attach_by(process, plan, &found, way, None);
        }
        let multi = match Self::attach_by(process, plan, &found, ExactWay::UprobeMulti, None) {
            Err(error) if error.is_about_programs() => error,
            other => return other,
        };
        // A program that is not there or unfit is so for both.
        if multi.is_about_links()
            && let Ok(probe) = Self::attach_by(process, plan, &found, ExactWay::PerfUprobes, None)
        {
            return Ok(probe);
        }
        Self::attach_by(process, plan, &found, ExactWay::PerfSamples, Some(&multi))
            .map_err(|_| multi)
    }

    /// `instead_of` says why the better ways are not open.
    fn attach_by(
        process: &Process,
        plan: &Plan,
        found: &Found,
        way: ExactWay,
        instead_of: Option<&ProbeError>,
    ) -> Result<Probe, ProbeError> {
        let by = match way {
            ExactWay::UprobeMulti | ExactWay::PerfUprobes => {
                By::Programs(Box::new(Placed::attach(process, plan, found, way)?))
            }
            ExactWay::PerfSamples => {
                By::Samples(Box::new(Samples::attach(process, plan, found, instead_of)?))
            }
        };
        Ok(Probe { by, torch: found.torch.is_some(), driver: found.driver.is_some() })
    }

    /// Passes on what was recorded since the last call; returns how many records that were.
    pub fn drain(&mut self, take: &mut dyn FnMut(Raw<'_>)) -> usize {
        match &mut self.by {
            By::Programs(placed) => placed.drain(take),
            By::Samples(samples) => samples.drain(take),
        }
    }

    /// How the probes are in place.
    pub fn way(&self) -> ExactWay {
        match &self.by {
            By::Programs(placed) => placed.way(),
            By::Samples(_) => ExactWay::PerfSamples,
        }
    }

    /// What is probed.
    pub fn probes(&self) -> &[Arc<str>] {
        match &self.by {
            By::Programs(placed) => placed.probes(),
            By::Samples(samples) => samples.probes(),
        }
    }

    /// What could not be probed, one sentence each.
    pub fn uncovered(&self) -> &[Arc<str>] {
        match &self.by {
            By::Programs(placed) => placed.uncovered(),
            By::Samples(samples) => samples.uncovered(),
        }
    }

    /// Whether something that can be probed has been loaded since the probes were placed.
    pub fn misses_something(&self, process: &Process) -> bool {
        // Samples never cover the driver.
        let driver = self.driver || matches!(self.by, By::Samples(_));
        if self.torch && driver {
            return false;
        }
        let Ok(mappings) = process.mappings() else { return false };
        let loaded = |stem| mappings.object(library(stem)).is_some();
        !self.torch && loaded(TORCH) || !driver && loaded(DRIVER)
    }

    /// What the probes counted so far.
    pub fn counts(&self) -> ProbeCounts {
        match &self.by {
            By::Programs(placed) => placed.counts(),
            By::Samples(samples) => samples.counts(),
        }
    }

    /// Says where the counters of a device are, once it is in use.
    pub fn set_levels(&mut self, device: CudaIndex, at: LevelsAt) -> Result<(), ProbeError> {
        match &mut self.by {
            By::Programs(placed) => placed.set_levels(device, at),
            By::Samples(_) => Ok(()),
        }
    }

    /// Whether words of the target can be watched at its events.
    pub fn can_watch(&self) -> bool {
        matches!(self.by, By::Programs(_))
    }

    /// Says which words count the steps of training from now on; `None`: none do. What is seen in them comes as
    /// [`Raw::Step`] with `number`. The plan has to have asked for it.
    pub fn watch(&mut self, steps: Option<&WatchedSteps>, number: u32) -> Result<(), ProbeError> {
        match &mut self.by {
            By::Programs(placed) => placed.watch(steps, number),
            By::Samples(_) => Ok(()),
        }
    }

    /// Says what the vtable of autograd nodes written in Python is, once that is known.
    pub fn set_py_node(&mut self, vtable: u64) -> Result<(), ProbeError> {
        match &mut self.by {
            By::Programs(placed) => placed.set_py_node(vtable),
            By::Samples(_) => Ok(()),
        }
    }

    /// Has the kernel's program describe all stacks again when they are met, under other keys than before: what is known of
    /// the old ones may be forgotten.
    pub fn renew_keys(&mut self) -> Result<(), ProbeError> {
        match &mut self.by {
            By::Programs(placed) => placed.renew_keys(),
            By::Samples(_) => Ok(()),
        }
    }

    /// Has it describe these code objects again when they are met.
    pub fn forget_codes(&mut self, codes: &[u64]) -> Result<(), ProbeError> {
        match &mut self.by {
            By::Programs(placed) => placed.forget_codes(codes),
            By::Samples(_) => Ok(()),
        }
    }

    /// Links that have done their work: of threads that have ended.
    pub fn take_ended(&mut self) -> Vec<Link> {
        match &mut self.by {
            By::Programs(_) => Vec::new(),
            By::Samples(samples) => samples.take_ended(),
        }
    }

    /// Gives up the links; what they have recorded can still be drained. Each ends its probes when it is
    /// dropped, for which the kernel waits some 30 ms until no program of theirs runs any more: better all at once
    /// than one after the other.
    pub fn take_links(&mut self) -> Vec<Link> {
        match &mut self.by {
            By::Programs(placed) => placed.take_links(),
            By::Samples(samples) => samples.take_links(),
        }
    }
}
