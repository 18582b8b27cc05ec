//! A request to place probes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;

use perf_event::{Builder, Clock, SampleFlag};

use super::error::PlacementError;
use super::keeper::{KeptProbes, ProbeKeeper};
use super::syscall::{self, ProbePoint};
use super::uprobe::{OPEN_UPROBE, uprobe};
use crate::model::ProbeBackend;
use crate::target::proc_files;

/// Bytes of stack sampled if an argument is on it.
const STACK: u32 = 512;

pub(super) struct Placement<'a> {
    pub(super) file: BorrowedFd<'a>,
    pub(super) points: &'a [ProbePoint],
    /// A process; for samples, one thread.
    pub(super) pid: u32,
    pub(super) action: ProbeAction<'a>,
}

pub(super) enum ProbeAction<'a> {
    /// `at_return`: when the function that begins there returns.
    Run {
        way: ProbeBackend,
        program: BorrowedFd<'a>,
        at_return: bool,
    },
    Sample(SampledWords),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SampledWords {
    /// Bits by register number.
    pub(super) registers: u64,
    pub(super) stack: bool,
}

impl SampledWords {
    pub(super) fn ask(self, builder: &mut Builder<'_>) {
        builder
            .sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::REGS_USER)
            .sample_regs_user(self.registers)
            .clockid(Clock::MONOTONIC);
        if self.stack {
            builder.sample(SampleFlag::STACK_USER).sample_stack_user(STACK);
        }
    }
}

impl Placement<'_> {
    pub(super) fn place_by(
        &self,
        keeper: Option<&Arc<ProbeKeeper>>,
    ) -> Result<Vec<Attachment>, PlacementError> {
        if let Some(link) = keeper.and_then(|keeper| keeper.place(self)) {
            return Ok(vec![link]);
        }
        // This attempt gives the reason for a refusal.
        let placed = self.place()?;
        Ok(placed.into_iter().map(|own| Attachment { own, _kept: None }).collect())
    }

    /// Returns each probe's descriptors, which keep it in place.
    pub(super) fn place(&self) -> Result<Vec<Vec<OwnedFd>>, PlacementError> {
        // The descriptor's own path leads to the mapped file, even if that has no other path.
        let path = proc_files::own_descriptor(self.file.as_fd());
        let path = CString::new(path.into_os_string().into_vec()).unwrap_or_default();
        let one = |point: &ProbePoint| match &self.action {
            ProbeAction::Run { program, at_return, .. } => {
                self.link_event(&path, point, *program, *at_return)
            }
            ProbeAction::Sample(words) => self.open_samples(&path, point, *words),
        };
        if let ProbeAction::Run { way: ProbeBackend::UprobeMulti, program, at_return } = self.action
        {
            let link = syscall::link_uprobes(program, &path, self.points, self.pid, at_return)
                .map_err(PlacementError::refused("link probes (uprobe_multi)"))?;
            return Ok(vec![vec![link]]);
        }
        self.points.iter().map(one).collect()
    }

    /// Its filter is by address space, so it covers all threads.
    fn link_event(
        &self,
        path: &CStr,
        point: &ProbePoint,
        program: BorrowedFd<'_>,
        at_return: bool,
    ) -> Result<Vec<OwnedFd>, PlacementError> {
        let open = || {
            let mut event = uprobe(path, point, self.pid, at_return)?.build()?;
            event.enable()?;
            Ok(syscall::owned(event))
        };
        let event = open().map_err(PlacementError::refused(OPEN_UPROBE))?;
        let link = syscall::link_perf_event(program, &event, point.cookie)
            .map_err(PlacementError::refused("link a program to a uprobe"))?;
        Ok(vec![link, event])
    }

    fn open_samples(
        &self,
        path: &CStr,
        point: &ProbePoint,
        words: SampledWords,
    ) -> Result<Vec<OwnedFd>, PlacementError> {
        let open = || {
            let mut builder = uprobe(path, point, self.pid, false)?;
            words.ask(&mut builder);
            Ok(syscall::owned(builder.build()?))
        };
        Ok(vec![open().map_err(PlacementError::refused(OPEN_UPROBE))?])
    }
}

/// Keeps probes in the target until dropped.
pub struct Attachment {
    /// Closed first: closing the last copy makes the kernel remove the probes.
    own: Vec<OwnedFd>,
    _kept: Option<KeptProbes>,
}

impl Attachment {
    pub(super) fn kept(own: Vec<OwnedFd>, kept: KeptProbes) -> Attachment {
        Attachment { own, _kept: Some(kept) }
    }

    pub(super) fn lend(&mut self) -> Option<OwnedFd> {
        self.own.pop()
    }

    pub(super) fn give_back(&mut self, event: OwnedFd) {
        self.own.push(event);
    }
}
