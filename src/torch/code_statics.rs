//! Addresses in compiled code relative to the next instruction: static variables and callees.
//!
//! Bytes are searched, not decoded: who takes an address must check what is there.

use crate::target::Addr;

/// `lea` with a 64-bit register: `REX.W 8d`.
const LEA: u8 = 0x8d;
/// `mov` from memory to a 64-bit register.
const MOV: u8 = 0x8b;
const CALL: u8 = 0xe8;
/// ModRM of `disp32(%rip)`, any register.
const RIP_MASK: u8 = 0xc7;
const RIP: u8 = 0x05;

/// The operands of `lea x(%rip)`.
pub(super) fn references(at: Addr, code: &[u8]) -> Vec<Addr> {
    operands(at, code, LEA)
}

/// The operands of `mov x(%rip)`.
pub(super) fn loads(at: Addr, code: &[u8]) -> Vec<Addr> {
    operands(at, code, MOV)
}

/// What it calls.
pub(super) fn calls(at: Addr, code: &[u8]) -> Vec<Addr> {
    let found = code.windows(5).zip(0u64..).filter(|(bytes, _)| bytes[0] == CALL);
    found.filter_map(|(bytes, index)| relative(at + index + 5, bytes.get(1..)?)).collect()
}

fn operands(at: Addr, code: &[u8], operation: u8) -> Vec<Addr> {
    let is_it = |bytes: &[u8]| {
        bytes[0] & 0xf8 == 0x48 && bytes[1] == operation && bytes[2] & RIP_MASK == RIP
    };
    let found = code.windows(7).zip(0u64..).filter(|(bytes, _)| is_it(bytes));
    found.filter_map(|(bytes, index)| relative(at + index + 7, bytes.get(3..)?)).collect()
}

fn relative(next: Addr, offset: &[u8]) -> Option<Addr> {
    let offset = i32::from_le_bytes(*offset.first_chunk()?);
    Some(Addr(next.0.wrapping_add(offset as i64 as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_relative_to_the_next_instruction() {
        // lea 0x10(%rip),%rbx; mov -0x8(%rip),%rax; call +0x20
        let code = [
            0x48, 0x8d, 0x1d, 0x10, 0, 0, 0, 0x48, 0x8b, 0x05, 0xf8, 0xff, 0xff, 0xff, 0xe8, 0x20,
            0, 0, 0,
        ];
        let at = Addr(0x1000);
        assert_eq!(references(at, &code), [Addr(0x1017)]);
        assert_eq!(loads(at, &code), [Addr(0x1006)]);
        assert_eq!(calls(at, &code), [Addr(0x1033)]);
        assert_eq!(calls(at, &code[..18]), []);
    }
}
