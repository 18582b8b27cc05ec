//! What is mapped where in the target, and from which file.

use std::path::{Path, PathBuf};

use procfs::process::{MMPermissions, MMapPath};

use super::memory::Addr;
use super::process::ProcessError;

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: Addr,
    /// First address after it.
    pub end: Addr,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Whether it may be read.
    pub readable: bool,
    /// Whether it may be written.
    pub writable: bool,
    /// Whether it may be executed.
    pub executable: bool,
    /// The file, as the target's mount namespace names it, without the kernel's ` (deleted)`.
    pub path: Option<PathBuf>,
    /// Whether that file has been deleted (or replaced) since.
    pub deleted: bool,
}

impl Mapping {
    /// Whether `addr` is in it.
    pub fn contains(&self, addr: Addr) -> bool {
        (self.start..self.end).contains(&addr)
    }

    /// The last part of its path.
    pub fn file_name(&self) -> Option<&str> {
        self.path.as_deref()?.file_name()?.to_str()
    }
}

/// All mappings of the target at one moment, in address order.
#[derive(Debug, Clone, Default)]
pub struct Mappings {
    list: Vec<Mapping>,
}

impl Mappings {
    /// These, which are in the order of their addresses.
    pub(crate) fn from_list(list: Vec<Mapping>) -> Self {
        Mappings { list }
    }

    pub(super) fn read(process: &procfs::process::Process) -> Result<Self, ProcessError> {
        let maps = process
            .maps()
            .map_err(|e| ProcessError::from_proc("read the mappings of", process.pid, e))?;
        let list = maps.into_iter().map(|map| {
            let (path, deleted) = match map.pathname {
                MMapPath::Path(path) => {
                    match path.to_str().and_then(|p| p.strip_suffix(" (deleted)")) {
                        Some(kept) => (Some(PathBuf::from(kept)), true),
                        None => (Some(path), false),
                    }
                }
                _ => (None, false),
            };
            Mapping {
                start: Addr(map.address.0),
                end: Addr(map.address.1),
                offset: map.offset,
                readable: map.perms.contains(MMPermissions::READ),
                writable: map.perms.contains(MMPermissions::WRITE),
                executable: map.perms.contains(MMPermissions::EXECUTE),
                path,
                deleted,
            }
        });
        Ok(Mappings { list: list.collect() })
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.list.iter()
    }

    /// The one that contains `addr`.
    pub fn find(&self, addr: Addr) -> Option<&Mapping> {
        let next = self.list.partition_point(|m| m.start <= addr);
        self.list[..next].last().filter(|m| m.contains(addr))
    }

    /// The first address after `addr` that cannot be read, as far as mappings tell; `None` where `addr` itself cannot.
    pub fn readable_end(&self, addr: Addr) -> Option<Addr> {
        let first = self.list.partition_point(|m| m.end <= addr);
        let mut end = addr;
        for mapping in self.list[first..].iter().filter(|m| m.readable) {
            if mapping.start > end {
                break;
            }
            end = mapping.end;
        }
        (end > addr).then_some(end)
    }

    /// The mapping that holds the beginning of the first file whose name satisfies `wanted`:
    /// where the ELF header of a loaded library or program is.
    pub fn object(&self, mut wanted: impl FnMut(&str) -> bool) -> Option<&Mapping> {
        self.loaded(|m| m.file_name().is_some_and(&mut wanted))
    }

    /// The mapping that holds the beginning of the file `path`.
    pub fn object_at(&self, path: &Path) -> Option<&Mapping> {
        self.loaded(|m| m.path.as_deref() == Some(path))
    }

    /// The beginning of a file that is loaded, else one of a file that is merely read through a mapping: a program may do both
    /// with the same library, and only one of them holds its variables.
    fn loaded(&self, mut wanted: impl FnMut(&Mapping) -> bool) -> Option<&Mapping> {
        let mut begins = Vec::new();
        for (at, mapping) in self.list.iter().enumerate() {
            if mapping.offset == 0 && wanted(mapping) {
                begins.push(at);
            }
        }
        let is_loaded = |at: &&usize| {
            let first = &self.list[**at];
            let parts = self.list[**at + 1..].iter().filter(|m| m.path.is_some());
            let mut own = parts.take_while(|m| m.path == first.path && m.offset > 0);
            first.executable || own.any(|m| m.executable)
        };
        let at = begins.iter().find(is_loaded).or(begins.first())?;
        self.list.get(*at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_also_read_as_a_file_is_found_where_it_is_loaded() {
        let mapping = |start, offset, executable| Mapping {
            start: Addr(start),
            end: Addr(start + 0x1000),
            offset,
            readable: true,
            writable: false,
            executable,
            path: Some(PathBuf::from("/lib/libx.so")),
            deleted: false,
        };
        let read = mapping(0x1000, 0, false);
        let loaded = [mapping(0x8000, 0, false), mapping(0x9000, 0x1000, true)];
        let maps = Mappings { list: [&[read.clone()][..], &loaded].concat() };
        assert_eq!(maps.object(|name| name == "libx.so").unwrap().start, Addr(0x8000));
        assert_eq!(maps.object_at(Path::new("/lib/libx.so")).unwrap().start, Addr(0x8000));
        let maps = Mappings { list: vec![read] };
        assert_eq!(maps.object(|name| name == "libx.so").unwrap().start, Addr(0x1000));
    }

    #[test]
    fn what_can_be_read_ends_at_a_gap_or_at_what_may_not_be_read() {
        let mapping = |start, end, readable| Mapping {
            start: Addr(start),
            end: Addr(end),
            offset: 0,
            readable,
            writable: false,
            executable: false,
            path: None,
            deleted: false,
        };
        let parts = [(0x1000, 0x2000, true), (0x2000, 0x4000, true), (0x4000, 0x5000, false)];
        let mut list: Vec<_> = parts.map(|(start, end, read)| mapping(start, end, read)).into();
        list.push(mapping(0x6000, 0x7000, true));
        let maps = Mappings { list };
        assert_eq!(maps.readable_end(Addr(0x1800)), Some(Addr(0x4000)));
        assert_eq!(maps.readable_end(Addr(0x4800)), None);
        assert_eq!(maps.readable_end(Addr(0x5000)), None);
        assert_eq!(maps.readable_end(Addr(0x6000)), Some(Addr(0x7000)));
        assert_eq!(maps.readable_end(Addr(0x7000)), None);
    }

    #[test]
    fn an_address_is_found_in_its_mapping_only() {
        let mapping = |start, end| Mapping {
            start: Addr(start),
            end: Addr(end),
            offset: 0,
            readable: true,
            writable: false,
            executable: false,
            path: Some(PathBuf::from("/lib/libx.so")),
            deleted: false,
        };
        let maps = Mappings { list: vec![mapping(0x1000, 0x2000), mapping(0x4000, 0x5000)] };
        assert_eq!(maps.find(Addr(0x1fff)).unwrap().start, Addr(0x1000));
        assert_eq!(maps.find(Addr(0x2000)), None);
        assert_eq!(maps.find(Addr(0x4000)).unwrap().start, Addr(0x4000));
        assert_eq!(maps.find(Addr(0xfff)), None);
    }
}
