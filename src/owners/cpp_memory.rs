//! GPU memory that C++ keeps, by the structures that keep it.

use super::walk::RelevantObjects;
use crate::model::{CppKeeper, CppMemory};
use crate::python::ObjectHeap;
use crate::torch::{TensorDecoder, TensorReader};

/// `torch.nn.parallel.DistributedDataParallel`; its `reducer` is a `c10d::Reducer`.
const DDP: &str = "DistributedDataParallel";

pub(super) fn find(
    heap: &ObjectHeap<'_>,
    reader: &TensorReader,
    tensors: &TensorDecoder<'_>,
    found: &RelevantObjects,
) -> Vec<CppMemory> {
    let mut all = reader.cpp_memory(tensors);
    for module in &found.modules {
        let is_ddp = heap.class_of(*module).is_some_and(|class| &*class.name == DDP);
        if let Some(reducer) = is_ddp.then(|| heap.attribute(*module, "reducer")).flatten() {
            all.extend(tensors.tensors_in_bound_object(reducer, CppKeeper::DdpBuckets));
        }
    }
    all
}
