//! A step to the caller's registers by `.eh_frame` (DWARF, System V ABI for x86-64).

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, Evaluation, EvaluationResult, LittleEndian,
    Pointer, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection,
    UnwindTableRow, Value,
};

use super::frame_rule::FrameRule;
use super::modules::UnwindTables;
use super::stack_copy::StackCopy;
use crate::target::DWARF_REGISTERS;

pub(super) const STACK_POINTER: usize = 7;
pub(super) const RETURN_ADDRESS: usize = 16;
/// Compilers generate ten.
const MAX_OPERATIONS: u32 = 1000;

pub(super) const IMPOSSIBLE: &str = "its caller's frame cannot be where the table says";
const DAMAGED: &str = "its unwind table is damaged";

type Bytes<'a> = EndianSlice<'a, LittleEndian>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// `is_exact`: interrupted by a signal, so no return address.
    Caller {
        registers: [u64; DWARF_REGISTERS],
        is_exact: bool,
    },
    /// A thread begins with this function.
    Outermost,
    Unknown(String),
}

/// From the function at `address` to its caller; also the applied rule, if of the usual form.
pub(super) fn step(
    tables: &UnwindTables,
    stack: &StackCopy,
    registers: &[u64; DWARF_REGISTERS],
    address: u64,
) -> (StepOutcome, Option<FrameRule>) {
    let mut rule = None;
    let outcome = match try_step(tables, stack, registers, address, &mut rule) {
        Ok(Some((registers, is_exact))) => StepOutcome::Caller { registers, is_exact },
        Ok(None) => StepOutcome::Outermost,
        Err(why) => StepOutcome::Unknown(why),
    };
    (outcome, rule)
}

type Caller = Option<([u64; DWARF_REGISTERS], bool)>;

fn try_step(
    tables: &UnwindTables,
    stack: &StackCopy,
    registers: &[u64; DWARF_REGISTERS],
    address: u64,
    rule: &mut Option<FrameRule>,
) -> Result<Caller, String> {
    let reason = |error: gimli::Error| match error {
        gimli::Error::NoUnwindInfoForAddress => "no unwind table has its caller".to_owned(),
        other => format!("{DAMAGED}: {other}"),
    };
    let bases =
        BaseAddresses::default().set_eh_frame_hdr(tables.header_at).set_eh_frame(tables.frames_at);
    let header = gimli::EhFrameHdr::new(&tables.header, LittleEndian);
    let header = header.parse(&bases, 8).map_err(reason)?;
    let frames: EhFrame<Bytes<'_>> = EhFrame::new(&tables.frames, LittleEndian);
    let table = header.table().ok_or_else(|| reason(gimli::Error::NoUnwindInfoForAddress))?;
    // The lookup multiplies their number unchecked; a row has at least 4 bytes.
    if Iterator::size_hint(&table.iter(&bases)).0 > tables.header.len() / 4 {
        return Err(DAMAGED.to_owned());
    }
    // `fde_for_address` subtracts unchecked.
    let Pointer::Direct(entry) = table.lookup(address, &bases).map_err(reason)? else {
        return Err(DAMAGED.to_owned());
    };
    let offset = entry.checked_sub(tables.frames_at).and_then(|it| usize::try_from(it).ok());
    let offset = offset.filter(|it| *it < tables.frames.len());
    let offset = offset.ok_or(DAMAGED)?;
    let fde = frames.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset);
    let fde = fde.map_err(reason)?;
    // The nearest function may end before the address.
    if !fde.contains(address) {
        return Err(reason(gimli::Error::NoUnwindInfoForAddress));
    }
    let mut context = UnwindContext::new();
    let row =
        fde.unwind_info_for_address(&frames, &bases, &mut context, address).map_err(reason)?;
    *rule = FrameRule::of(row, fde.is_signal_trampoline());

    let known = KnownState { frames: &frames, encoding: fde.cie().encoding(), stack, registers };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            known.register(*register)?.wrapping_add_signed(*offset)
        }
        CfaRule::Expression(expression) => known.evaluate(expression, None)?,
    };
    // Callers have higher addresses; else the walk might not end.
    if cfa <= registers[STACK_POINTER] && !fde.is_signal_trampoline() {
        return Err(IMPOSSIBLE.to_owned());
    }
    let caller = caller_registers(&known, row, cfa)?;
    Ok(caller.map(|registers| (registers, fde.is_signal_trampoline())))
}

/// `None`: the outermost function has no caller.
fn caller_registers(
    known: &KnownState<'_>,
    row: &UnwindTableRow<usize>,
    cfa: u64,
) -> Result<Option<[u64; DWARF_REGISTERS]>, String> {
    let mut caller = *known.registers;
    caller[STACK_POINTER] = cfa;
    let mut is_outermost = false;
    for (register, rule) in row.registers() {
        let Some(place) = caller.get_mut(usize::from(register.0)) else { continue };
        *place = match rule {
            RegisterRule::Undefined => {
                is_outermost |= usize::from(register.0) == RETURN_ADDRESS;
                continue;
            }
            RegisterRule::SameValue => continue,
            RegisterRule::Offset(offset) => known.word(cfa.wrapping_add_signed(*offset))?,
            RegisterRule::ValOffset(offset) => cfa.wrapping_add_signed(*offset),
            RegisterRule::Register(other) => known.register(*other)?,
            RegisterRule::Expression(expression) => {
                known.word(known.evaluate(expression, Some(cfa))?)?
            }
            RegisterRule::ValExpression(expression) => known.evaluate(expression, Some(cfa))?,
            RegisterRule::Constant(value) => *value,
            _ => return Err("the unwind table has an unknown rule".to_owned()),
        };
    }
    let has_return_address = row.register(Register(RETURN_ADDRESS as u16)).is_some();
    if is_outermost || !has_return_address || caller[RETURN_ADDRESS] == 0 {
        return Ok(None);
    }
    Ok(Some(caller))
}

struct KnownState<'a> {
    frames: &'a EhFrame<Bytes<'a>>,
    encoding: gimli::Encoding,
    stack: &'a StackCopy,
    registers: &'a [u64; DWARF_REGISTERS],
}

impl KnownState<'_> {
    fn register(&self, register: Register) -> Result<u64, String> {
        let value = self.registers.get(usize::from(register.0)).copied();
        value.ok_or_else(|| format!("the table names register {}", register.0))
    }

    fn word(&self, addr: u64) -> Result<u64, String> {
        self.stack.word(addr).ok_or_else(|| self.stack.end_reason())
    }

    fn evaluate(
        &self,
        expression: &UnwindExpression<usize>,
        initial: Option<u64>,
    ) -> Result<u64, String> {
        let damaged =
            |error: gimli::Error| format!("an expression of the table is damaged: {error}");
        let expression = expression.get(self.frames).map_err(damaged)?;
        let mut evaluation: Evaluation<Bytes<'_>> = expression.evaluation(self.encoding);
        evaluation.set_max_iterations(MAX_OPERATIONS);
        if let Some(value) = initial {
            evaluation.set_initial_value(value);
        }
        let mut state = evaluation.evaluate().map_err(damaged)?;
        loop {
            state = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    evaluation.resume_with_memory(Value::Generic(self.word(address)?))
                }
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(self.register(register)?))
                }
                _ => return Err("the unwind table has an unknown expression".to_owned()),
            }
            .map_err(damaged)?;
        }
        match evaluation.as_result() {
            [gimli::Piece { location: gimli::Location::Address { address }, .. }] => Ok(*address),
            _ => Err("an expression of the table has no address".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stack_copy::copy_stacks;
    use super::*;
    use crate::target::{Addr, LoadedObject, Process, ThreadRegisters};

    fn own() -> (UnwindTables, StackCopy, u64) {
        let process = Process::open(std::process::id()).unwrap();
        let (memory, mappings) = (process.memory(), process.mappings().unwrap());
        let library = LoadedObject::find(&memory, &mappings, |name| name.starts_with("libc.so"));
        let library = library.unwrap().unwrap();
        let function = library.exported(&memory, "qsort").unwrap().unwrap();
        let mut values = [0; DWARF_REGISTERS];
        values[STACK_POINTER] = std::ptr::from_ref(&values).addr() as u64 & !15;
        values[RETURN_ADDRESS] = function.0;
        let registers = ThreadRegisters { thread: 1, values };
        let stack = copy_stacks(&memory, &mappings, vec![registers]).remove(0);
        (UnwindTables::read(&memory, &mappings, &library).unwrap(), stack, function.0)
    }

    #[test]
    fn a_function_start_has_its_return_address_on_top() {
        let (tables, stack, function) = own();
        let registers = stack.registers.values;
        let word = stack.word(registers[STACK_POINTER]).unwrap();
        let (outcome, rule) = step(&tables, &stack, &registers, function);
        assert_eq!(rule.unwrap().step(&stack, &registers), outcome);
        match outcome {
            StepOutcome::Caller { registers: caller, is_exact } => {
                assert!(!is_exact);
                assert_eq!(caller[RETURN_ADDRESS], word);
                assert_eq!(caller[STACK_POINTER], registers[STACK_POINTER] + 8);
            }
            StepOutcome::Outermost => assert_eq!(word, 0),
            other => panic!("{other:?}"),
        }
        assert!(matches!(step(&tables, &stack, &registers, 4096), (StepOutcome::Unknown(_), None)));
    }

    #[test]
    fn excessive_function_counts_do_not_overflow() {
        let (mut tables, stack, function) = own();
        // `DW_EH_PE_udata8`.
        tables.header[2] = 4;
        for count in [u64::MAX, 1 << 62, 1 << 40] {
            tables.header[8..16].copy_from_slice(&count.to_le_bytes());
            let (outcome, rule) = step(&tables, &stack, &stack.registers.values, function);
            assert_eq!((outcome, rule), (StepOutcome::Unknown(DAMAGED.to_owned()), None));
        }
    }

    #[test]
    fn damaged_tables_neither_panic_nor_loop() {
        let (mut tables, stack, function) = own();
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let end = Addr(function).0 + (1 << 16);
        for _ in 0..3000 {
            let bytes = if next() % 4 == 0 { &mut tables.header } else { &mut tables.frames };
            for _ in 0..200 {
                let at = next() as usize % bytes.len();
                bytes[at] = next() as u8;
            }
            let address = function - (1 << 16) + next() % (end - function);
            let mut registers = stack.registers.values;
            registers.iter_mut().for_each(|it| *it ^= next() % 64);
            let (outcome, rule) = step(&tables, &stack, &registers, address);
            if let Some(rule) = rule {
                assert_eq!(rule.step(&stack, &registers), outcome);
            }
        }
    }
}
