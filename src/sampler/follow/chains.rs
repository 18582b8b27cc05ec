//! Chains of frames that wait for their names.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::python::{ChainFrame, ChainNamer, StackPoller};
use crate::target::Memory;

/// A batch ends at this many chains; the next one numbers them again.
const MAX_CHAINS: usize = 1 << 16;
const MAX_CODES: usize = 1 << 17;

#[derive(Default)]
pub(super) struct FrameChains {
    numbers: FxHashMap<Box<[ChainFrame]>, u32>,
    pub(super) list: Vec<Box<[ChainFrame]>>,
}

impl FrameChains {
    pub(super) fn number(&mut self, frames: &[ChainFrame]) -> u32 {
        if let Some(&number) = self.numbers.get(frames) {
            return number;
        }
        let number = self.list.len() as u32;
        self.list.push(frames.into());
        self.numbers.insert(frames.into(), number);
        number
    }

    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= MAX_CHAINS
    }
}

/// Copies of code objects when they are met for the first time.
#[derive(Default)]
pub(super) struct CodeCopies {
    met: FxHashSet<u64>,
    pub(super) new: FxHashMap<u64, Vec<u8>>,
}

impl CodeCopies {
    pub(super) fn meet(
        &mut self,
        frames: &[ChainFrame],
        stacks: &StackPoller,
        memory: &dyn Memory,
    ) {
        if self.met.len() > MAX_CODES {
            self.met.clear();
        }
        for frame in frames {
            let code = ChainNamer::code_of(frame);
            if self.met.insert(code)
                && let Some(copy) = stacks.code_copy(memory, frame)
            {
                self.new.insert(code, copy);
            }
        }
    }
}
