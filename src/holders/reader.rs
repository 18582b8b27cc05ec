//! One look at all holders, while the process stands still.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::error::HolderError;
use super::names::{self, Named};
use super::paths;
use super::referrers;
use super::rows::Rows;
use crate::model::holdings::InUse;
use crate::model::{
    AllocatorBackend, BlockMap, Consistency, CountingKind, CountingObject, HolderMap, Nanos,
};
use crate::python::{Class, Heap, HeapError, PythonReader};
use crate::target::{Addr, PageCache, Process, ProcessError, Standstill};
use crate::torch::{TensorReader, TensorTypes, TorchReader};

/// How long the blocks are read again when a process that runs on changes them.
const RUNNING_PATIENCE: Duration = Duration::from_millis(20);

/// Whether the process may be stopped for the look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pausing {
    /// Stopped for some milliseconds: everything fits together.
    #[default]
    Stop,
    /// Never stopped: what was read may be torn, and is checked as far as it can be.
    Never,
}

/// Reads the holders of one process.
pub struct HolderReader {
    tensors: TensorReader,
}

/// What an object is to a look at holders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Tensor,
    Module,
    Optimizer,
    Counting(CountingKind),
    Nothing,
}

/// The objects that matter, found in one pass over the heap.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) tensors: Vec<Addr>,
    pub(super) modules: Vec<Addr>,
    pub(super) optimizers: Vec<Addr>,
    pub(super) counting: Vec<CountingObject>,
}

impl HolderReader {
    /// Attaches to `process`; `Ok(None)` when PyTorch is not loaded in it.
    pub fn attach(process: &Process) -> Result<Option<HolderReader>, HolderError> {
        let tensors = TensorReader::attach(process)?;
        Ok(tensors.map(|tensors| HolderReader { tensors }))
    }

    /// One look; what refers to the tensors that are called `asked`, or are at that address (`0x…`), is looked for too, which
    /// takes as long again. The process goes on before this returns, in whatever way it returns.
    ///
    /// # Errors
    /// Those for which [`HolderError::is_transient`] holds are worth another attempt.
    pub fn look(
        &self,
        process: &Process,
        python: &PythonReader,
        torch: Option<&mut TorchReader>,
        pausing: Pausing,
        asked: Option<&str>,
    ) -> Result<HolderMap, HolderError> {
        let memory = PageCache::new(Box::new(process.memory()));
        let pause = match pausing {
            Pausing::Stop => Some(Standstill::of(process)?),
            Pausing::Never => None,
        };
        let blocks = match torch {
            Some(torch) => blocks(torch, pausing)?,
            None => Vec::new(),
        };
        let heap = python.heap(&memory).map_err(|error| match (error, pausing) {
            // They are known by where they lead, and that changes while the process runs.
            (HeapError::NoLists { .. }, Pausing::Never) => HeapError::Changing,
            (error, _) => error,
        })?;
        let head = python.object_head();
        let types = self.tensors.types(&memory, head)?.ok_or(HolderError::NoTorch)?;
        let found = find(&heap, types);
        let tensors = self.tensors.tensors(&memory, head, &found.tensors)?;
        let mut rows = Rows::new(&heap, &tensors, types, &found.tensors);
        rows.follow_graph();
        let mut named = Named::default();
        names::modules(&heap, &found, &mut named);
        let locals = heap.locals();
        // What the graph keeps is explained by it.
        let in_use = InUse::of(&blocks);
        let needs_name = |object: Addr| rows.needs_name(object, &in_use);
        let ways = rows.ways(&found);
        let unreached = paths::of_variables(&heap, &found, &locals, &ways, &mut named, &needs_name);
        // All objects are looked into for it: only where something may be found.
        let garbage = match rows.may_be_much(&unreached, &in_use) {
            true => heap.garbage().unwrap_or_default(),
            false => FxHashSet::default(),
        };
        names::finish(&heap, &found, &mut named);
        let parts = paths::parts(&heap, &rows.wrappers(), &found);
        // From then on nothing is read any more.
        let went_on = OnceCell::new();
        let go_on = || {
            let pause = pause.map(|pause| pause.elapsed());
            let _ = went_on.set(Instant::now());
            memory.close();
            pause
        };
        let ((tensors, nodes), referrers, pause) = match asked {
            Some(name) => {
                let rows = rows.finish(&named, &garbage, &parts);
                let asked = referrers::asked(name, &rows.0);
                (rows, referrers::find(&heap, &found, &locals, &ways, &asked), go_on())
            }
            None => {
                let pause = go_on();
                (rows.finish(&named, &garbage, &parts), Vec::new(), pause)
            }
        };
        let (objects, unreadable) = (heap.objects().len() as u64, heap.unreadable());
        let age = went_on.get().map_or(Duration::ZERO, Instant::elapsed);
        let models = named.models;
        let counting = found.counting;
        Ok(HolderMap {
            tensors,
            nodes,
            blocks,
            pause,
            age,
            objects,
            unreadable,
            referrers,
            counting,
            models,
        })
    }
}

/// The blocks of all devices.
fn blocks(torch: &mut TorchReader, pausing: Pausing) -> Result<Vec<BlockMap>, HolderError> {
    // A process that uses no CUDA yet, or another allocator, has tensors all the same.
    torch.refresh()?;
    if *torch.backend() != AllocatorBackend::Native {
        return Ok(Vec::new());
    }
    torch.set_patience(match pausing {
        Pausing::Stop => Duration::ZERO,
        Pausing::Never => RUNNING_PATIENCE,
    });
    let mut maps = Vec::new();
    for device in torch.devices() {
        let map = torch.blocks(device, Nanos(0))?;
        if pausing == Pausing::Stop && map.consistency != Consistency::Consistent {
            // It was stopped while it changed its lists.
            return Err(HolderError::Allocating);
        }
        maps.push(map);
    }
    Ok(maps)
}

/// One pass over all objects.
fn find(heap: &Heap<'_>, types: TensorTypes) -> Found {
    let mut roles: FxHashMap<Addr, Role> = FxHashMap::default();
    let mut found = Found::default();
    for object in heap.objects() {
        let class = &object.class;
        let role = *roles.entry(class.at).or_insert_with(|| role(heap, class, types));
        match role {
            Role::Tensor => found.tensors.push(object.at),
            Role::Module => found.modules.push(object.at),
            Role::Optimizer => found.optimizers.push(object.at),
            Role::Counting(kind) => {
                found.counting.push(CountingObject { kind, object: object.at.0 });
            }
            Role::Nothing => {}
        }
    }
    // Whoever takes the first one takes the same one again.
    found.counting.sort_unstable();
    found
}

fn role(heap: &Heap<'_>, class: &Class, types: TensorTypes) -> Role {
    if class.is_a(types.base) {
        return Role::Tensor;
    }
    for (name, module, role) in [
        ("Module", "torch.nn.modules.module", Role::Module),
        ("Optimizer", "torch.optim.optimizer", Role::Optimizer),
        ("TrainerState", "transformers.trainer_callback", Role::Counting(CountingKind::Trainer)),
        ("LRScheduler", "torch.optim.lr_scheduler", Role::Counting(CountingKind::Scheduler)),
        ("_LRScheduler", "torch.optim.lr_scheduler", Role::Counting(CountingKind::Scheduler)),
    ] {
        let is_base = |base: &Addr| {
            heap.class_at(*base).is_some_and(|base| {
                &*base.name == name && heap.module_of(&base).as_deref() == Some(module)
            })
        };
        if class.bases.iter().any(is_base) {
            return role;
        }
    }
    Role::Nothing
}

impl From<ProcessError> for HolderError {
    fn from(error: ProcessError) -> HolderError {
        HolderError::Torch(error.into())
    }
}
