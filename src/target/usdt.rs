//! USDT notes: a library's probe points and their arguments.
//!
//! SystemTap notes (`.note.stapsdt`, type 3) of <sys/sdt.h>: program counter, address of
//! `.stapsdt.base` at link time, address of the semaphore; provider, name, and arguments as text
//! such as `-8@%rax -1@%dl 8@-56(%rbp)`.

use std::fs::File;
use std::io;

use object::LittleEndian;
use object::read::elf::SectionHeader;

use super::elf_file::ElfFile;

const OWNER: &[u8] = b"stapsdt\0";
const TYPE: u32 = 3;

/// Why a file's notes could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum NoteError {
    #[error("cannot read the file: {0}")]
    Io(#[from] io::Error),
    #[error("a probe's note is not understood: {0}")]
    Note(String),
}

/// A general register of x86-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register {
    index: u8,
    perf: u8,
}

/// Names by width (8, 4, 2, 1 bytes), index in `struct pt_regs`
/// (arch/x86/include/uapi/asm/ptrace.h), number for perf events (asm/perf_regs.h).
const REGISTERS: [([&str; 4], u8, u8); 16] = [
    (["r15", "r15d", "r15w", "r15b"], 0, 23),
    (["r14", "r14d", "r14w", "r14b"], 1, 22),
    (["r13", "r13d", "r13w", "r13b"], 2, 21),
    (["r12", "r12d", "r12w", "r12b"], 3, 20),
    (["rbp", "ebp", "bp", "bpl"], 4, 6),
    (["rbx", "ebx", "bx", "bl"], 5, 1),
    (["r11", "r11d", "r11w", "r11b"], 6, 19),
    (["r10", "r10d", "r10w", "r10b"], 7, 18),
    (["r9", "r9d", "r9w", "r9b"], 8, 17),
    (["r8", "r8d", "r8w", "r8b"], 9, 16),
    (["rax", "eax", "ax", "al"], 10, 0),
    (["rcx", "ecx", "cx", "cl"], 11, 2),
    (["rdx", "edx", "dx", "dl"], 12, 3),
    (["rsi", "esi", "si", "sil"], 13, 4),
    (["rdi", "edi", "di", "dil"], 14, 5),
    (["rsp", "esp", "sp", "spl"], 19, 7),
];

impl Register {
    /// By name without `%`; a part gives the whole register.
    pub fn named(name: &str) -> Option<Register> {
        let known = REGISTERS.iter().find(|(names, ..)| names.contains(&name))?;
        Some(Register { index: known.1, perf: known.2 })
    }

    /// Index in `struct pt_regs`, in 64-bit words.
    pub fn pt_regs_index(self) -> u8 {
        self.index
    }

    /// Number among registers that a perf event samples.
    pub fn perf_number(self) -> u8 {
        self.perf
    }
}

/// Where an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentOperand {
    /// A constant.
    Constant(i64),
    /// In a register.
    Register(Register),
    /// In memory, at `base + index * scale + displacement`.
    Memory {
        /// Base address.
        base: Register,
        /// Index and scale.
        index: Option<(Register, u8)>,
        /// Bytes added.
        displacement: i64,
    },
}

/// An argument of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeArgument {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// A signed number.
    pub signed: bool,
    /// Where it is.
    pub operand: ArgumentOperand,
}

/// A probe point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticProbe {
    /// Such as `pytorch`.
    pub provider: String,
    /// Such as `malloc`.
    pub name: String,
    /// The instruction's offset in the file.
    pub offset: u64,
    /// File offset of the counter (u16) that enables it while not 0.
    pub semaphore: Option<u64>,
    /// In order.
    pub arguments: Vec<ProbeArgument>,
}

/// All probe points in `file`.
pub fn notes(file: &File) -> Result<Vec<StaticProbe>, NoteError> {
    let elf = ElfFile::read(file)?;
    let Some(section) = elf.section(".note.stapsdt") else { return Ok(Vec::new()) };
    let base = elf.section(".stapsdt.base").map(|section| section.sh_addr(LittleEndian));
    let offset_of = |address: u64| elf.offset_of(address);
    let mut found = Vec::new();
    let content = elf.content(section)?;
    let mut rest = &content[..];
    while !rest.is_empty() {
        let note = UsdtNote::split_off(&mut rest).ok_or_else(|| broken("it breaks off"))?;
        if note.owner != OWNER || note.kind != TYPE {
            continue;
        }
        found.push(note.describe(base, &offset_of)?);
    }
    Ok(found)
}

fn broken(why: impl Into<String>) -> NoteError {
    NoteError::Note(why.into())
}

struct UsdtNote<'a> {
    owner: &'a [u8],
    kind: u32,
    body: &'a [u8],
}

impl<'a> UsdtNote<'a> {
    fn split_off(rest: &mut &'a [u8]) -> Option<UsdtNote<'a>> {
        let word = |at: usize| Some(u32::from_le_bytes(*rest.get(at..)?.first_chunk()?));
        let (name_len, body_len, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let body_at = 12 + name_len.next_multiple_of(4);
        let note = UsdtNote {
            owner: rest.get(12..12 + name_len)?,
            kind,
            body: rest.get(body_at..body_at.checked_add(body_len)?)?,
        };
        *rest = rest.get(body_at + body_len.next_multiple_of(4)..).unwrap_or_default();
        Some(note)
    }

    fn describe(
        &self,
        base: Option<u64>,
        offset_of: &dyn Fn(u64) -> Option<u64>,
    ) -> Result<StaticProbe, NoteError> {
        let word = |index: usize| {
            let bytes = self.body.get(8 * index..).and_then(|b| b.first_chunk());
            bytes.map(|b| u64::from_le_bytes(*b)).ok_or_else(|| broken("it breaks off"))
        };
        let (counter, linked_base, semaphore) = (word(0)?, word(1)?, word(2)?);
        // Prelinking moves the base and all addresses of the note.
        let moved = base.filter(|_| linked_base != 0).map_or(0, |b| b.wrapping_sub(linked_base));
        let mut texts = self.body[24..].split(|&b| b == 0).map(String::from_utf8_lossy);
        let mut text = || texts.next().unwrap_or_default().into_owned();
        let (provider, name, arguments) = (text(), text(), text());
        let place = |address: u64| {
            offset_of(address.wrapping_add(moved))
                .ok_or_else(|| broken(format!("{provider}:{name} lies outside of the file")))
        };
        Ok(StaticProbe {
            offset: place(counter)?,
            semaphore: if semaphore == 0 { None } else { Some(place(semaphore)?) },
            arguments: arguments
                .split_whitespace()
                .map(|text| argument(text).ok_or_else(|| broken(format!("argument {text}"))))
                .collect::<Result<_, _>>()?,
            provider: provider.clone(),
            name: name.clone(),
        })
    }
}

/// `-8@%rax`, `4@$5`, `8@-56(%rbp)`, `8@16(%rax,%rcx,8)`.
fn argument(text: &str) -> Option<ProbeArgument> {
    let (size, operand) = text.split_once('@').unwrap_or(("8", text));
    let size: i8 = size.parse().ok()?;
    let operand = if let Some(number) = operand.strip_prefix('$') {
        ArgumentOperand::Constant(number.parse().ok()?)
    } else if let Some(name) = operand.strip_prefix('%') {
        ArgumentOperand::Register(Register::named(name)?)
    } else {
        let (displacement, inside) = operand.strip_suffix(')')?.split_once('(')?;
        let mut parts = inside.split(',');
        let mut register = || Register::named(parts.next()?.trim().strip_prefix('%')?);
        let base = register()?;
        let index = register();
        let scale = parts.next().map_or(Some(1), |scale| scale.trim().parse().ok())?;
        ArgumentOperand::Memory {
            base,
            index: index.map(|register| (register, scale)),
            displacement: if displacement.is_empty() { 0 } else { displacement.parse().ok()? },
        }
    };
    Some(ProbeArgument { size: size.unsigned_abs(), signed: size < 0, operand })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_pytorch_are_understood() {
        let parse = |text: &str| argument(text).unwrap();
        assert_eq!(
            parse("-8@%rax"),
            ProbeArgument {
                size: 8,
                signed: true,
                operand: ArgumentOperand::Register(Register::named("rax").unwrap())
            }
        );
        assert_eq!(
            parse("-1@%dl").operand,
            ArgumentOperand::Register(Register::named("rdx").unwrap())
        );
        assert_eq!(Register::named("sil").unwrap().pt_regs_index(), 13);
        assert_eq!(
            parse("8@-56(%rbp)").operand,
            ArgumentOperand::Memory {
                base: Register::named("rbp").unwrap(),
                index: None,
                displacement: -56
            }
        );
        assert_eq!(
            parse("4@16(%rax,%rcx,8)").operand,
            ArgumentOperand::Memory {
                base: Register::named("rax").unwrap(),
                index: Some((Register::named("rcx").unwrap(), 8)),
                displacement: 16
            }
        );
        assert_eq!(parse("-4@$-5").operand, ArgumentOperand::Constant(-5));
        for wrong in ["8@%xmm0", "8@", "8@(%rax", "8@sym(%rip)"] {
            assert_eq!(argument(wrong), None, "{wrong}");
        }
    }
}
