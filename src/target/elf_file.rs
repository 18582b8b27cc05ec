//! Reads an ELF file on disk.
//!
//! The job may truncate it. It is not mapped: access to a lost mapping would kill memspy.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use object::LittleEndian;
use object::elf::{FileHeader64, ProgramHeader64, SectionHeader64, Sym64};
use object::elf::{
    PT_LOAD, SHN_UNDEF, SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB, STT_FUNC, STT_GNU_IFUNC,
};
use object::pod::{Pod, from_bytes, slice_from_all_bytes};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym};

use super::function_table::FunctionSymbol;

const LE: LittleEndian = LittleEndian;
/// Only symbol tables and their names come near.
const MAX_SECTION: u64 = 1 << 30;
/// More than any library's sections or segments.
const MAX_HEADERS: u64 = 1 << 16;

/// Per symbol table; PyTorch's largest library has half a million.
const MAX_FUNCTIONS: usize = 1 << 22;

/// C++ names may have kilobytes.
pub(super) const MAX_NAME: usize = 1 << 16;

pub(super) struct ElfFile<'a> {
    file: &'a File,
    segments: Vec<ProgramHeader64<LittleEndian>>,
    sections: Vec<SectionHeader64<LittleEndian>>,
    /// Of sections.
    names: Vec<u8>,
}

fn malformed(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn read(file: &File, at: u64, bytes: u64) -> io::Result<Vec<u8>> {
    let there = file.metadata()?.len();
    if bytes > MAX_SECTION || at.checked_add(bytes).is_none_or(|end| end > there) {
        return Err(malformed("no usable ELF file: a part of it lies outside of the file"));
    }
    let mut content = vec![0; bytes as usize];
    file.read_exact_at(&mut content, at)?;
    Ok(content)
}

fn headers<T: Pod + Copy>(file: &File, at: u64, count: u64) -> io::Result<Vec<T>> {
    if count > MAX_HEADERS {
        return Err(malformed("no usable ELF file: too many headers"));
    }
    let bytes = read(file, at, count * size_of::<T>() as u64)?;
    slice_from_all_bytes(&bytes).map(<[T]>::to_vec).map_err(|()| malformed("headers cut"))
}

impl<'a> ElfFile<'a> {
    pub(super) fn read(file: &'a File) -> io::Result<Self> {
        let bytes = read(file, 0, size_of::<FileHeader64<LittleEndian>>() as u64)?;
        let header = from_bytes::<FileHeader64<LittleEndian>>(&bytes).ok();
        let Some((header, _)) = header.filter(|(header, _)| {
            header.is_supported() && header.is_class_64() && header.is_little_endian()
        }) else {
            return Err(malformed("no usable ELF file: not a 64-bit little-endian one"));
        };
        let at = header.e_shoff(LE);
        let mut count = u64::from(header.e_shnum(LE));
        let mut names = u64::from(header.e_shstrndx(LE).0);
        let first: Vec<SectionHeader64<LittleEndian>> =
            if at == 0 { Vec::new() } else { headers(file, at, 1)? };
        if let Some(first) = first.first() {
            // Too large numbers are in the first section (ELF specification).
            if count == 0 {
                count = first.sh_size(LE);
            }
            if names == u64::from(object::elf::SHN_XINDEX.0) {
                names = u64::from(first.sh_link(LE));
            }
        }
        let segments = headers(file, header.e_phoff(LE), u64::from(header.e_phnum(LE)))?;
        let sections = if at == 0 { Vec::new() } else { headers(file, at, count)? };
        let mut read = ElfFile { file, segments, sections, names: Vec::new() };
        read.names = match read.sections.get(names as usize) {
            Some(section) => read.content(section)?,
            None => Vec::new(),
        };
        Ok(read)
    }

    pub(super) fn section(&self, name: &str) -> Option<&SectionHeader64<LittleEndian>> {
        self.sections.iter().find(|s| is_at(&self.names, s.sh_name(LE), name))
    }

    pub(super) fn content(&self, section: &SectionHeader64<LittleEndian>) -> io::Result<Vec<u8>> {
        if section.sh_type(LE) == SHT_NOBITS {
            return Ok(Vec::new());
        }
        read(self.file, section.sh_offset(LE), section.sh_size(LE))
    }

    pub(super) fn offset_of(&self, address: u64) -> Option<u64> {
        self.segments.iter().filter(|s| s.p_type(LE) == PT_LOAD).find_map(|segment| {
            let inside = address.checked_sub(segment.p_vaddr(LE))?;
            (inside < segment.p_filesz(LE)).then(|| segment.p_offset(LE).checked_add(inside))?
        })
    }

    /// The smallest of nested functions.
    pub(super) fn functions_at(&self, addresses: &[u64]) -> io::Result<Vec<Option<String>>> {
        let mut order: Vec<(u64, usize)> = addresses.iter().copied().zip(0..).collect();
        order.sort_unstable();
        let mut found: Vec<Option<(u64, String)>> = vec![None; addresses.len()];
        self.find_symbol(|symbol, names| {
            let (start, size) = (symbol.st_value(LE), symbol.st_size(LE));
            let end = start.checked_add(size).filter(|_| is_function(symbol))?;
            let first = order.partition_point(|(at, _)| *at < start);
            for (_, index) in order[first..].iter().take_while(|(at, _)| *at < end) {
                let is_better = found[*index].as_ref().is_none_or(|(known, _)| size < *known);
                if let Some(name) = name_at(names, symbol.st_name(LE)).filter(|_| is_better) {
                    found[*index] = Some((size, name));
                }
            }
            None::<()>
        })?;
        Ok(found.into_iter().map(|it| it.map(|(_, name)| name)).collect())
    }

    /// Those of the full table first.
    pub(super) fn functions(&self) -> io::Result<Vec<FunctionSymbol>> {
        let mut functions = Vec::new();
        for kind in [SHT_SYMTAB, SHT_DYNSYM] {
            for table in self.sections.iter().filter(|s| s.sh_type(LE) == kind) {
                let Some(names) = self.sections.get(table.sh_link(LE) as usize) else { continue };
                let bytes = self.content(table)?;
                let function = |symbol: &Sym64<LittleEndian>| {
                    let name = u64::from(symbol.st_name(LE));
                    let name_at = names.sh_offset(LE).checked_add(name)?;
                    let is_named = is_function(symbol) && name < names.sh_size(LE);
                    is_named.then_some(FunctionSymbol {
                        start: symbol.st_value(LE),
                        len: symbol.st_size(LE),
                        name_at,
                    })
                };
                functions.extend(symbols(&bytes)?.iter().filter_map(function).take(MAX_FUNCTIONS));
            }
        }
        Ok(functions)
    }

    pub(super) fn symbol(&self, name: &str) -> io::Result<Option<u64>> {
        self.find_symbol(|symbol, names| {
            let is_it = symbol.st_shndx(LE) != SHN_UNDEF && is_at(names, symbol.st_name(LE), name);
            is_it.then(|| symbol.st_value(LE))
        })
    }

    /// `visit` also gets the names.
    fn find_symbol<T>(
        &self,
        mut visit: impl FnMut(&Sym64<LittleEndian>, &[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        for kind in [SHT_SYMTAB, SHT_DYNSYM] {
            for table in self.sections.iter().filter(|s| s.sh_type(LE) == kind) {
                let Some(names) = self.sections.get(table.sh_link(LE) as usize) else { continue };
                let (bytes, names) = (self.content(table)?, self.content(names)?);
                if let Some(found) =
                    symbols(&bytes)?.iter().find_map(|symbol| visit(symbol, &names))
                {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }
}

fn symbols(bytes: &[u8]) -> io::Result<&[Sym64<LittleEndian>]> {
    let whole = bytes.len() - bytes.len() % size_of::<Sym64<LittleEndian>>();
    slice_from_all_bytes(&bytes[..whole])
        .map_err(|()| malformed("no usable ELF file: its symbols are cut"))
}

fn is_function(symbol: &Sym64<LittleEndian>) -> bool {
    symbol.st_shndx(LE) != SHN_UNDEF && [STT_FUNC, STT_GNU_IFUNC].contains(&symbol.st_type())
}

fn name_at(names: &[u8], at: u32) -> Option<String> {
    let name = names.get(at as usize..)?;
    let name = &name[..name.len().min(MAX_NAME)];
    let end = name.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&name[..end]).into_owned())
}

fn is_at(names: &[u8], at: u32, name: &str) -> bool {
    let after = names.get(at as usize..).and_then(|rest| rest.strip_prefix(name.as_bytes()));
    after.is_some_and(|after| after.first() == Some(&0))
}

#[cfg(test)]
mod tests {
    use super::super::process::Process;
    use super::*;

    fn copy(path: &std::path::Path) {
        let own = Process::open(std::process::id()).unwrap();
        let mappings = own.mappings().unwrap();
        let library = mappings.object(|name| name.starts_with("libc.so")).unwrap();
        std::fs::copy(library.path.as_ref().unwrap(), path).unwrap();
    }

    #[test]
    fn a_file_truncated_during_a_read_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library");
        copy(&path);
        let file = File::open(&path).unwrap();
        let elf = ElfFile::read(&file).unwrap();
        assert!(elf.symbol("getpid").unwrap().is_some());
        assert_eq!(elf.symbol("no_such_symbol").unwrap(), None);
        let writable = File::options().write(true).open(&path).unwrap();
        writable.set_len(4096).unwrap();
        assert!(elf.symbol("getpid").is_err());
        assert!(ElfFile::read(&file).is_err());
        writable.set_len(10).unwrap();
        assert!(ElfFile::read(&file).is_err());
    }

    #[test]
    fn unexported_symbols_are_found_and_undefined_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let source = "int elsewhere(void); __attribute__((visibility(\"hidden\"))) int inside = 7;\n\
                      int outside(void) { return inside + elsewhere(); }\n";
        std::fs::write(path("a.c"), source).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).arg(path("a.so")).arg(path("a.c"));
        assert!(compiler.status().unwrap().success());
        let file = File::open(path("a.so")).unwrap();
        let elf = ElfFile::read(&file).unwrap();
        let inside = elf.symbol("inside").unwrap().unwrap();
        let mut bytes = [0];
        file.read_exact_at(&mut bytes, elf.offset_of(inside).unwrap()).unwrap();
        assert_eq!(bytes, [7]);
        assert!(elf.symbol("outside").unwrap().is_some());
        assert_eq!(elf.symbol("elsewhere").unwrap(), None);
        assert_eq!(elf.symbol("insid").unwrap(), None);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library");
        copy(&path);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        // Sparse: reading such a section would take all memory.
        file.set_len(1 << 40).unwrap();
        let elf = ElfFile::read(&file).unwrap();
        let mut table = *elf.section(".dynsym").unwrap();
        table.sh_size.set(LE, 1 << 39);
        assert!(elf.content(&table).is_err());
    }
}
