//! An ELF file's functions, sorted. Reads names on demand.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::elf_file::{ElfFile, MAX_NAME};

/// Functions can be nested.
const MAX_BEFORE: usize = 32;
const USUAL_NAME: usize = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FunctionSymbol {
    pub(super) start: u64,
    pub(super) len: u64,
    /// In the file.
    pub(super) name_at: u64,
}

/// The functions of a file.
#[derive(Debug)]
pub struct FunctionTable {
    file: File,
    functions: Vec<FunctionSymbol>,
}

impl FunctionTable {
    pub(super) fn read(file: File) -> io::Result<FunctionTable> {
        let mut functions = ElfFile::read(&file)?.functions()?;
        // Keep a function's first name, from the full table.
        functions.sort_by_key(|it| (it.start, it.len));
        functions.dedup_by_key(|it| (it.start, it.len));
        functions.shrink_to_fit();
        Ok(FunctionTable { file, functions })
    }

    /// The smallest of nested functions.
    pub(super) fn names(&self, addresses: &[u64]) -> Vec<Option<String>> {
        addresses.iter().map(|at| self.name(self.find(*at)?)).collect()
    }

    fn find(&self, at: u64) -> Option<&FunctionSymbol> {
        let end = self.functions.partition_point(|it| it.start <= at);
        let before = self.functions[..end].iter().rev().take(MAX_BEFORE);
        before.filter(|it| at - it.start < it.len).min_by_key(|it| it.len)
    }

    /// `None`: truncated meanwhile.
    fn name(&self, function: &FunctionSymbol) -> Option<String> {
        [USUAL_NAME, MAX_NAME].into_iter().find_map(|most| {
            let mut bytes = vec![0; most];
            let read = self.file.read_at(&mut bytes, function.name_at).ok()?;
            let end = bytes[..read].iter().position(|byte| *byte == 0)?;
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::mappings::Mapping;
    use super::super::process::Process;
    use super::*;

    #[test]
    fn many_look_ups_agree_with_single_ones() {
        let own = Process::open(std::process::id()).unwrap();
        let mappings = own.mappings().unwrap();
        let library = mappings.object(|name| name.starts_with("libc.so")).unwrap();
        let open = |it: &Mapping| File::open(it.path.as_ref().unwrap()).unwrap();
        let file = open(library);
        let elf = ElfFile::read(&file).unwrap();
        let start = elf.symbol("qsort").unwrap().unwrap();
        let addresses: Vec<u64> = (0..400).map(|n| start + 97 * n).chain([0, u64::MAX]).collect();
        let table = FunctionTable::read(open(library)).unwrap();
        // Functions may have several names.
        let one_by_one = elf.functions_at(&addresses).unwrap();
        for (at, (one, name)) in
            addresses.iter().zip(one_by_one.iter().zip(table.names(&addresses)))
        {
            assert_eq!(one.is_some(), name.is_some(), "{at:#x}: {one:?} {name:?}");
            let (Some(one), Some(name)) = (one, name) else { continue };
            let [one, name] = [one.as_str(), &name].map(|it| elf.symbol(it).unwrap());
            assert_eq!(one, name, "{at:#x}");
        }
        assert!(table.names(&[start])[0].as_deref().is_some_and(|name| name.contains("qsort")));
    }
}
