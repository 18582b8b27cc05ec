//! Memory of a live process or core file.

use std::sync::Arc;

use super::core_file::CoreFile;
use super::memory::{Addr, AddressRange, LiveMemory, Memory, MemoryError};

/// A process's memory.
#[derive(Debug, Clone)]
pub enum ProcessMemory {
    /// Of a live process.
    Live(LiveMemory),
    /// Of a core file.
    Core(CoreMemory),
}

/// A core file's memory.
#[derive(Debug, Clone)]
pub struct CoreMemory(Arc<CoreFile>);

impl ProcessMemory {
    pub(super) fn of_core(core: Arc<CoreFile>) -> ProcessMemory {
        ProcessMemory::Core(CoreMemory(core))
    }
}

impl Memory for ProcessMemory {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        match self {
            ProcessMemory::Live(memory) => memory.read_spans(spans, out),
            ProcessMemory::Core(CoreMemory(core)) => core.read_spans(spans, out),
        }
    }

    fn read_parts(&self, parts: &mut [(Addr, &mut [u8])]) -> Result<(), MemoryError> {
        match self {
            ProcessMemory::Live(memory) => memory.read_parts(parts),
            ProcessMemory::Core(CoreMemory(core)) => core.read_parts(parts),
        }
    }
}
