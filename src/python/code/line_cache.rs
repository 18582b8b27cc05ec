//! Source text that is in no file: cells of notebooks and executed code, as the target's `linecache` has it.

use crate::python::heap::PythonHeap;
use crate::python::layouts::interpreter::Interpreter;
use crate::target::{Memory, PageCache, Process};

/// More lines than a cell has.
const MAX_LINES: usize = 65_536;

/// Reads `linecache.cache` of a process, which runs on: what does not look right is not taken.
pub struct LineCache {
    process: Process,
    interpreter: Interpreter,
}

impl LineCache {
    pub(in crate::python) fn new(process: Process, interpreter: Interpreter) -> LineCache {
        LineCache { process, interpreter }
    }

    /// The lines of the file that the target knows by this name, each with its line end; `None` when it has none.
    ///
    /// `linecache.cache` (Lib/linecache.py): name to `(size, mtime, lines, fullname)`; entries of one item are files not read yet.
    pub fn text(&self, name: &str) -> Option<String> {
        let memory: Box<dyn Memory> = Box::new(self.process.memory());
        let memory = PageCache::new(memory);
        let heap = PythonHeap::unlisted(&memory, &self.interpreter);
        let (_, module) = heap.modules().into_iter().find(|(name, _)| name == "linecache")?;
        let cache = heap.named_value(module, "cache")?;
        let entry = heap.named_value(cache, name)?;
        let parts = heap.items(entry);
        let [_, _, lines, _] = parts[..] else { return None };
        let lines = heap.items(lines);
        if lines.is_empty() || lines.len() > MAX_LINES {
            return None;
        }
        lines.into_iter().map(|line| heap.text(line)).collect()
    }
}
