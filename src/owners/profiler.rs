//! Whether PyTorch's profiler is on.

use crate::python::InterpreterReader;
use crate::target::{PageCache, Process};

const MODULE: &str = "torch.autograd.profiler";
/// Of torch.profiler, too (torch/autograd/profiler.py).
const VARIABLE: &str = "_is_profiler_enabled";

/// `None` without PyTorch, or where it is not known.
pub fn is_profiled(process: &Process, python: &InterpreterReader) -> Option<bool> {
    let memory = PageCache::new(Box::new(process.memory()));
    let heap = python.unlisted_heap(&memory)?;
    let (_, module) = heap.modules().into_iter().find(|(name, _)| name == MODULE)?;
    Some(heap.is_true(heap.named_value(module, VARIABLE)?))
}
