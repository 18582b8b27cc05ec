//! Tries ways to place probes, on memspy itself.

use std::os::fd::AsFd;

use super::constants::BpfConstants;
use super::error::PlacementError;
use super::perf_probes;
use super::placement::{Placement, ProbeAction};
use super::plan::AttachPlan;
use super::program::BpfPrograms;
use super::syscall::ProbePoint;
use super::targets::ProbeTargets;
use crate::model::ProbeBackend;
use crate::target::Process;

pub(super) const SMALL_RING: u32 = 4096;
/// Any offset works: memspy has not mapped the file.
const ANYWHERE: ProbePoint = ProbePoint { offset: 64, semaphore: 0, cookie: 0 };

/// What can be probed in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Availability {
    /// Number of `pytorch:malloc` and `pytorch:free` sites; `None`: no CUDA part.
    pub torch: Option<(usize, usize)>,
    /// File name of the CUDA driver, if loaded.
    pub driver: Option<String>,
}

/// Examines `process`.
pub fn detect(process: &Process) -> Result<Availability, PlacementError> {
    let found = ProbeTargets::in_process(process)?;
    Ok(Availability {
        torch: found.torch.as_ref().map(|(_, mallocs, frees)| (mallocs.len(), frees.len())),
        driver: found
            .driver
            .as_ref()
            .and_then(|driver| driver.mapping().file_name().map(str::to_owned)),
    })
}

/// Loads and links a program as for `process`, but for memspy itself.
pub fn try_way(process: &Process, way: ProbeBackend) -> Result<(), PlacementError> {
    let path = process.program()?;
    let unreadable =
        |why: String| PlacementError::Unreadable { path: path.display().to_string(), why };
    let file = process.open_program().map_err(|error| unreadable(error.to_string()))?;
    let (file, pid) = (file.as_fd(), std::process::id());
    if way == ProbeBackend::PerfSamples {
        return perf_probes::try_open(file, &ANYWHERE, pid);
    }
    let plan = AttachPlan { ring_bytes: SMALL_RING, ..AttachPlan::default() };
    let constants = BpfConstants::new(&plan, &[], &[]);
    let mut programs = BpfPrograms::prepare(&constants, &plan, way)?;
    let action = ProbeAction::Run { way, program: programs.load("free_any")?, at_return: false };
    Placement { file, points: &[ANYWHERE], pid, action }.place().map(drop)
}
