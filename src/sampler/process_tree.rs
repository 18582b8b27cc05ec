//! A process and its descendants: which of them use CUDA and are recorded.
//!
//! A rank (`RANK` in its environment) is recorded once CUDA's libraries are loaded, so that its
//! first allocations are seen; others once CUDA is initialised; a fork of a CUDA process only if
//! the driver lists its memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::readers::{AttachError, TargetIdentity, TargetReaders, TorchState};
use crate::model::{AllocatorBackend, Nanos, ProcessUsage};
use crate::target::{CommandPattern, Mappings, Process, environment};

const RECHECK_INTERVAL: Duration = Duration::from_secs(2);
/// A younger process may be importing PyTorch.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(30);
/// Loaded before PyTorch's CUDA part (torch/__init__.py: `_load_global_deps`).
const PYTORCH: [&str; 3] = ["libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"];
const CUDA: [&str; 2] = ["libcuda.so", "libc10_cuda.so"];
/// In the command of processes spawned by `multiprocessing` (Lib/multiprocessing/spawn.py).
const SPAWNED: &str = "--multiprocessing-fork";

/// A process to record, with `RANK` of its environment.
#[allow(missing_docs)]
pub struct RankProcess {
    pub readers: TargetReaders,
    pub rank: Option<u32>,
}

impl RankProcess {
    /// Its label: `rank 3 (process 1234)`.
    pub fn label(&self) -> String {
        let pid = self.readers.process.pid();
        match self.rank {
            Some(rank) => format!("rank {rank} (process {pid})"),
            None => format!("process {pid}"),
        }
    }
}

/// A process and its descendants.
pub struct ProcessTree {
    roots: TreeRoots,
    any: bool,
    known: HashMap<u32, KnownProcess>,
}

enum TreeRoots {
    Process(Arc<Process>),
    Called(CommandPattern),
}

struct KnownProcess {
    process: Arc<Process>,
    state: MemberState,
}

enum MemberState {
    Idle,
    Waiting(Box<TargetReaders>),
    /// A fork, last checked at this time.
    Copy(Instant),
    Selected,
}

impl ProcessTree {
    /// The tree of process `pid`; with `any`, without Python, too.
    pub fn new(pid: u32, any: bool) -> Result<ProcessTree, AttachError> {
        let roots = TreeRoots::Process(Arc::new(Process::open(pid)?));
        Ok(ProcessTree { roots, any, known: HashMap::new() })
    }

    /// All processes that match; with `any`, without Python, too.
    pub fn called(pattern: CommandPattern, any: bool) -> ProcessTree {
        ProcessTree { roots: TreeRoots::Called(pattern), any, known: HashMap::new() }
    }

    /// Always true with a pattern.
    pub fn root_is_alive(&self) -> bool {
        match &self.roots {
            TreeRoots::Process(root) => root.is_alive(),
            TreeRoots::Called(_) => true,
        }
    }

    /// The new members to record.
    pub fn poll(&mut self) -> Vec<RankProcess> {
        let mut pids = match &self.roots {
            TreeRoots::Process(root) => [vec![root.pid()], root.descendants()].concat(),
            TreeRoots::Called(pattern) => {
                let pids = pattern.find();
                self.known.retain(|_, known| known.process.is_alive());
                return pids.into_iter().filter_map(|pid| self.inspect(pid)).collect();
            }
        };
        let orphans: Vec<u32> =
            self.known.keys().copied().filter(|pid| !pids.contains(pid)).collect();
        for pid in orphans {
            let Some(known) = self.known.get(&pid) else { continue };
            if !known.process.is_alive() {
                self.known.remove(&pid);
                continue;
            }
            pids.push(pid);
            pids.extend(known.process.descendants());
        }
        pids.sort_unstable();
        pids.dedup();
        pids.into_iter().filter_map(|pid| self.inspect(pid)).collect()
    }

    fn inspect(&mut self, pid: u32) -> Option<RankProcess> {
        if self.known.get(&pid).is_none_or(|known| !known.process.is_alive()) {
            let process = Arc::new(Process::open(pid).ok()?);
            self.known.insert(pid, KnownProcess { process, state: MemberState::Idle });
        }
        let known = self.known.get_mut(&pid)?;
        let process = Arc::clone(&known.process);
        let readers = match std::mem::replace(&mut known.state, MemberState::Idle) {
            MemberState::Selected => {
                known.state = MemberState::Selected;
                return None;
            }
            MemberState::Copy(asked) if asked.elapsed() < RECHECK_INTERVAL => {
                known.state = MemberState::Copy(asked);
                return None;
            }
            MemberState::Idle | MemberState::Copy(_) => {
                let mappings = process.mappings().ok()?;
                if !has(&mappings, &CUDA) {
                    return None;
                }
                Box::new(attach(&process, self.any)?)
            }
            // An exec ended what was attached to.
            MemberState::Waiting(readers) if !readers.process.same_start() => {
                Box::new(attach(&process, self.any)?)
            }
            MemberState::Waiting(mut readers) => {
                readers.refresh();
                readers
            }
        };
        // The driver comes last: it takes milliseconds and a driver lock.
        let is_copy = self.is_copy(&process);
        let seems = !is_copy && (is_rank(&process) || uses_cuda(&readers));
        let standing = if seems || holds_memory(&readers) {
            let rank = rank(&process);
            self.set_standing(pid, MemberState::Selected);
            return Some(RankProcess { readers: *readers, rank });
        } else if is_copy {
            MemberState::Copy(Instant::now())
        } else {
            MemberState::Waiting(readers)
        };
        self.set_standing(pid, standing);
        None
    }

    fn set_standing(&mut self, pid: u32, standing: MemberState) {
        if let Some(known) = self.known.get_mut(&pid) {
            known.state = standing;
        }
    }

    fn is_copy(&self, process: &Process) -> bool {
        let mut parent = process.parent();
        while let Some(known) = parent.and_then(|pid| self.known.get(&pid)) {
            if matches!(known.state, MemberState::Selected)
                && known.process.shares_program_start(process)
            {
                return true;
            }
            parent = known.process.parent();
        }
        false
    }
}

fn attach(process: &Arc<Process>, any: bool) -> Option<TargetReaders> {
    let process = TargetIdentity::from(process);
    if any { process.attach_any().ok() } else { process.attach().ok() }
}

fn holds_memory(readers: &TargetReaders) -> bool {
    let Ok(gpu) = &readers.gpu else { return false };
    readers.devices().iter().filter_map(|device| device.nvml_index).any(|device| {
        let usage = gpu.usage(device, Nanos(0));
        usage.is_ok_and(|usage| matches!(usage.process, ProcessUsage::Bytes(bytes) if bytes > 0))
    })
}

fn uses_cuda(readers: &TargetReaders) -> bool {
    match readers.allocator() {
        // Nothing is known about an ending process.
        AllocatorBackend::NotInitialized | AllocatorBackend::Unknown(_) => false,
        AllocatorBackend::NotLoaded => {
            matches!(readers.torch, TorchState::NotLoaded) && has_driver_alone(&readers.process)
        }
        AllocatorBackend::Native
        | AllocatorBackend::CudaMallocAsync
        | AllocatorBackend::Pluggable(_) => true,
    }
}

/// Launchers load PyTorch and the driver and never use a device.
fn has_driver_alone(process: &Process) -> bool {
    let Ok(mappings) = process.mappings() else { return false };
    let is_young = process.age().is_some_and(|age| age < IMPORT_TIMEOUT);
    has(&mappings, &CUDA) && !(is_young && has(&mappings, &PYTORCH))
}

fn has(mappings: &Mappings, libraries: &[&str]) -> bool {
    let is_one = |name: &str| libraries.iter().any(|library| name.starts_with(library));
    mappings.object(is_one).is_some()
}

/// Processes spawned by a rank inherit its environment.
fn is_rank(process: &Process) -> bool {
    let spawned = process.command().is_ok_and(|words| words.iter().any(|word| word == SPAWNED));
    !spawned && variable(process, "RANK").is_some()
}

/// `RANK` in the environment of a process.
pub fn rank_of(pid: u32) -> Option<u32> {
    rank(&Process::open(pid).ok()?)
}

pub(super) fn rank(process: &Process) -> Option<u32> {
    variable(process, "RANK")?.parse().ok()
}

fn variable(process: &Process, name: &str) -> Option<String> {
    let mappings = process.mappings().ok()?;
    match environment::read(&process.memory(), &mappings) {
        Some(variables) => environment::variable(&variables, name),
        None => process.environment(name).ok().flatten(),
    }
}
