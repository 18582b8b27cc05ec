//! The target's memory mappings and their files.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::memory::Addr;
use super::proc_files::{self, MAX_MAPPINGS};
use super::process::ProcessError;

/// A line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: Addr,
    /// First address after it.
    pub end: Addr,
    /// In the file, in bytes.
    pub offset: u64,
    /// Readable.
    pub readable: bool,
    /// Writable.
    pub writable: bool,
    /// Executable.
    pub executable: bool,
    /// In the target's mount namespace, without ` (deleted)`.
    pub path: Option<PathBuf>,
    /// The file was deleted or replaced since.
    pub deleted: bool,
}

impl Mapping {
    /// Such as `7f0000001000-7f0000002000 r-xp 00001000 fd:01 123   /lib/libx.so (deleted)`.
    fn parse(line: &[u8]) -> Option<Mapping> {
        // Five fields with a blank between, blanks, the name (perhaps with blanks).
        let mut fields = line.splitn(6, |&byte| byte == b' ');
        let mut text = || str::from_utf8(fields.next()?).ok();
        let (start, end) = text()?.split_once('-')?;
        let may = text()?.as_bytes();
        let offset = text()?;
        let (_device, _inode) = (text()?, text()?);
        let hex = |digits| u64::from_str_radix(digits, 16).ok();
        let name = fields.next().unwrap_or_default().trim_ascii_start();
        // `[heap]` and System V's shared memory are no files.
        let is_file = !name.is_empty() && !name.starts_with(b"[") && !name.starts_with(b"/SYSV");
        let kept = name.strip_suffix(b" (deleted)");
        Some(Mapping {
            start: Addr(hex(start)?),
            end: Addr(hex(end)?),
            offset: hex(offset)?,
            readable: may.first() == Some(&b'r'),
            writable: may.get(1) == Some(&b'w'),
            executable: may.get(2) == Some(&b'x'),
            path: is_file.then(|| PathBuf::from(OsStr::from_bytes(kept.unwrap_or(name)))),
            deleted: is_file && kept.is_some(),
        })
    }

    /// Whether `addr` is in it.
    pub fn contains(&self, addr: Addr) -> bool {
        (self.start..self.end).contains(&addr)
    }

    /// Last part of its path.
    pub fn file_name(&self) -> Option<&str> {
        self.path.as_deref()?.file_name()?.to_str()
    }
}

/// All mappings at one moment, in address order.
#[derive(Debug, Clone, Default)]
pub struct Mappings {
    list: Vec<Mapping>,
}

impl Mappings {
    pub(crate) fn from_list(list: Vec<Mapping>) -> Self {
        Mappings { list }
    }

    pub(super) fn read(pid: u32) -> Result<Self, ProcessError> {
        let mut list = Vec::new();
        let mut is_read = true;
        let mut take = |line: &[u8]| {
            match Mapping::parse(line) {
                Some(mapping) => list.push(mapping),
                None => is_read = false,
            }
            is_read
        };
        let read = proc_files::each_line(pid, "maps", MAX_MAPPINGS, &mut take);
        let read = read.and_then(|()| match is_read {
            true => Ok(()),
            false => Err(io::Error::other("a line of them has an unknown form")),
        });
        read.map_err(|error| ProcessError::from_io("read the mappings of", pid, error))?;
        Ok(Mappings { list })
    }

    /// In address order.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.list.iter()
    }

    /// The one that contains `addr`.
    pub fn find(&self, addr: Addr) -> Option<&Mapping> {
        let next = self.list.partition_point(|m| m.start <= addr);
        self.list[..next].last().filter(|m| m.contains(addr))
    }

    /// The first unreadable address after `addr`; `None`: `addr` itself.
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

    /// The mapping with the ELF header of the first matching file.
    pub fn object(&self, mut wanted: impl FnMut(&str) -> bool) -> Option<&Mapping> {
        self.loaded(|m| m.file_name().is_some_and(&mut wanted))
    }

    /// The mapping with the start of the file `path`.
    pub fn object_at(&self, path: &Path) -> Option<&Mapping> {
        self.loaded(|m| m.path.as_deref() == Some(path))
    }

    /// A program may also map a loaded library for reading; only the loaded one has its variables.
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

/// Attaching asks often; many mappings take long to read.
#[derive(Debug, Default)]
pub(super) struct MappingsCache(Mutex<Option<CachedMappings>>);

#[derive(Debug)]
struct CachedMappings {
    until: Instant,
    mappings: Arc<Mappings>,
}

impl MappingsCache {
    /// They stay current for this many times the read's duration (usually some ms).
    const TIMES: u32 = 10;
    const LONGEST: Duration = Duration::from_secs(2);

    pub(super) fn get<E>(
        &self,
        read: impl FnOnce() -> Result<Mappings, E>,
    ) -> Result<Arc<Mappings>, E> {
        let mut last = self.0.lock();
        let began = Instant::now();
        if let Some(known) = last.as_ref().filter(|known| began < known.until) {
            return Ok(Arc::clone(&known.mappings));
        }
        let mappings = Arc::new(read()?);
        let now = Instant::now();
        let fresh = ((now - began) * MappingsCache::TIMES).min(MappingsCache::LONGEST);
        *last = Some(CachedMappings { until: now + fresh, mappings: Arc::clone(&mappings) });
        Ok(mappings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_mappings_are_cached_and_fast_ones_are_not() {
        let last = MappingsCache::default();
        let mut reads = 0;
        let mut get = |time: Duration| {
            let read = || {
                reads += 1;
                std::thread::sleep(time);
                Ok::<_, ()>(Mappings::default())
            };
            let mappings = last.get(read).unwrap();
            (reads, mappings)
        };
        let (_, first) = get(Duration::from_millis(200));
        for _ in 0..10 {
            let (reads, again) = get(Duration::ZERO);
            assert!(reads == 1 && Arc::ptr_eq(&first, &again));
        }
        std::thread::sleep(Duration::from_millis(2001));
        assert_eq!(get(Duration::ZERO).0, 2);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(get(Duration::ZERO).0, 3);
        assert_eq!(MappingsCache::default().get(|| Err(7)).unwrap_err(), 7);
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let parse = |line: &str| Mapping::parse(line.as_bytes());
        let line = "7f0000001000-7f0000003000 r-xp 00001000 fd:01 123                        /a b (deleted)";
        let mapping = parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (Addr(0x7f00_0000_1000), Addr(0x7f00_0000_3000)));
        assert_eq!(mapping.offset, 0x1000);
        assert_eq!((mapping.readable, mapping.writable, mapping.executable), (true, false, true));
        assert_eq!((mapping.path, mapping.deleted), (Some(PathBuf::from("/a b")), true));
        for named in ["", "[heap]", "/SYSV00000000 (deleted)"] {
            let line = format!("1000-2000 rw-s 00000000 00:00 0                    {named}");
            let mapping = parse(&line).unwrap();
            assert_eq!((mapping.path, mapping.deleted, mapping.writable), (None, false, true));
        }
        let odd = Mapping::parse(b"1000-2000 r--p 00000000 00:01 7    /a\xff.so").unwrap();
        assert_eq!(odd.path.unwrap().as_os_str().as_bytes(), b"/a\xff.so");
        assert_eq!(parse("1000 r--p 0 0 0"), None);
    }

    #[test]
    fn a_loaded_library_is_preferred_to_its_mapped_file() {
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
    fn readable_memory_ends_at_a_gap_or_unreadable_mapping() {
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
