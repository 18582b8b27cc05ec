//! Probes without kernel programs: each hit is a perf sample with the argument registers.
//!
//! For when bpf(2) is refused (a container's seccomp filter) or memspy has no program. Sizes and
//! addresses are exact; stacks come from sampling. Each thread has its own events: inherited ones
//! are read per processor, and removing a probe per thread and processor takes the kernel minutes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, Sampler};
use rustc_hash::{FxHashMap, FxHashSet};

use super::error::PlacementError;
use super::keeper::ProbeKeeper;
use super::placement::{Attachment, Placement, ProbeAction, SampledWords};
use super::plan::AttachPlan;
use super::ring_events::{NativeCopy, RawEvent, RingCounts, RingRecord};
use super::syscall::{self, ProbePoint};
use super::targets::{ProbeTargets, open};
use super::uprobe::OPEN_UPROBE;
use crate::model::{AddressSpace, CudaIndex, EventKind, FreeTracking, MemoryKind, StackSource};
use crate::target::usdt::{ArgumentOperand, ProbeArgument, Register, StaticProbe};
use crate::target::{Mapping, Process};

/// Bytes per thread and site: a thousand samples, or sixty if the kernel refuses that.
const RINGS: [usize; 2] = [64 << 10, 4 << 10];
const THREAD_SCAN_INTERVAL: Duration = Duration::from_millis(10);
/// Nanoseconds from a sample's time until its ring has it.
const WRITTEN_AFTER: u64 = 10_000;
const MAX_BATCH: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SiteMeaning {
    Malloc,
    Free,
}

struct SampledSite {
    meaning: SiteMeaning,
    point: ProbePoint,
    arguments: Vec<ProbeArgument>,
    words: SampledWords,
}

struct ThreadSamples {
    sampler: Sampler,
    link: Attachment,
}

impl ThreadSamples {
    fn into_link(mut self) -> Attachment {
        self.link.give_back(syscall::owned(self.sampler.into_counter()));
        self.link
    }
}

pub(super) struct PerfProbes {
    process: Process,
    file: File,
    sites: Vec<SampledSite>,
    stacks_from: u64,
    keeper: Option<Arc<ProbeKeeper>>,
    threads: FxHashMap<u32, Vec<ThreadSamples>>,
    scanned: Instant,
    /// Threads that are not tried again.
    refused: FxHashSet<u32>,
    lost: u64,
    waiting: Vec<RawEvent>,
    ended: Vec<Attachment>,
    probes: Vec<Arc<str>>,
    uncovered: Vec<Arc<str>>,
}

impl PerfProbes {
    /// `instead_of`: why programs could not run.
    pub(super) fn attach(
        process: &Process,
        plan: &AttachPlan,
        found: &ProbeTargets,
        instead_of: Option<&PlacementError>,
        keeper: Option<Arc<ProbeKeeper>>,
    ) -> Result<PerfProbes, PlacementError> {
        for (asked, what) in [
            (plan.frees == FreeTracking::Stacks, "the stacks of frees (--frees stacks)"),
            (plan.backward_lines, "the lines of the forward pass (--backward-lines)"),
            (plan.stacks_every > 0, "sampled stacks (--stacks-every)"),
        ] {
            if asked {
                return Err(PlacementError::NeedsPrograms { what });
            }
        }
        let Some((mapping, mallocs, frees)) = &found.torch else {
            return Err(PlacementError::NothingToProbe { pid: process.pid() });
        };
        let mut samples = PerfProbes {
            process: process.reopen()?,
            file: open(process, mapping)?,
            sites: Vec::new(),
            stacks_from: plan.stacks_from,
            keeper,
            threads: FxHashMap::default(),
            scanned: Instant::now(),
            refused: FxHashSet::default(),
            lost: 0,
            waiting: Vec::new(),
            ended: Vec::new(),
            probes: Vec::new(),
            uncovered: Vec::new(),
        };
        if plan.frees != FreeTracking::Snapshots {
            samples.add_sites(mapping, frees, SiteMeaning::Free)?;
        }
        samples.add_sites(mapping, mallocs, SiteMeaning::Malloc)?;
        if let Some(error) = instead_of {
            samples.uncovered.push(
                format!("no program can stand at the probes: {error}; so stacks are sampled")
                    .into(),
            );
        }
        samples.uncovered.extend([
            Arc::from("sizes and addresses are exact; stacks are those that sampling saw last on the thread"),
            "the driver's own calls and autograd nodes are not seen without programs in the kernel".into(),
            "what a new thread allocates in its first 10 ms is not seen".into(),
        ]);
        raise_file_limit();
        samples.scan_threads()?;
        Ok(samples)
    }

    fn add_sites(
        &mut self,
        mapping: &Mapping,
        sites: &[StaticProbe],
        meaning: SiteMeaning,
    ) -> Result<(), PlacementError> {
        for site in sites {
            let sampled =
                SampledSite::new(site, meaning).ok_or_else(|| PlacementError::Unreadable {
                    path: mapping.path.clone().unwrap_or_default().display().to_string(),
                    why: format!(
                        "the arguments of {}:{} are not where samples show them",
                        site.provider, site.name
                    ),
                })?;
            self.sites.push(sampled);
        }
        if let Some(site) = sites.first() {
            self.probes
                .push(format!("{}:{} ({} sites)", site.provider, site.name, sites.len()).into());
        }
        Ok(())
    }

    /// Fails only if no thread is probed.
    fn scan_threads(&mut self) -> Result<(), PlacementError> {
        self.scanned = Instant::now();
        let Ok(ids) = self.process.thread_ids() else { return Ok(()) };
        let ids: FxHashSet<u32> = ids.into_iter().collect();
        let mut error = None;
        for &id in &ids {
            if self.threads.contains_key(&id) || self.refused.contains(&id) {
                continue;
            }
            let open = |site: &SampledSite| site.open(self.file.as_fd(), id, self.keeper.as_ref());
            let opened = self.sites.iter().map(open).collect();
            match opened {
                Ok(samplers) => {
                    self.threads.insert(id, samplers);
                }
                Err(why) => {
                    self.refused.insert(id);
                    error = Some(why);
                }
            }
        }
        let gone: Vec<u32> = self.threads.keys().filter(|id| !ids.contains(id)).copied().collect();
        for id in gone {
            let Some(mut samplers) = self.threads.remove(&id) else { continue };
            self.lost += empty(&self.sites, &mut samplers, self.stacks_from, &mut self.waiting);
            self.ended.extend(samplers.into_iter().map(ThreadSamples::into_link));
        }
        match error {
            Some(error) if self.threads.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn drain(&mut self, take: &mut dyn FnMut(RingRecord<'_>) -> bool) -> usize {
        if !self.threads.is_empty() && self.scanned.elapsed() >= THREAD_SCAN_INTERVAL {
            // The counters reveal threads without probes.
            let _ = self.scan_threads();
        }
        // Rings are emptied one by one: pass on only what was there before all were read, in order.
        let until = if self.threads.is_empty() { u64::MAX } else { monotonic() - WRITTEN_AFTER };
        for samplers in self.threads.values_mut() {
            self.lost += empty(&self.sites, samplers, self.stacks_from, &mut self.waiting);
        }
        self.waiting.sort_by_key(|event| event.time);
        let ready = self.waiting.partition_point(|event| event.time < until);
        for event in self.waiting.drain(..ready) {
            take(RingRecord::Event(event));
        }
        ready
    }

    pub(super) fn probes(&self) -> &[Arc<str>] {
        &self.probes
    }

    pub(super) fn uncovered(&self) -> &[Arc<str>] {
        &self.uncovered
    }

    pub(super) fn counts(&self) -> RingCounts {
        RingCounts { lost: self.lost, lost_descriptions: 0 }
    }

    pub(super) fn take_ended(&mut self) -> Vec<Attachment> {
        std::mem::take(&mut self.ended)
    }

    pub(super) fn take_links(&mut self) -> Vec<Attachment> {
        let mut links = self.take_ended();
        for (_, mut samplers) in self.threads.drain() {
            self.lost += empty(&self.sites, &mut samplers, self.stacks_from, &mut self.waiting);
            links.extend(samplers.into_iter().map(ThreadSamples::into_link));
        }
        links
    }
}

/// Returns how many samples were lost.
fn empty(
    sites: &[SampledSite],
    samplers: &mut [ThreadSamples],
    stacks_from: u64,
    into: &mut Vec<RawEvent>,
) -> u64 {
    let drain = |(site, samples): (&SampledSite, &mut ThreadSamples)| {
        site.drain(&mut samples.sampler, stacks_from, &mut |event| into.push(event))
    };
    sites.iter().zip(samplers).map(drain).sum()
}

fn monotonic() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Each thread needs one file for each site.
pub(super) fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If this is refused, opening fails with the reason.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

impl SampledSite {
    /// `None` if an argument is in no sampled place.
    fn new(site: &StaticProbe, meaning: SiteMeaning) -> Option<SampledSite> {
        let wanted = match meaning {
            SiteMeaning::Malloc => 3,
            SiteMeaning::Free => 1,
        };
        let arguments = site.arguments.get(..wanted)?.to_vec();
        let (mut registers, mut stack) = (0, false);
        for argument in &arguments {
            match argument.operand {
                ArgumentOperand::Constant(_) => {}
                ArgumentOperand::Register(register) => registers |= 1 << register.perf_number(),
                ArgumentOperand::Memory { base, index: None, .. } => {
                    let pointer = Register::named("rsp")?;
                    registers |= 1 << base.perf_number() | 1 << pointer.perf_number();
                    stack = true;
                }
                ArgumentOperand::Memory { index: Some(_), .. } => return None,
            }
        }
        let point =
            ProbePoint { offset: site.offset, semaphore: site.semaphore.unwrap_or(0), cookie: 0 };
        Some(SampledSite { meaning, point, arguments, words: SampledWords { registers, stack } })
    }

    fn open(
        &self,
        file: BorrowedFd<'_>,
        thread: u32,
        keeper: Option<&Arc<ProbeKeeper>>,
    ) -> Result<ThreadSamples, PlacementError> {
        let open = |ring: usize| {
            let points = &[self.point];
            let action = ProbeAction::Sample(self.words);
            let mut links = Placement { file, points, pid: thread, action }.place_by(keeper)?;
            let mut link = links.pop().ok_or_else(|| PlacementError::unprepared("no link"))?;
            let sampler = self.sampler(&mut link, thread, ring);
            let sampler = sampler.map_err(PlacementError::refused(OPEN_UPROBE))?;
            Ok(ThreadSamples { sampler, link })
        };
        let [large, small] = RINGS;
        open(large).or_else(|_: PlacementError| open(small))
    }

    fn sampler(&self, link: &mut Attachment, thread: u32, ring: usize) -> io::Result<Sampler> {
        // perf-event2 reads only events that it opened: open a dummy with the same sample layout.
        let mut builder = Builder::new(Software::DUMMY);
        builder.observe_pid(thread as i32).any_cpu().sample_period(1);
        self.words.ask(&mut builder);
        let mut counter = builder.build()?;
        let event = link.lend().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        syscall::replace(&mut counter, event)?;
        let mut sampler = counter.sampled(ring)?;
        sampler.as_counter_mut().enable()?;
        Ok(sampler)
    }

    /// Returns how many samples were lost.
    fn drain(
        &self,
        sampler: &mut Sampler,
        stacks_from: u64,
        take: &mut dyn FnMut(RawEvent),
    ) -> u64 {
        let mut lost = 0;
        for _ in 0..MAX_BATCH {
            let Some(record) = sampler.next_record() else { break };
            match record.parse_record() {
                Ok(Record::Sample(sample)) => {
                    let event = (|| {
                        let registers = sample.regs_user()?;
                        let seen = PerfSample {
                            mask: self.words.registers,
                            registers: &registers.regs,
                            stack: sample.stack_user().unwrap_or_default(),
                        };
                        let change = self.change(&seen)?;
                        Some(RawEvent {
                            time: sample.time()?,
                            change,
                            os_thread: sample.tid()?,
                            python_id: 0,
                            stack: 0,
                            source: source(&change, stacks_from),
                            truncated: false,
                            faulted: false,
                            node: None,
                            native: NativeCopy::NotTaken,
                        })
                    })();
                    match event {
                        Some(event) => take(event),
                        None => lost += 1,
                    }
                }
                Ok(Record::Lost(record)) => lost += record.lost,
                Ok(_) => {}
                Err(_) => lost += 1,
            }
        }
        lost
    }

    fn change(&self, seen: &PerfSample<'_>) -> Option<EventKind> {
        let value = |index: usize| seen.value(self.arguments.get(index)?);
        let address = value(0)? as u64;
        Some(match self.meaning {
            SiteMeaning::Malloc => EventKind::Allocated {
                memory_kind: MemoryKind::Torch(CudaIndex(value(1)?.try_into().ok()?)),
                address,
                size: value(2)? as u64,
                levels: None,
                block: None,
            },
            SiteMeaning::Free => {
                EventKind::Freed { memory_kind: AddressSpace::Torch, address, in_backward: false }
            }
        })
    }
}

fn source(change: &EventKind, stacks_from: u64) -> StackSource {
    match *change {
        EventKind::Allocated { size, .. } if size < stacks_from => StackSource::NotTaken,
        _ => StackSource::Sampled,
    }
}

/// Registers by the bits of `mask`, lowest first; the stack from its pointer on.
struct PerfSample<'a> {
    mask: u64,
    registers: &'a [u64],
    stack: &'a [u8],
}

impl PerfSample<'_> {
    fn register(&self, register: Register) -> Option<u64> {
        let below = self.mask & ((1 << register.perf_number()) - 1);
        self.registers.get(below.count_ones() as usize).copied()
    }

    fn value(&self, argument: &ProbeArgument) -> Option<i64> {
        let whole = match argument.operand {
            ArgumentOperand::Constant(value) => return Some(value),
            ArgumentOperand::Register(register) => self.register(register)?,
            ArgumentOperand::Memory { base, displacement, .. } => {
                let at = self.register(base)?.wrapping_add_signed(displacement);
                let start = at.checked_sub(self.register(Register::named("rsp")?)?)? as usize;
                let bytes = self.stack.get(start..start.checked_add(argument.size.into())?)?;
                let mut word = [0; 8];
                word.get_mut(..bytes.len())?.copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }
        };
        let unused = 64 - 8 * u32::from(argument.size.clamp(1, 8));
        let shifted = whole << unused;
        Some(if argument.signed { (shifted as i64) >> unused } else { (shifted >> unused) as i64 })
    }
}

pub(super) fn try_open(
    file: BorrowedFd<'_>,
    point: &ProbePoint,
    process: u32,
) -> Result<(), PlacementError> {
    let site = SampledSite {
        meaning: SiteMeaning::Free,
        point: ProbePoint { cookie: 0, ..*point },
        arguments: Vec::new(),
        words: SampledWords { registers: 1, stack: false },
    };
    site.open(file, process, None).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(size: u8, signed: bool, operand: ArgumentOperand) -> ProbeArgument {
        ProbeArgument { size, signed, operand }
    }

    #[test]
    fn arguments_are_found_in_registers_and_on_the_stack() {
        let [rax, rdx, rsp] = ["rax", "rdx", "rsp"].map(|name| Register::named(name).unwrap());
        let mut stack = vec![0; 64];
        stack[16..20].copy_from_slice(&(-7i32).to_le_bytes());
        let seen = PerfSample {
            mask: 1 << rax.perf_number() | 1 << rdx.perf_number() | 1 << rsp.perf_number(),
            registers: &[0xdead, 0xffff_fff3, 0x7000],
            stack: &stack,
        };
        let value = |size, signed, operand| seen.value(&argument(size, signed, operand));
        assert_eq!(value(8, false, ArgumentOperand::Register(rax)), Some(0xdead));
        // The device is a register's lowest byte; others are undefined.
        assert_eq!(value(1, true, ArgumentOperand::Register(rdx)), Some(-13));
        assert_eq!(value(1, false, ArgumentOperand::Register(rdx)), Some(0xf3));
        assert_eq!(value(4, true, ArgumentOperand::Constant(5)), Some(5));
        let on_stack =
            |displacement| ArgumentOperand::Memory { base: rsp, index: None, displacement };
        assert_eq!(value(4, true, on_stack(16)), Some(-7));
        assert_eq!(value(8, true, on_stack(60)), None);
        assert_eq!(value(8, true, on_stack(-8)), None);
    }
}
