//! Probes in a running process: found, put in place, read, and taken away again.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use aya::maps::{MapData, RingBuf};
use perf_event::events::Software;
use perf_event::{Builder, Counter};

use super::constants::{Constants, MOST_SITES};
use super::driver::{CALLS, Role};
use super::error::ProbeError;
use super::plan::Plan;
use super::program::Programs;
use super::raw::{ProbeCounts, Raw};
use super::ring::Decoder;
use super::syscall::{self, Point};
use crate::model::{CudaIndex, ExactWay, Frees, LevelsAt};
use crate::target::usdt::{self, Usdt};
use crate::target::{Addr, LoadedObject, Mapping, Mappings, Process};

/// Records taken from the ring at once, so that a flood does not keep a caller from its other work.
const MOST_AT_ONCE: usize = 1 << 18;

/// Begins of the names of the libraries probed; the driver's ends with its version (`libcuda.so.580.65.06`).
const TORCH: &str = "libc10_cuda";
const DRIVER: &str = "libcuda.so";

/// Probes in a process. They go when this is dropped, and when memspy ends in whatever way.
pub struct Probe {
    ring: RingBuf<MapData>,
    decoder: Decoder,
    programs: Programs,
    way: ExactWay,
    probes: Vec<Arc<str>>,
    uncovered: Vec<Arc<str>>,
    links: Vec<Link>,
    /// Whether each was loaded when the probes were placed.
    torch: bool,
    driver: bool,
}

/// What PyTorch and the driver offer to be probed.
pub(super) struct Found {
    mappings: Mappings,
    /// PyTorch's library, its sites of `malloc` and of `free`.
    pub(super) torch: Option<(Mapping, Vec<Usdt>, Vec<Usdt>)>,
    pub(super) driver: Option<LoadedObject>,
}

impl Probe {
    /// Puts the probes of `plan` into `process`, by the first way that the kernel allows.
    pub fn attach(process: &Process, plan: &Plan) -> Result<Probe, ProbeError> {
        let found = Found::in_process(process)?;
        if let Some(way) = plan.way {
            return Self::attach_by(process, plan, &found, way);
        }
        match Self::attach_by(process, plan, &found, ExactWay::UprobeMulti) {
            Err(error) if error.is_about_links() => {
                Self::attach_by(process, plan, &found, ExactWay::PerfUprobes).map_err(|_| error)
            }
            other => other,
        }
    }

    fn attach_by(
        process: &Process,
        plan: &Plan,
        found: &Found,
        way: ExactWay,
    ) -> Result<Probe, ProbeError> {
        let (mallocs, frees) = match &found.torch {
            Some((_, mallocs, frees)) => (&mallocs[..], &frees[..]),
            None => (&[][..], &[][..]),
        };
        let constants = Constants::new(plan, mallocs, frees);
        let mut programs = Programs::prepare(&constants, plan, way)?;
        for (device, at) in &plan.levels {
            programs.set_levels(device.0, *at)?;
        }
        if let Some(vtable) = plan.backward.and_then(|walk| walk.py_node) {
            programs.set_py_node(vtable)?;
        }
        let ring = programs.take_ring()?;
        let mut probe = Probe {
            ring,
            decoder: Decoder::default(),
            programs,
            way,
            probes: Vec::new(),
            uncovered: Vec::new(),
            links: Vec::new(),
            torch: found.torch.is_some(),
            driver: found.driver.is_some(),
        };
        probe.place(process, plan, found)?;
        Ok(probe)
    }

    /// Links all programs. Deaths of code objects come first, and frees before allocations, so that nothing
    /// recorded can die unseen.
    fn place(&mut self, process: &Process, plan: &Plan, found: &Found) -> Result<(), ProbeError> {
        if let Some(walk) = &plan.walk {
            match walk.code_dealloc {
                Some(at) => {
                    self.link_address(process, found, "code_dealloc", "PyCode_Type.tp_dealloc", at)?
                }
                None => self.uncovered.push(
                    "code objects that die are not noticed: the interpreter hides PyCode_Type"
                        .into(),
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
                Frees::Events => {
                    self.link_sites(process, mapping, frees, ["free_0", "free_1", "free_any"])?;
                }
                Frees::Stacks => {
                    self.link_sites(process, mapping, frees, ["free_with_stack"; 3])?;
                }
                Frees::Maps => {}
            }
            self.link_sites(process, mapping, mallocs, ["malloc_0", "malloc_1", "malloc_any"])?;
        }
        Ok(())
    }

    /// One program for each of the first sites, which knows it as a constant, and one for all others.
    fn link_sites(
        &mut self,
        process: &Process,
        mapping: &Mapping,
        sites: &[Usdt],
        programs: [&'static str; 3],
    ) -> Result<(), ProbeError> {
        let points: Vec<Point> = (0..)
            .zip(sites)
            .map(|(cookie, site)| Point {
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
        found: &Found,
        driver: &LoadedObject,
    ) -> Result<(), ProbeError> {
        let memory = process.memory();
        let file = open(process, driver.mapping())?;
        let (mut entries, mut frees, mut marks) = (Vec::new(), Vec::new(), Vec::new());
        for (cookie, call) in (0..).zip(CALLS) {
            for name in call.names {
                let Some(at) = driver.exported(&memory, name)? else { continue };
                let Some((_, offset)) = found.in_file(at) else { continue };
                let point = Point { offset, semaphore: 0, cookie };
                match call.role {
                    Role::Allocates => entries.push(point),
                    Role::Frees => frees.push(point),
                    Role::Marks => marks.push(point),
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

    /// Links `program` to the instruction at the target's address `at`.
    fn link_address(
        &mut self,
        process: &Process,
        found: &Found,
        program: &'static str,
        name: &str,
        at: u64,
    ) -> Result<(), ProbeError> {
        let Some((mapping, offset)) = found.in_file(Addr(at)) else {
            self.uncovered.push(format!("{name} is not probed: it lies in no file").into());
            return Ok(());
        };
        let file = open(process, mapping)?;
        self.link(process, &file, program, &[Point { offset, semaphore: 0, cookie: 0 }], false)?;
        self.probes.push(name.into());
        Ok(())
    }

    fn link(
        &mut self,
        process: &Process,
        file: &File,
        program: &'static str,
        points: &[Point],
        at_return: bool,
    ) -> Result<(), ProbeError> {
        // The descriptor's own name leads to the file that is mapped, also when its path has gone.
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        let program = self.programs.load(program)?;
        self.links.extend(link(self.way, program, &path, points, process.pid(), at_return)?);
        Ok(())
    }

    /// Passes on what the ring holds; returns how many records that were.
    pub fn drain(&mut self, take: &mut dyn FnMut(Raw<'_>)) -> usize {
        let mut taken = 0;
        while taken < MOST_AT_ONCE {
            let Some(record) = self.ring.next() else { break };
            self.decoder.decode(&record, take);
            taken += 1;
        }
        taken
    }

    /// How the probes are in place.
    pub fn way(&self) -> ExactWay {
        self.way
    }

    /// What is probed.
    pub fn probes(&self) -> &[Arc<str>] {
        &self.probes
    }

    /// What could not be probed, one sentence each.
    pub fn uncovered(&self) -> &[Arc<str>] {
        &self.uncovered
    }

    /// Whether something that can be probed has been loaded since the probes were placed.
    pub fn misses_something(&self, process: &Process) -> bool {
        if self.torch && self.driver {
            return false;
        }
        let Ok(mappings) = process.mappings() else { return false };
        let loaded = |stem| mappings.object(library(stem)).is_some();
        !self.torch && loaded(TORCH) || !self.driver && loaded(DRIVER)
    }

    /// What the programs counted so far.
    pub fn counts(&self) -> ProbeCounts {
        self.programs.counts()
    }

    /// Says where the counters of a device are, once it is in use.
    pub fn set_levels(&mut self, device: CudaIndex, at: LevelsAt) -> Result<(), ProbeError> {
        self.programs.set_levels(device.0, at)
    }

    /// Says what the vtable of autograd nodes written in Python is, once that is known.
    pub fn set_py_node(&mut self, vtable: u64) -> Result<(), ProbeError> {
        self.programs.set_py_node(vtable)
    }

    /// Gives up the links; what they have put into the ring can still be drained. Each ends its probes when it is
    /// dropped, for which the kernel waits some 30 ms until no program of theirs runs any more: better all at once
    /// than one after the other.
    pub fn take_links(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.links)
    }
}

/// Links `program` to places in the file at `path`, for the process `pid`.
pub(super) fn link(
    way: ExactWay,
    program: BorrowedFd<'_>,
    path: &CStr,
    points: &[Point],
    pid: u32,
    at_return: bool,
) -> Result<Vec<Link>, ProbeError> {
    if way == ExactWay::UprobeMulti {
        let link = syscall::link_uprobes(program, path, points, pid, at_return)
            .map_err(ProbeError::refused("link probes (uprobe_multi)"))?;
        return Ok(vec![Link { _link: link, _event: None }]);
    }
    // One event for each place. Its filter is by address space, so all threads are meant.
    let one = |point: &Point| {
        let event = open_event(path, point, pid, at_return)
            .map_err(ProbeError::refused("open a uprobe (perf_event_open)"))?;
        let link = syscall::link_perf_event(program, &event, point.cookie)
            .map_err(ProbeError::refused("link a program to a uprobe"))?;
        Ok(Link { _link: link, _event: Some(event) })
    };
    points.iter().map(one).collect()
}

/// A link of a program to places in the target; dropped, it ends.
pub struct Link {
    _link: OwnedFd,
    /// What the link hangs on, with perf uprobes.
    _event: Option<Counter>,
}

impl Found {
    pub(super) fn in_process(process: &Process) -> Result<Found, ProbeError> {
        let mappings = process.mappings()?;
        let memory = process.memory();
        let library =
            |stem: &'static str| move |name: &str| name.starts_with(stem) && name.contains(".so");
        let torch = match mappings.object(library(TORCH)).cloned() {
            Some(mapping) => {
                let path = || mapping.path.clone().unwrap_or_default().display().to_string();
                let file = open(process, &mapping)?;
                let all = usdt::notes(&file)
                    .map_err(|e| ProbeError::Unreadable { path: path(), why: e.to_string() })?;
                let of = |name: &str| -> Vec<Usdt> {
                    let wanted = |site: &&Usdt| site.provider == "pytorch" && site.name == name;
                    all.iter().filter(wanted).take(MOST_SITES).cloned().collect()
                };
                let (mallocs, frees) = (of("malloc"), of("free"));
                Some((mapping, mallocs, frees))
            }
            None => None,
        };
        let driver = LoadedObject::find(&memory, &mappings, library(DRIVER)).transpose()?;
        if torch.is_none() && driver.is_none() {
            return Err(ProbeError::NothingToProbe { pid: process.pid() });
        }
        Ok(Found { mappings, torch, driver })
    }

    /// The mapping and the offset in its file of an address.
    fn in_file(&self, at: Addr) -> Option<(&Mapping, u64)> {
        let mapping = self.mappings.find(at).filter(|m| m.path.is_some())?;
        Some((mapping, at.0 - mapping.start.0 + mapping.offset))
    }
}

fn open(process: &Process, mapping: &Mapping) -> Result<File, ProbeError> {
    process.open_mapped(mapping).map_err(|error| ProbeError::Unreadable {
        path: mapping.path.clone().unwrap_or_default().display().to_string(),
        why: error.to_string(),
    })
}

/// Opens a uprobe as a perf event. The kernel switches the site on by its semaphore, whose offset stands in the upper half
/// of `config` (`PERF_UPROBE_REF_CTR_OFFSET_SHIFT`, kernel/events/core.c).
fn open_event(path: &CStr, point: &Point, pid: u32, at_return: bool) -> io::Result<Counter> {
    const SEMAPHORE_SHIFT: u32 = 32;
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let kind = kind.trim().parse().map_err(io::Error::other)?;
    // perf-event2 knows the event only without a semaphore.
    let mut builder = Builder::new(Software::DUMMY);
    builder.observe_pid(pid as i32).any_cpu().sample_period(1);
    let attributes = builder.attrs_mut();
    attributes.type_ = kind;
    attributes.config = u64::from(at_return) | point.semaphore << SEMAPHORE_SHIFT;
    attributes.kprobe_func = path.as_ptr() as u64;
    attributes.probe_offset = point.offset;
    let mut event = builder.build()?;
    event.enable()?;
    Ok(event)
}

/// Whether a file's name is that of a library whose name begins with `stem`.
fn library(stem: &'static str) -> impl Fn(&str) -> bool {
    move |name| name.starts_with(stem) && name.contains(".so")
}
