//! Which ways to place probes are open, found by trying them without touching the target.

use std::ffi::CString;
use std::os::fd::AsRawFd;

use super::constants::Constants;
use super::error::ProbeError;
use super::found::Found;
use super::placed::{Link, link};
use super::plan::Plan;
use super::program::Programs;
use super::samples;
use super::syscall::Point;
use crate::model::ExactWay;
use crate::target::Process;

/// The ring of a trial: the least there can be.
const SMALL_RING: u32 = 4096;
/// Any place in a program's file will do: it is probed only for memspy itself, which has not mapped it.
const ANYWHERE: Point = Point { offset: 64, semaphore: 0, cookie: 0 };

/// What a process offers to be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// Sites of `pytorch:malloc` and `pytorch:free`; `None` when PyTorch's CUDA part is not loaded.
    pub torch: Option<(usize, usize)>,
    /// File name of the CUDA driver; `None` when it is not loaded.
    pub driver: Option<String>,
}

/// What `process` offers.
pub fn offer(process: &Process) -> Result<Offer, ProbeError> {
    let found = Found::in_process(process)?;
    Ok(Offer {
        torch: found.torch.as_ref().map(|(_, mallocs, frees)| (mallocs.len(), frees.len())),
        driver: found
            .driver
            .as_ref()
            .and_then(|driver| driver.mapping().file_name().map(str::to_owned)),
    })
}

/// Loads a program and links it as a recording of `process` would, but for memspy itself.
pub fn try_way(process: &Process, way: ExactWay) -> Result<(), ProbeError> {
    let path = process.program()?;
    let unreadable = |why: String| ProbeError::Unreadable { path: path.display().to_string(), why };
    let file = process.open_program().map_err(|error| unreadable(error.to_string()))?;
    let name = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    if way == ExactWay::PerfSamples {
        return samples::try_open(&name, &ANYWHERE, std::process::id());
    }
    let plan = Plan { ring_bytes: SMALL_RING, ..Plan::default() };
    let constants = Constants::new(&plan, &[], &[]);
    let mut programs = Programs::prepare(&constants, &plan, way)?;
    let program = programs.load("free_any")?;
    let _links: Vec<Link> = link(way, program, &name, &[ANYWHERE], std::process::id(), false)?;
    Ok(())
}
