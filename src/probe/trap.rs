//! The time a probe costs its thread, measured on memspy.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::availability::SMALL_RING;
use super::constants::BpfConstants;
use super::error::PlacementError;
use super::placement::{Placement, ProbeAction};
use super::plan::AttachPlan;
use super::program::BpfPrograms;
use super::syscall::ProbePoint;
use crate::model::ProbeBackend;
use crate::target::{Addr, Process};

/// Where it cannot be measured: that of an H100's host (benches/README.md).
pub const TRAP_ELSEWHERE: Duration = Duration::from_nanos(550);
/// The fastest round counts: in others another thread may have had the processor.
const CALLS: u32 = 500;
const ROUNDS: u32 = 5;

/// Probes a function of memspy with an empty program. Fails if the kernel allows no such program.
pub fn trap_time() -> Result<Duration, PlacementError> {
    match trap_time_by(ProbeBackend::UprobeMulti) {
        Err(error) if error.is_about_links() => {
            trap_time_by(ProbeBackend::PerfUprobes).map_err(|_| error)
        }
        other => other,
    }
}

fn trap_time_by(way: ProbeBackend) -> Result<Duration, PlacementError> {
    let process = Process::open(std::process::id())?;
    let at = Addr(probed as fn(u32) -> u32 as usize as u64);
    let mappings = process.mappings()?;
    let mapping = mappings.find(at).filter(|mapping| mapping.path.is_some());
    let mapping = mapping.ok_or_else(|| PlacementError::unprepared("memspy lies in no file"))?;
    let offset = at.0 - mapping.start.0 + mapping.offset;
    let file = super::targets::open(&process, mapping)?;
    let plan = AttachPlan { ring_bytes: SMALL_RING, ..AttachPlan::default() };
    let constants = BpfConstants::new(&plan, &[], &[]);
    let mut programs = BpfPrograms::prepare(&constants, &plan, way)?;
    let action = ProbeAction::Run { way, program: programs.load("nothing")?, at_return: false };
    let points = [ProbePoint { offset, semaphore: 0, cookie: 0 }];
    let placement = Placement { file: file.as_fd(), points: &points, pid: process.pid(), action };
    let without = fastest_call();
    let placed = placement.place()?;
    let with = fastest_call();
    drop(placed);
    Ok(with.saturating_sub(without))
}

fn fastest_call() -> Duration {
    let round = |_| {
        let began = Instant::now();
        (0..CALLS).for_each(|call| _ = black_box(probed(call)));
        began.elapsed() / CALLS
    };
    (0..ROUNDS).map(round).min().unwrap_or_default()
}

/// The kernel executes its first instruction (a push or a jump) itself, as at PyTorch's probes.
#[inline(never)]
fn probed(call: u32) -> u32 {
    inner(call)
}

#[inline(never)]
fn inner(call: u32) -> u32 {
    black_box(call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trap_takes_longer_than_a_call() {
        match trap_time() {
            Ok(time) => {
                assert!(time > Duration::from_nanos(50), "{time:?}");
                assert!(time < Duration::from_micros(50), "{time:?}");
            }
            Err(error) => assert!(error.is_about_programs(), "{error}"),
        }
    }
}
