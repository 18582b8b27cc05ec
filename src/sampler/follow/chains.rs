//! Chains of frames, each once: what a change refers to until its frames have names.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::python::{ChainFrame, ChainNamer, StackPoller};
use crate::target::Memory;

/// More chains than one batch brings are numbered anew in the next.
const MAX_CHAINS: usize = 1 << 16;
/// More code objects than any program has alive.
const MAX_CODES: usize = 1 << 17;

/// The chains that one batch of changes uses.
#[derive(Default)]
pub(super) struct FrameChains {
    numbers: FxHashMap<Box<[ChainFrame]>, u32>,
    /// By their numbers.
    pub(super) list: Vec<Box<[ChainFrame]>>,
}

impl FrameChains {
    /// The number of a chain.
    pub(super) fn number(&mut self, frames: &[ChainFrame]) -> u32 {
        if let Some(&number) = self.numbers.get(frames) {
            return number;
        }
        let number = self.list.len() as u32;
        self.list.push(frames.into());
        self.numbers.insert(frames.into(), number);
        number
    }

    /// Whether no more should be added.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= MAX_CHAINS
    }
}

/// Copies of code objects, made when the poller meets them first.
#[derive(Default)]
pub(super) struct CodeCopies {
    /// Those copied, at any time.
    met: FxHashSet<u64>,
    /// The copies of the batch being gathered.
    pub(super) new: FxHashMap<u64, Vec<u8>>,
}

impl CodeCopies {
    /// Copies the code objects of `frames` that were never met.
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
