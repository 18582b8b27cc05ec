//! Finds symbols of a loaded library or program in the target's memory.
//!
//! The loader maps the dynamic symbol table: only unexported symbols need the file.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use object::LittleEndian;
use object::elf::{
    DT_GNU_HASH, DT_STRTAB, DT_SYMTAB, Dyn64, DynamicTag, FileHeader64, GnuHashHeader, PT_DYNAMIC,
    PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader64, SHN_UNDEF, Sym64, gnu_hash,
};
use object::pod::{Pod, from_bytes, slice_from_all_bytes};
use object::read::elf::{FileHeader, ProgramHeader, Sym};

use super::elf_file::ElfFile;
use super::function_table::FunctionTable;
use super::mappings::{Mapping, Mappings};
use super::memory::{Addr, AddressRange, Memory, MemoryError};
use super::process::Process;

const LE: LittleEndian = LittleEndian;
/// Bounds against damage.
const MAX_NAME_LEN: usize = 512;
const MAX_CHAIN_LEN: u64 = 4096;

/// Why a loaded ELF object could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ObjectError {
    #[error("cannot read the ELF headers at {at}: {source}")]
    Memory { at: Addr, source: MemoryError },
    #[error("no usable ELF object at {at}: {why}")]
    Malformed { at: Addr, why: &'static str },
}

/// Why a symbol was not found.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum SymbolError {
    #[error("{object} has no symbol {name}")]
    Missing { object: String, name: String },
    #[error("{object} does not export {name}, and its file cannot be opened: {source}")]
    NoFile { object: String, name: String, source: io::Error },
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// An ELF object in the target.
#[derive(Debug, Clone)]
pub struct LoadedObject {
    mapping: Mapping,
    /// Target address less the file's virtual address.
    bias: u64,
    dynamic: Addr,
    dynamic_len: usize,
    end: Addr,
    /// `.eh_frame_hdr`.
    unwind_header: Option<AddressRange>,
    /// Bounds of each loaded segment.
    loads: Vec<(Addr, Addr)>,
}

impl LoadedObject {
    /// `mapping` starts with the ELF header.
    pub fn read(memory: &dyn Memory, mapping: &Mapping) -> Result<Self, ObjectError> {
        let at = mapping.start;
        let malformed = |why| ObjectError::Malformed { at, why };
        let read = |addr, len| {
            memory.vec(addr, len).map_err(|source| ObjectError::Memory { at: addr, source })
        };

        let bytes = read(at, size_of::<FileHeader64<LittleEndian>>())?;
        let header: &FileHeader64<LittleEndian> =
            pod(&bytes).ok_or(malformed("header too short"))?;
        if header.e_ident.magic != *b"\x7fELF"
            || !header.is_class_64()
            || !header.is_little_endian()
        {
            return Err(malformed("not a 64-bit little-endian ELF file"));
        }
        let count = usize::from(header.e_phnum.get(LE));
        if usize::from(header.e_phentsize.get(LE)) != size_of::<ProgramHeader64<LittleEndian>>() {
            return Err(malformed("unknown size of program headers"));
        }
        let bytes =
            read(at + header.e_phoff.get(LE), count * size_of::<ProgramHeader64<LittleEndian>>())?;
        let segments: &[ProgramHeader64<LittleEndian>] =
            slice_from_all_bytes(&bytes).map_err(|()| malformed("program headers cut"))?;
        let loads = || segments.iter().filter(|s| s.p_type(LE) == PT_LOAD);
        let first = loads()
            .find(|s| s.p_offset(LE) == 0)
            .ok_or(malformed("no segment holds the header"))?;
        let bias = at.0.wrapping_sub(first.p_vaddr(LE));
        let dynamic = segments
            .iter()
            .find(|s| s.p_type(LE) == PT_DYNAMIC)
            .ok_or(malformed("statically linked without a dynamic section"))?;
        let end = loads().map(|s| s.p_vaddr(LE).saturating_add(s.p_memsz(LE))).max().unwrap_or(0);
        let header = segments.iter().find(|s| s.p_type(LE) == PT_GNU_EH_FRAME);
        let unwind_header = header.and_then(|s| {
            let len = usize::try_from(s.p_memsz(LE)).ok()?;
            Some(AddressRange { addr: Addr(bias.wrapping_add(s.p_vaddr(LE))), len })
        });
        let load = |s: &ProgramHeader64<LittleEndian>| {
            let start = Addr(bias.wrapping_add(s.p_vaddr(LE)));
            (start, start + s.p_memsz(LE))
        };
        Ok(LoadedObject {
            mapping: mapping.clone(),
            bias,
            unwind_header,
            loads: loads().map(load).collect(),
            dynamic: Addr(bias.wrapping_add(dynamic.p_vaddr(LE))),
            dynamic_len: (dynamic.p_memsz(LE) as usize).min(1 << 16),
            end: Addr(bias.wrapping_add(end)),
        })
    }

    /// The first loaded object with a `wanted` file name.
    pub fn find(
        memory: &dyn Memory,
        mappings: &Mappings,
        wanted: impl FnMut(&str) -> bool,
    ) -> Option<Result<Self, ObjectError>> {
        mappings.object(wanted).map(|mapping| Self::read(memory, mapping))
    }

    /// The mapping with the ELF header.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Its file, as the target names it.
    pub fn path(&self) -> PathBuf {
        self.mapping.path.clone().unwrap_or_default()
    }

    /// Whether `addr` is in its image.
    pub fn contains(&self, addr: Addr) -> bool {
        (self.mapping.start..self.end).contains(&addr)
    }

    /// The unwind table (`.eh_frame_hdr`).
    pub fn unwind_header(&self) -> Option<AddressRange> {
        self.unwind_header
    }

    /// End of the loaded segment that contains `addr`.
    pub fn end_of_piece(&self, addr: Addr) -> Option<Addr> {
        self.loads.iter().find(|(start, end)| (*start..*end).contains(&addr)).map(|(_, end)| *end)
    }

    /// Virtual address in the file.
    pub fn virtual_of(&self, addr: Addr) -> u64 {
        addr.0.wrapping_sub(self.bias)
    }

    /// Names of functions at `addresses`; `None`: none of known size.
    pub fn functions_at(
        &self,
        process: &Process,
        addresses: &[Addr],
    ) -> io::Result<Vec<Option<String>>> {
        let file = process.open_mapped(&self.mapping)?;
        let wanted: Vec<u64> = addresses.iter().map(|at| self.virtual_of(*at)).collect();
        Ok(process.work_on_file(move || ElfFile::read(&file)?.functions_at(&wanted))?)
    }

    /// The functions of its file, for [`Self::names_of`].
    pub fn function_table(&self, process: &Process) -> io::Result<Arc<FunctionTable>> {
        let file = process.open_mapped(&self.mapping)?;
        Ok(process.work_on_file(move || FunctionTable::read(file).map(Arc::new))?)
    }

    /// By table; `None` if the file became unreadable.
    pub fn names_of(
        &self,
        process: &Process,
        functions: &Arc<FunctionTable>,
        addresses: &[Addr],
    ) -> Vec<Option<String>> {
        let wanted: Vec<u64> = addresses.iter().map(|at| self.virtual_of(*at)).collect();
        let functions = Arc::clone(functions);
        process
            .work_on_file(move || Ok(functions.names(&wanted)))
            .unwrap_or_else(|_| vec![None; addresses.len()])
    }

    /// Target address of a virtual address in the file.
    pub fn at_virtual(&self, virtual_address: u64) -> Addr {
        Addr(self.bias.wrapping_add(virtual_address))
    }

    /// Address of an exported symbol; `Ok(None)`: not exported.
    pub fn exported(&self, memory: &dyn Memory, name: &str) -> Result<Option<Addr>, ObjectError> {
        let fault = |source| ObjectError::Memory { at: self.dynamic, source };
        let Some(tables) = self.tables(memory)? else { return Ok(None) };
        self.look_up(memory, &tables, name).map_err(fault)
    }

    /// From exported symbols, else the file's full table.
    pub fn symbol(
        &self,
        process: &Process,
        memory: &dyn Memory,
        name: &str,
    ) -> Result<Addr, SymbolError> {
        if let Some(addr) = self.exported(memory, name)? {
            return Ok(addr);
        }
        let object = || self.path().display().to_string();
        let no_file =
            |source| SymbolError::NoFile { object: object(), name: name.to_owned(), source };
        let file = process.open_mapped(&self.mapping).map_err(no_file)?;
        let wanted = name.to_owned();
        let found = process.work_on_file(move || ElfFile::read(&file)?.symbol(&wanted));
        match found.map_err(|error| no_file(error.into()))? {
            Some(address) => Ok(self.at_virtual(address)),
            None => Err(SymbolError::Missing { object: object(), name: name.to_owned() }),
        }
    }

    fn tables(&self, memory: &dyn Memory) -> Result<Option<DynamicTables>, ObjectError> {
        let bytes = memory
            .vec(
                self.dynamic,
                self.dynamic_len / size_of::<Dyn64<LittleEndian>>()
                    * size_of::<Dyn64<LittleEndian>>(),
            )
            .map_err(|source| ObjectError::Memory { at: self.dynamic, source })?;
        let entries: &[Dyn64<LittleEndian>] = slice_from_all_bytes(&bytes).map_err(|()| {
            ObjectError::Malformed { at: self.dynamic, why: "dynamic section cut" }
        })?;
        let value = |tag: DynamicTag| {
            let entry = entries.iter().find(|e| e.d_tag.get(LE) == tag)?;
            let value = entry.d_val.get(LE);
            // glibc replaces file addresses by memory addresses in place; musl and the vDSO do not.
            Some(if self.contains(Addr(value)) { Addr(value) } else { self.at_virtual(value) })
        };
        Ok((|| {
            Some(DynamicTables {
                hash: value(DT_GNU_HASH)?,
                symbols: value(DT_SYMTAB)?,
                strings: value(DT_STRTAB)?,
            })
        })())
    }

    /// The loader's look-up (`DT_GNU_HASH`), without Bloom filter.
    fn look_up(
        &self,
        memory: &dyn Memory,
        tables: &DynamicTables,
        name: &str,
    ) -> Result<Option<Addr>, MemoryError> {
        const SYMBOL: u64 = size_of::<Sym64<LittleEndian>>() as u64;
        let bytes = memory.vec(tables.hash, size_of::<GnuHashHeader<LittleEndian>>())?;
        let Some(header) = pod::<GnuHashHeader<LittleEndian>>(&bytes) else { return Ok(None) };
        let (buckets, base) = (header.bucket_count.get(LE), u64::from(header.symbol_base.get(LE)));
        if buckets == 0 {
            return Ok(None);
        }
        let hash = gnu_hash(name.as_bytes());
        let bucket_table = tables.hash + 16 + 8 * u64::from(header.bloom_count.get(LE));
        let chains = bucket_table + 4 * u64::from(buckets);
        let first = u64::from(memory.u32(bucket_table + 4 * u64::from(hash % buckets))?);
        if first < base {
            return Ok(None);
        }
        for index in first..first + MAX_CHAIN_LEN {
            let chained = memory.u32(chains + 4 * (index - base))?;
            if chained | 1 == hash | 1 {
                let bytes = memory.vec(tables.symbols + SYMBOL * index, SYMBOL as usize)?;
                let Some(symbol) = pod::<Sym64<LittleEndian>>(&bytes) else { return Ok(None) };
                let found = memory
                    .c_string(tables.strings + u64::from(symbol.st_name(LE)), MAX_NAME_LEN)?;
                if found == name && symbol.st_shndx(LE) != SHN_UNDEF {
                    return Ok(Some(self.at_virtual(symbol.st_value(LE))));
                }
            }
            if chained & 1 == 1 {
                break;
            }
        }
        Ok(None)
    }
}

struct DynamicTables {
    hash: Addr,
    symbols: Addr,
    strings: Addr,
}

fn pod<T: Pod>(bytes: &[u8]) -> Option<&T> {
    from_bytes(bytes).ok().map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn symbols_of_the_c_library_match_the_loader() {
        let own = Process::open(std::process::id()).unwrap();
        let memory = own.memory();
        let libc =
            LoadedObject::find(&memory, &own.mappings().unwrap(), |n| n.starts_with("libc.so"))
                .unwrap()
                .unwrap();
        let expected = nix::libc::getpid as *const () as u64;
        assert_eq!(libc.exported(&memory, "getpid").unwrap(), Some(Addr(expected)));
        assert_eq!(libc.exported(&memory, "no_such_symbol").unwrap(), None);
        assert!(libc.contains(Addr(expected)));
        assert!(matches!(
            libc.symbol(&own, &memory, "no_such_symbol"),
            Err(SymbolError::Missing { .. })
        ));
    }

    #[test]
    fn an_unexported_symbol_comes_from_the_file() {
        // The test binary may lack symbols.
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
        let text = "#include <unistd.h>\nstatic int inside(void) { char c; return write(1, &c, 1) + read(0, &c, 1); }\n\
                    int main(void) { return inside() > 9; }\n";
        std::fs::write(&source, text).unwrap();
        let compiled = Command::new("cc").arg("-o").args([&program, &source]).status().unwrap();
        assert!(compiled.success());
        let mut child =
            Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let process = Process::open(child.id()).unwrap();
        let memory = process.memory();
        let mappings = process.mappings().unwrap();
        let object = LoadedObject::read(&memory, mappings.object_at(&program).unwrap()).unwrap();
        assert_eq!(object.exported(&memory, "inside").unwrap(), None);
        let found = object.symbol(&process, &memory, "inside").unwrap();
        assert!(object.contains(found));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }

    fn mapping() -> Mapping {
        Mapping {
            start: Addr(0x10000),
            end: Addr(0x11000),
            offset: 0,
            readable: true,
            writable: false,
            executable: false,
            path: None,
            deleted: false,
        }
    }

    #[test]
    fn a_segment_beyond_the_last_address_does_not_panic() {
        let mut header = [0; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        (header[32], header[54], header[56]) = (64, 56, 2);
        let segment = |kind: u32, address: u64, size: u64| {
            let mut bytes = [0; 56];
            bytes[..4].copy_from_slice(&kind.to_le_bytes());
            bytes[16..24].copy_from_slice(&address.to_le_bytes());
            bytes[40..48].copy_from_slice(&size.to_le_bytes());
            bytes
        };
        let mut image = super::super::MemoryImage::default();
        image.insert(Addr(0x10000), &header);
        image.insert(Addr(0x10040), &segment(PT_LOAD.0, u64::MAX - 1, 8));
        image.insert(Addr(0x10078), &segment(PT_DYNAMIC.0, u64::MAX, 16));
        if let Ok(object) = LoadedObject::read(&image, &mapping()) {
            assert_eq!(object.exported(&image, "any").ok().flatten(), None);
        }
    }

    #[test]
    fn a_file_that_is_not_elf_is_refused() {
        let mut image = super::super::MemoryImage::default();
        image.insert(Addr(0x10000), &[7; 4096]);
        let mapping = mapping();
        assert!(matches!(LoadedObject::read(&image, &mapping), Err(ObjectError::Malformed { .. })));
    }
}
