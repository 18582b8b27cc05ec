//! Arguments and environment on a program's initial stack.
//!
//! From low to high addresses: number of arguments, pointers to them, null; pointers to variables,
//! null; auxiliary vector (Linux, fs/binfmt_elf.c, `create_elf_tables`). The core file's copy of
//! that vector leads there.

use super::super::memory::{Addr, Memory};
use super::header::CoreSegment;

/// Arguments and environment have at most 6 MiB.
const MAX_SEARCHED: u64 = 8 << 20;
/// Of the auxiliary vector.
const COMPARED: usize = 64;
/// Bounds against a damaged stack.
const MAX_WORDS: usize = 1 << 16;
const MAX_TEXT: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartStack {
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<String>,
}

impl StartStack {
    pub(super) fn find(
        memory: &dyn Memory,
        segments: &[CoreSegment],
        auxiliary_vector: &[u8],
    ) -> Option<StartStack> {
        let wanted = auxiliary_vector.get(..COMPARED)?;
        let stack = segments.iter().rev().find(|it| it.writable && it.dumped > 0)?;
        let end = stack.start.checked_add(stack.dumped)?;
        let start = end.saturating_sub(MAX_SEARCHED).max(stack.start);
        let bytes = memory.vec(Addr(start), (end - start) as usize).ok()?;
        let found = (0..bytes.len().saturating_sub(COMPARED))
            .rev()
            .filter(|at| (start + *at as u64).is_multiple_of(8))
            .find(|at| bytes[*at..].starts_with(wanted))?;
        let words = words_before(&bytes[..found]);
        let mut lists = words.split(|word| *word == 0);
        // The null before the vector ends the environment.
        lists.next().filter(|list| list.is_empty())?;
        let variables = lists.next()?;
        let rest = lists.next()?;
        // Downwards: arguments, last first, then their number.
        let count =
            rest.iter().zip(0..).find_map(|(word, before)| (*word == before).then_some(before));
        let arguments = &rest[..count? as usize];
        let texts = |list: &[u64]| list.iter().rev().map(|at| text(memory, Addr(*at))).collect();
        Some(StartStack { arguments: texts(arguments), variables: texts(variables) })
    }
}

/// Last first.
fn words_before(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.rchunks_exact(8).take(MAX_WORDS);
    words.map(|it| it.try_into().map_or(0, u64::from_le_bytes)).collect()
}

fn text(memory: &dyn Memory, at: Addr) -> String {
    memory.c_string(at, MAX_TEXT).unwrap_or_else(|_| "?".to_owned())
}
