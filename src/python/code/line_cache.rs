//! Source text that is in no file (notebook cells, executed code), from the target's `linecache`.

use crate::python::heap::PythonHeap;
use crate::python::layouts::interpreter::Interpreter;
use crate::target::{Memory, PageCache, Process};

const MAX_LINES: usize = 65_536;

/// Reads `linecache.cache` while the process runs; ignores entries that are not well-formed.
pub struct LineCache {
    process: Process,
    interpreter: Interpreter,
}

impl LineCache {
    pub(in crate::python) fn new(process: Process, interpreter: Interpreter) -> LineCache {
        LineCache { process, interpreter }
    }

    /// The lines of the file that the target knows by this name, with line ends; `None` if it has
    /// none.
    ///
    /// `linecache.cache` (Lib/linecache.py) maps a name to `(size, mtime, lines, fullname)`;
    /// one-item entries are files not read yet.
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
