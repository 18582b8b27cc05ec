//! The walk over all objects: from Python's lists to the rows of a look, in the order in which they matter.

use rustc_hash::{FxHashMap, FxHashSet};

use super::error::HolderError;
use super::names::{self, Named};
use super::paths;
use super::referrers;
use super::rows::Rows;
use crate::model::holdings::InUse;
use crate::model::{
    BlockMap, CountingKind, CountingObject, GraphNode, Model, Referrers, TensorRow,
};
use crate::python::{Class, Heap, Listing, PythonReader};
use crate::target::{Addr, PageCache};
use crate::torch::{TensorReader, TensorTypes};

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

/// What is walked over.
#[derive(Clone, Copy)]
pub(super) struct Ground<'a> {
    pub(super) tensors: &'a TensorReader,
    pub(super) python: &'a PythonReader,
    pub(super) memory: &'a PageCache,
    /// The blocks of the same moment.
    pub(super) blocks: &'a [BlockMap],
    /// The tensors whose referrers are asked for.
    pub(super) asked: Option<&'a str>,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Walked {
    pub(super) tensors: Vec<TensorRow>,
    pub(super) nodes: Vec<GraphNode>,
    pub(super) referrers: Vec<Referrers>,
    pub(super) counting: Vec<CountingObject>,
    pub(super) models: Vec<Model>,
    pub(super) objects: u64,
    pub(super) unreadable: u64,
    /// Parts of which something was not read because of a limit.
    pub(super) missing: Vec<&'static str>,
}

/// Notes which parts of a walk came to a limit.
struct Parts<'a> {
    memory: &'a PageCache,
    refused: u64,
    missing: Vec<&'static str>,
}

impl Parts<'_> {
    /// `part` has been walked.
    fn end(&mut self, part: &'static str) {
        let refused = self.memory.refused();
        if refused > self.refused {
            self.missing.push(part);
        }
        self.refused = refused;
    }
}

impl Ground<'_> {
    /// Walks over all objects. From the call of `read_all` on nothing is read any more.
    pub(super) fn walk(
        &self,
        listing: Listing,
        read_all: &mut dyn FnMut(),
    ) -> Result<Walked, HolderError> {
        let memory = self.memory;
        let mut parts = Parts { memory, refused: memory.refused(), missing: Vec::new() };
        let heap = self.python.heap_listed(memory, listing)?;
        let head = self.python.object_head();
        let types = self.tensors.types(memory, head)?.ok_or(HolderError::NoTorch)?;
        let found = find(&heap, types);
        parts.end("the list of objects");
        let tensors = self.tensors.tensors(memory, head, &found.tensors)?;
        let mut rows = Rows::new(&heap, &tensors, types, &found.tensors);
        parts.end("tensors");
        rows.follow_graph();
        parts.end("the autograd graph");
        let mut named = Named::default();
        names::modules(&heap, &found, &mut named);
        parts.end("modules");
        let locals = heap.locals();
        // What the graph keeps is explained by it.
        let in_use = InUse::of(self.blocks);
        let needs_name = |object: Addr| rows.needs_name(object, &in_use);
        let ways = rows.ways(&found);
        let unreached = paths::of_variables(&heap, &found, &locals, &ways, &mut named, &needs_name);
        parts.end("names by variables");
        // All objects are looked into for it: only where something may be found.
        let garbage = match rows.may_be_much(&unreached, &in_use) {
            true => heap.garbage().unwrap_or_default(),
            false => FxHashSet::default(),
        };
        parts.end("garbage");
        names::finish(&heap, &found, &mut named);
        parts.end("the state of optimizers");
        let wrapped = paths::parts(&heap, &rows.wrappers(), &found);
        parts.end("what wrappers stand for");
        let ((tensors, nodes), referrers) = match self.asked {
            Some(name) => {
                let rows = rows.finish(&named, &garbage, &wrapped);
                let asked = referrers::asked(name, &rows.0);
                let referrers = referrers::find(&heap, &found, &locals, &ways, &asked);
                parts.end("referrers");
                read_all();
                (rows, referrers)
            }
            None => {
                read_all();
                (rows.finish(&named, &garbage, &wrapped), Vec::new())
            }
        };
        let (objects, unreadable) = (heap.objects().len() as u64, heap.unreadable());
        let (missing, counting, models) = (parts.missing, found.counting, named.models);
        Ok(Walked { tensors, nodes, referrers, counting, models, objects, unreadable, missing })
    }
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
