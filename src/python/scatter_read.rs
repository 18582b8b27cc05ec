//! Reads many small pieces with one system call.

use crate::target::{Addr, AddressRange, Memory, MemoryError};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::python) struct ReadSlot(usize);

#[derive(Debug, Default)]
pub(in crate::python) struct ScatterRead {
    spans: Vec<AddressRange>,
    starts: Vec<usize>,
    bytes: Vec<u8>,
    wanted: usize,
    read: usize,
}

impl ScatterRead {
    pub(in crate::python) fn clear(&mut self) {
        self.spans.clear();
        self.starts.clear();
        self.wanted = 0;
        self.read = 0;
    }

    pub(in crate::python) fn push(&mut self, addr: Addr, len: usize) -> ReadSlot {
        self.spans.push(AddressRange { addr, len });
        self.starts.push(self.wanted);
        self.wanted += len;
        ReadSlot(self.spans.len() - 1)
    }

    /// Reads the pieces up to the first unreadable one ([`Self::fault`]).
    pub(in crate::python) fn read(&mut self, memory: &dyn Memory) -> Result<(), MemoryError> {
        if self.bytes.len() < self.wanted {
            self.bytes.resize(self.wanted, 0);
        }
        self.read = match memory.read_spans(&self.spans, &mut self.bytes[..self.wanted]) {
            Ok(()) => self.spans.len(),
            Err(MemoryError::Fault { index, .. }) => index,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    pub(in crate::python) fn fault(&self) -> Option<ReadSlot> {
        (self.read < self.spans.len()).then_some(ReadSlot(self.read))
    }

    pub(in crate::python) fn get(&self, slot: ReadSlot) -> Option<&[u8]> {
        if slot.0 >= self.read {
            return None;
        }
        let start = *self.starts.get(slot.0)?;
        self.bytes.get(start..start + self.spans.get(slot.0)?.len)
    }
}
