//! BPF programs at probes: placing, reading, removing.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;

use aya::maps::{MapData, RingBuf};

use super::constants::BpfConstants;
use super::driver::{CALLS, ProbeRole};
use super::error::PlacementError;
use super::keeper::ProbeKeeper;
use super::placement::{Attachment, Placement, ProbeAction};
use super::plan::AttachPlan;
use super::program::BpfPrograms;
use super::ring::RingDecoder;
use super::ring_events::{ProgramTime, RingCounts, RingRecord};
use super::step_counter;
use super::syscall::ProbePoint;
use super::targets::{ProbeTargets, open};
use crate::abi::{CounterAddresses, WatchedSteps};
use crate::model::{CudaIndex, FreeTracking, ProbeBackend};
use crate::target::usdt::StaticProbe;
use crate::target::{Addr, LoadedObject, Mapping, Process};

/// A flood must not starve the caller's other work.
const MAX_BATCH: usize = 1 << 18;

pub(super) struct BpfProbes {
    ring: RingBuf<MapData>,
    /// A stack copy arrives before the event with its number.
    native_ring: Option<RingBuf<MapData>>,
    decoder: RingDecoder,
    programs: BpfPrograms,
    backend: ProbeBackend,
    probes: Vec<Arc<str>>,
    uncovered: Vec<Arc<str>>,
    keeper: Option<Arc<ProbeKeeper>>,
    links: Vec<Attachment>,
    /// Which of the two sets of watched words is in use.
    half: u32,
}

impl BpfProbes {
    pub(super) fn attach(
        process: &Process,
        plan: &AttachPlan,
        found: &ProbeTargets,
        way: ProbeBackend,
        keeper: Option<Arc<ProbeKeeper>>,
    ) -> Result<BpfProbes, PlacementError> {
        let (mallocs, frees) = match &found.torch {
            Some((_, mallocs, frees)) => (&mallocs[..], &frees[..]),
            None => (&[][..], &[][..]),
        };
        let constants = BpfConstants::new(plan, mallocs, frees);
        let mut programs = BpfPrograms::prepare(&constants, plan, way)?;
        for (device, at) in &plan.levels {
            programs.set_levels(device.0, *at)?;
        }
        if let Some(vtable) = plan.backward.and_then(|walk| walk.py_node) {
            programs.set_py_node(vtable)?;
        }
        programs.set_module_calls([0; 2])?;
        let ring = programs.take_ring("RING")?;
        let native_ring = match plan.native_from {
            Some(_) => Some(programs.take_ring("NATIVE_RING")?),
            None => None,
        };
        let mut probe = BpfProbes {
            ring,
            native_ring,
            decoder: RingDecoder::default(),
            programs,
            backend: way,
            probes: Vec::new(),
            uncovered: Vec::new(),
            keeper,
            links: Vec::new(),
            half: 0,
        };
        probe.place(process, plan, found)?;
        Ok(probe)
    }

    /// Links deaths of code objects first, and frees before allocations, so that nothing recorded
    /// dies unseen.
    fn place(
        &mut self,
        process: &Process,
        plan: &AttachPlan,
        found: &ProbeTargets,
    ) -> Result<(), PlacementError> {
        if let Some(walk) = &plan.walk {
            match walk.code_dealloc {
                Some(at) => {
                    self.link_address(process, found, "code_dealloc", "PyCode_Type.tp_dealloc", at)?
                }
                None => self.uncovered.push(
                    "freed code objects are not noticed: the interpreter hides PyCode_Type".into(),
                ),
            }
        }
        if let Some(walk) = &plan.backward {
            if let Some((at, _)) = walk.execute {
                self.link_address(
                    process,
                    found,
                    "backward_call",
                    "Engine::execute_with_graph_task",
                    at,
                )?;
            }
            if plan.backward_lines {
                let name = "at::sequence_number::get_and_increment";
                self.link_address(process, found, "forward_node", name, walk.sequence_site)?;
            }
        }
        if let Some(driver) = &found.driver {
            self.link_driver(process, found, driver)?;
        } else {
            self.uncovered
                .push("the CUDA driver (libcuda) is not loaded: its calls are not seen".into());
        }
        if let Some((mapping, mallocs, frees)) = &found.torch {
            match plan.frees {
                FreeTracking::Events => {
                    self.link_sites(process, mapping, frees, ["free_0", "free_1", "free_any"])?;
                }
                FreeTracking::Stacks => {
                    self.link_sites(process, mapping, frees, ["free_with_stack"; 3])?;
                }
                FreeTracking::Snapshots => {}
            }
            self.link_sites(process, mapping, mallocs, ["malloc_0", "malloc_1", "malloc_any"])?;
        }
        Ok(())
    }

    fn link_sites(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        sites: &[StaticProbe],
        programs: [&'static str; 3],
    ) -> Result<(), PlacementError> {
        let points: Vec<ProbePoint> = (0..)
            .zip(sites)
            .map(|(cookie, site)| ProbePoint {
                offset: site.offset,
                semaphore: site.semaphore.unwrap_or(0),
                cookie,
            })
            .collect();
        let file = open(process, mapping)?;
        for (program, points) in [
            (programs[0], points.get(..1)),
            (programs[1], points.get(1..2)),
            (programs[2], points.get(2..)),
        ] {
            if let Some(points) = points.filter(|points| !points.is_empty()) {
                self.link(process, &file, program, points, false)?;
            }
        }
        if let Some(site) = sites.first() {
            self.probes
                .push(format!("{}:{} ({} sites)", site.provider, site.name, sites.len()).into());
        }
        Ok(())
    }

    fn link_driver(
        &mut self,
        process: &Process,
        found: &ProbeTargets,
        driver: &LoadedObject,
    ) -> Result<(), PlacementError> {
        let memory = process.memory();
        let file = open(process, driver.mapping())?;
        let (mut entries, mut frees, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        for (cookie, call) in (0..).zip(CALLS) {
            for name in call.names {
                let Some(at) = driver.exported(&memory, name)? else { continue };
                let Some((_, offset)) = found.in_file(at) else { continue };
                let point = ProbePoint { offset, semaphore: 0, cookie };
                match call.role {
                    ProbeRole::Allocates => entries.push(point),
                    ProbeRole::Frees => frees.push(point),
                    ProbeRole::Marks => marks.push(point),
                }
                self.probes.push((*name).into());
            }
        }
        for (program, points, at_return) in [
            ("driver_free", &frees, false),
            ("driver_return", &entries, true),
            ("driver_entry", &entries, false),
            ("driver_entry", &marks, false),
        ] {
            if !points.is_empty() {
                self.link(process, &file, program, points, at_return)?;
            }
        }
        Ok(())
    }

    fn link_address(
        &mut self,
        process: &Process,
        found: &ProbeTargets,
        program: &'static str,
        name: &str,
        at: u64,
    ) -> Result<(), PlacementError> {
        let Some((mapping, offset)) = found.in_file(Addr(at)) else {
            self.uncovered.push(format!("{name} is not probed: it lies in no file").into());
            return Ok(());
        };
        let file = open(process, mapping)?;
        self.link(
            process,
            &file,
            program,
            &[ProbePoint { offset, semaphore: 0, cookie: 0 }],
            false,
        )?;
        self.probes.push(name.into());
        Ok(())
    }

    fn link(
        &mut self,
        process: &Process,
        file: &File,
        program: &'static str,
        points: &[ProbePoint],
        at_return: bool,
    ) -> Result<(), PlacementError> {
        let action = ProbeAction::Run {
            way: self.backend,
            program: self.programs.load(program)?,
            at_return,
        };
        let placement = Placement { file: file.as_fd(), points, pid: process.pid(), action };
        self.links.extend(placement.place_by(self.keeper.as_ref())?);
        Ok(())
    }

    /// Stops when `take` returns `false`; returns how many.
    pub(super) fn drain(&mut self, take: &mut dyn FnMut(RingRecord<'_>) -> bool) -> usize {
        let (mut taken, mut goes_on) = (0, true);
        while goes_on && taken < MAX_BATCH {
            let Some(record) = self.ring.next() else { break };
            self.decoder.decode(&record, &mut |raw| goes_on = take(raw));
            taken += 1;
        }
        // All copies for these events have arrived.
        for _ in 0..MAX_BATCH {
            let Some(record) = self.native_ring.as_mut().and_then(RingBuf::next) else { break };
            self.decoder.decode(&record, &mut |raw| _ = take(raw));
        }
        taken
    }

    pub(super) fn way(&self) -> ProbeBackend {
        self.backend
    }

    pub(super) fn probes(&self) -> &[Arc<str>] {
        &self.probes
    }

    pub(super) fn uncovered(&self) -> &[Arc<str>] {
        &self.uncovered
    }

    pub(super) fn counts(&self) -> RingCounts {
        self.programs.counts()
    }

    pub(super) fn time(&self) -> Option<ProgramTime> {
        self.programs.time()
    }

    pub(super) fn set_levels(
        &mut self,
        device: CudaIndex,
        at: CounterAddresses,
    ) -> Result<(), PlacementError> {
        self.programs.set_levels(device.0, at)
    }

    pub(super) fn watch(
        &mut self,
        steps: Option<&WatchedSteps>,
        number: u32,
    ) -> Result<(), PlacementError> {
        // A program that reads the old set at this moment continues with it.
        self.half ^= 1;
        self.programs.watch(self.half, step_counter::place(steps, number))
    }

    pub(super) fn set_py_node(&mut self, vtable: u64) -> Result<(), PlacementError> {
        self.programs.set_py_node(vtable)
    }

    pub(super) fn set_module_calls(&mut self, codes: [u64; 2]) -> Result<(), PlacementError> {
        self.programs.set_module_calls(codes)
    }

    pub(super) fn renew_keys(&mut self) -> Result<(), PlacementError> {
        self.programs.renew_keys()
    }

    pub(super) fn forget_codes(&mut self, codes: &[u64]) -> Result<(), PlacementError> {
        self.programs.forget_codes(codes)
    }

    pub(super) fn take_links(&mut self) -> Vec<Attachment> {
        std::mem::take(&mut self.links)
    }
}
