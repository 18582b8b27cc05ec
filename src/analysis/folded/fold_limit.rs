//! Limits the text of a moment's stacks: a small trace can have many deep ones.

use crate::analysis::folded::{FoldedStack, PseudoFrame, StackLabel};
use crate::model::{StackId, StackTable};

/// In bytes, if the recording's memory is unlimited.
const DEFAULT_MAX_TEXT: u64 = 64 << 20;
/// Bytes of a frame besides names: line number, marks, label in memory.
const FRAME: u64 = 32;

pub(crate) struct TextBudget {
    /// Text length of each stack with its callers, by number.
    lengths: Vec<u64>,
    left: u64,
    /// Number of rejected stacks, and their bytes of memory.
    pub(crate) left_out: (u64, u64),
}

impl TextBudget {
    /// Allows a quarter of `memory`, the limit of the recording.
    pub(crate) fn new(table: &StackTable, memory: Option<u64>) -> TextBudget {
        let mut lengths: Vec<u64> = Vec::new();
        while let Some(node) = table.get_stack(StackId(lengths.len() as u32)) {
            let callers = node.parent.and_then(|parent| lengths.get(parent.0 as usize)).copied();
            let function =
                table.get_frame(node.frame).and_then(|frame| table.get_function(frame.function));
            let names = function.map_or(0, |f| (f.name.len() + f.file.len()) as u64);
            lengths.push(callers.unwrap_or(0).saturating_add(names + FRAME));
        }
        let left = memory.map_or(DEFAULT_MAX_TEXT, |most| most / 4);
        TextBudget { lengths, left, left_out: (0, 0) }
    }

    /// Accepts these stacks with `bytes` of memory if their text fits.
    pub(crate) fn takes(&mut self, stacks: impl IntoIterator<Item = StackId>, bytes: u64) -> bool {
        let length = |stack: StackId| self.lengths.get(stack.0 as usize).copied().unwrap_or(0);
        let text = stacks.into_iter().map(length).fold(FRAME, u64::saturating_add);
        let fits = text <= self.left;
        match fits {
            true => self.left -= text,
            false => self.left_out = (self.left_out.0 + 1, self.left_out.1 + bytes),
        }
        fits
    }

    /// One entry for all rejected stacks.
    pub(crate) fn rest(&self) -> Option<FoldedStack> {
        let (stacks, bytes) = self.left_out;
        let path = vec![StackLabel::Pseudo(PseudoFrame::LeftOut)];
        (stacks > 0).then_some(FoldedStack { path, bytes, evidence: None })
    }
}
