//! Copies of threads' stacks, for unwinding.

use crate::target::{Addr, Mappings, Memory, ThreadRegisters};

const STACK_POINTER: usize = 7;
/// Per stack, and in total.
const MAX_STACK: usize = 512 << 10;
const MAX_TOTAL: usize = 64 << 20;

/// Registers, and the stack from the stack pointer on.
#[derive(Debug, Clone)]
pub struct StackCopy {
    /// Its registers.
    pub registers: ThreadRegisters,
    start: u64,
    bytes: Vec<u8>,
    is_cut: bool,
}

/// `mappings` may be old: stacks never move.
pub fn copy_stacks(
    memory: &dyn Memory,
    mappings: &Mappings,
    threads: Vec<ThreadRegisters>,
) -> Vec<StackCopy> {
    let mut left = MAX_TOTAL;
    let copy = |registers: ThreadRegisters| {
        let start = Addr(registers.values[STACK_POINTER]);
        let whole = mappings.find(start).map_or(0, |it| it.end.0 - start.0);
        let len = usize::try_from(whole).unwrap_or(usize::MAX).min(MAX_STACK).min(left);
        let bytes = memory.vec_up_to(start, len);
        left -= bytes.len();
        let is_cut = (bytes.len() as u64) < whole;
        StackCopy { registers, start: start.0, bytes, is_cut }
    };
    threads.into_iter().map(copy).collect()
}

impl StackCopy {
    /// `bytes` from the stack pointer on; `is_cut`: the stack is longer.
    pub fn new(registers: ThreadRegisters, bytes: Vec<u8>, is_cut: bool) -> StackCopy {
        StackCopy { registers, start: registers.values[STACK_POINTER], bytes, is_cut }
    }

    /// Bytes copied.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn word(&self, addr: u64) -> Option<u64> {
        let at = usize::try_from(addr.checked_sub(self.start)?).ok()?;
        self.bytes.get(at..)?.first_chunk().map(|it| u64::from_le_bytes(*it))
    }

    pub(super) fn end_reason(&self) -> String {
        match self.is_cut {
            true => format!("only {} KiB of its stack were copied", self.bytes.len() >> 10),
            false => "its stack ends there".to_owned(),
        }
    }
}
