//! Source text without a file, from the target's `linecache`.

use crate::python::heap::ObjectHeap;
use crate::python::layouts::interpreter::Interpreter;
use crate::target::{Memory, PageCache, Process};

const MAX_LINES: usize = 65_536;

/// Reads `linecache.cache`; skips malformed entries.
pub struct LineCache {
    process: Process,
    interpreter: Interpreter,
}

impl LineCache {
    pub(in crate::python) fn new(process: Process, interpreter: Interpreter) -> LineCache {
        LineCache { process, interpreter }
    }

    /// Lines with line ends, from `(size, mtime, lines, fullname)` (Lib/linecache.py).
    pub fn text(&self, name: &str) -> Option<String> {
        let memory: Box<dyn Memory> = Box::new(self.process.memory());
        let memory = PageCache::new(memory);
        let heap = ObjectHeap::unlisted(&memory, &self.interpreter);
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
