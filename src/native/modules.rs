//! Programs and libraries, read at their first frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};

use crate::target::{Addr, FunctionTable, LoadedObject, Mapping, Mappings, Memory, Process};

/// PyTorch's libraries have tens of MiB.
const MAX_HEADER: usize = 32 << 20;
const MAX_FRAMES: usize = 128 << 20;

/// PyTorch and CUDA have less than 100 MiB.
const MAX_TOTAL: usize = 256 << 20;

pub(super) struct UnwindTables {
    pub(super) header_at: u64,
    pub(super) header: Vec<u8>,
    pub(super) frames_at: u64,
    pub(super) frames: Vec<u8>,
}

pub(super) struct NativeModule {
    pub(super) object: LoadedObject,
    pub(super) tables: Result<UnwindTables, String>,
    /// The inner `None`: an unreadable file.
    functions: Option<Option<Arc<FunctionTable>>>,
}

impl NativeModule {
    fn size(&self) -> usize {
        self.tables.as_ref().map_or(0, |tables| tables.header.len() + tables.frames.len())
    }

    pub(super) fn name(&self) -> String {
        let path = self.object.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| "[vdso]".to_owned())
    }
}

pub(super) struct NativeModules<'a> {
    memory: &'a dyn Memory,
    mappings: Arc<Mappings>,
    known: BTreeMap<Addr, Option<NativeModule>>,
}

impl<'a> NativeModules<'a> {
    pub(super) fn new(
        memory: &'a dyn Memory,
        mappings: impl Into<Arc<Mappings>>,
    ) -> NativeModules<'a> {
        NativeModules { memory, mappings: mappings.into(), known: BTreeMap::new() }
    }

    /// Returns whether all known modules still exist.
    pub(super) fn set_mappings(&mut self, mappings: Arc<Mappings>) -> bool {
        self.mappings = mappings;
        self.known.retain(|_, module| module.is_some());
        let before = self.known.len();
        let is_there = |start: &Addr, module: &Option<NativeModule>| {
            let now = self.mappings.find(*start);
            now == module.as_ref().map(|it| it.object.mapping())
        };
        self.known.retain(|start, module| is_there(start, module));
        self.known.len() == before
    }

    pub(super) fn code_of(&self, wanted: impl Fn(&str) -> bool) -> Vec<Addr> {
        let code = self.mappings.iter().filter(|it| it.executable);
        code.filter(|it| it.file_name().is_some_and(&wanted)).map(|it| it.start).collect()
    }

    pub(super) fn has_code(&self, addr: Addr) -> bool {
        self.mappings.find(addr).is_some_and(|it| it.executable)
    }

    pub(super) fn find(&mut self, addr: Addr) -> Option<Addr> {
        let mapping = self.mappings.find(addr).filter(|mapping| mapping.executable)?;
        let first = first_of(&self.mappings, mapping)?;
        let start = first.start;
        if !self.known.contains_key(&start) {
            let object = LoadedObject::read(self.memory, first).ok();
            let module = object.map(|object| {
                let held: usize = self.known.values().flatten().map(NativeModule::size).sum();
                let tables = match held < MAX_TOTAL {
                    true => UnwindTables::read(self.memory, &self.mappings, &object),
                    false => {
                        Err(format!("unwind tables of {} MiB were read before it", held >> 20))
                    }
                };
                NativeModule { object, tables, functions: None }
            });
            self.known.insert(start, module);
        }
        let module = self.known.get(&start)?.as_ref()?;
        module.object.contains(addr).then_some(start)
    }

    pub(super) fn names(
        &mut self,
        process: &Process,
        start: Addr,
        addresses: &[Addr],
    ) -> Vec<Option<String>> {
        self.read_functions(process, start);
        let module = self.known.get(&start).and_then(Option::as_ref);
        match module.map(|module| (&module.object, &module.functions)) {
            Some((object, Some(Some(functions)))) => object.names_of(process, functions, addresses),
            _ => vec![None; addresses.len()],
        }
    }

    pub(super) fn read_functions(&mut self, process: &Process, start: Addr) {
        if let Some(Some(module)) = self.known.get_mut(&start) {
            let object = &module.object;
            module.functions.get_or_insert_with(|| object.function_table(process).ok());
        }
    }

    pub(super) fn get(&self, start: Addr) -> Option<&NativeModule> {
        self.known.get(&start)?.as_ref()
    }
}

/// The nearest earlier mapping with the start of its file.
fn first_of<'a>(mappings: &'a Mappings, mapping: &'a Mapping) -> Option<&'a Mapping> {
    if mapping.path.is_none() {
        return Some(mapping);
    }
    let before = mappings.iter().take_while(|it| it.start <= mapping.start);
    before.filter(|it| it.path == mapping.path && it.offset == 0).last()
}

impl UnwindTables {
    /// Distrusts the headers' lengths: reads only what is mapped.
    pub(super) fn read(
        memory: &dyn Memory,
        mappings: &Mappings,
        object: &LoadedObject,
    ) -> Result<UnwindTables, String> {
        let place = object.unwind_header().ok_or("it has no unwind table")?;
        let mapped = |from: Addr, len: u64| match mappings.readable_end(from) {
            Some(end) => Ok(usize::try_from(len.min(end.0 - from.0)).unwrap_or(usize::MAX)),
            None => Err("its unwind table cannot be read"),
        };
        let unreadable = |_| "its unwind table cannot be read".to_owned();
        let len = mapped(place.addr, place.len as u64)?.min(MAX_HEADER);
        let header = memory.vec(place.addr, len).map_err(unreadable)?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(place.addr.0);
        let parsed = EhFrameHdr::new(&header, LittleEndian).parse(&bases, 8);
        let Ok(Pointer::Direct(frames_at)) = parsed.map(|it| it.eh_frame_ptr()) else {
            return Err("its unwind table is damaged".to_owned());
        };
        // Its length is not in memory; it ends in the loaded segment.
        let end = object.end_of_piece(Addr(frames_at)).ok_or("its unwind table is damaged")?;
        let len = mapped(Addr(frames_at), end.0 - frames_at)?.min(MAX_FRAMES);
        let frames = memory.vec(Addr(frames_at), len).map_err(unreadable)?;
        Ok(UnwindTables { header_at: place.addr.0, header, frames_at, frames })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::MemoryImage;

    const START: u64 = 0x40_0000;
    const MAPPED: usize = 0x1000;
    const HEADER: usize = 0x200;
    const FRAMES: usize = 0x300;

    fn put(page: &mut [u8], at: usize, numbers: &[u64]) {
        for (slot, number) in page[at..].chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&number.to_le_bytes());
        }
    }

    fn oversized() -> Vec<u8> {
        let mut page = vec![0; MAPPED];
        page[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        // Offset, size and number of the program headers.
        (page[32], page[54], page[56]) = (64, 56, 3);
        let segments: [(u32, u64); 3] = [(1, 0), (2, 0x180), (0x6474_e550, HEADER as u64)];
        for (number, (kind, address)) in segments.into_iter().enumerate() {
            let at = 64 + 56 * number;
            put(&mut page, at, &[kind.into(), 0, address, address, 1 << 40, 1 << 40, 0]);
        }
        page[HEADER..HEADER + 4].copy_from_slice(&[1, 0x1b, 0xff, 0xff]);
        let distance = (FRAMES - HEADER - 4) as u32;
        page[HEADER + 4..HEADER + 8].copy_from_slice(&distance.to_le_bytes());
        page
    }

    #[test]
    fn only_mapped_bytes_of_tables_are_read() {
        let mapping = Mapping {
            start: Addr(START),
            end: Addr(START + MAPPED as u64),
            offset: 0,
            readable: true,
            writable: false,
            executable: true,
            path: None,
            deleted: false,
        };
        let mut memory = MemoryImage::default();
        memory.insert(mapping.start, &oversized());
        let object = LoadedObject::read(&memory, &mapping).unwrap();
        let mappings = Mappings::from_list(vec![mapping]);
        let tables = UnwindTables::read(&memory, &mappings, &object).unwrap();
        assert_eq!((tables.header.len(), tables.frames.len()), (MAPPED - HEADER, MAPPED - FRAMES));
        assert!(UnwindTables::read(&memory, &Mappings::default(), &object).is_err());
    }
}
