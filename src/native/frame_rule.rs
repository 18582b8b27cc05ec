//! Cached unwind rules; reading a table takes microseconds.

use gimli::{CfaRule, Register, RegisterRule, UnwindTableRow};

use super::stack_copy::StackCopy;
use super::step::{RETURN_ADDRESS, STACK_POINTER, StepOutcome};
use crate::target::DWARF_REGISTERS;

/// Compilers save at most seven.
const MAX_SAVED: usize = 16;

/// A register plus an offset, and saved registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FrameRule {
    register: usize,
    offset: i64,
    /// A register, and its offset from the frame's start.
    saved: Box<[(usize, i64)]>,
    is_signal: bool,
}

impl FrameRule {
    pub(super) fn of(row: &UnwindTableRow<usize>, is_signal: bool) -> Option<FrameRule> {
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
        let register = usize::from(register.0);
        let mut saved = Vec::new();
        for (register, rule) in row.registers() {
            let register = usize::from(register.0);
            match rule {
                RegisterRule::SameValue => {}
                RegisterRule::Undefined if register != RETURN_ADDRESS => {}
                RegisterRule::Offset(offset) if register < DWARF_REGISTERS => {
                    saved.push((register, *offset));
                }
                _ => return None,
            }
        }
        row.register(Register(RETURN_ADDRESS as u16))?;
        let is_usual = register < DWARF_REGISTERS && saved.len() <= MAX_SAVED;
        is_usual.then(|| FrameRule { register, offset: *offset, saved: saved.into(), is_signal })
    }

    pub(super) fn step(
        &self,
        stack: &StackCopy,
        registers: &[u64; DWARF_REGISTERS],
    ) -> StepOutcome {
        let cfa = registers[self.register].wrapping_add_signed(self.offset);
        if cfa <= registers[STACK_POINTER] && !self.is_signal {
            return StepOutcome::Unknown(super::step::IMPOSSIBLE.to_owned());
        }
        let mut caller = *registers;
        caller[STACK_POINTER] = cfa;
        for (register, offset) in &self.saved {
            let Some(word) = stack.word(cfa.wrapping_add_signed(*offset)) else {
                return StepOutcome::Unknown(stack.end_reason());
            };
            caller[*register] = word;
        }
        match caller[RETURN_ADDRESS] {
            0 => StepOutcome::Outermost,
            _ => StepOutcome::Caller { registers: caller, is_exact: self.is_signal },
        }
    }
}
