//! The version of PyTorch from its own module, for a process whose files are not available.

use crate::python::PythonReader;
use crate::target::{PageCache, Process};

/// The module that PyTorch's build generates, and its variable.
const MODULE: &str = "torch.version";
const VARIABLE: &str = "__version__";
const MAX_LEN: usize = 100;

/// `torch.version.__version__` in `process`; `None` if not loaded or unreadable.
pub fn torch_version(process: &Process, python: &PythonReader) -> Option<String> {
    let memory = PageCache::new(Box::new(process.memory()));
    let heap = python.unlisted_heap(&memory)?;
    let (_, module) = heap.modules().into_iter().find(|(name, _)| name == MODULE)?;
    heap.text(heap.named_value(module, VARIABLE)?).filter(|text| text.len() <= MAX_LEN)
}
