//! Reads a core file's headers.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::LittleEndian;
use object::elf::{
    EM_AARCH64, EM_X86_64, ET_CORE, FileHeader64, PF_R, PF_W, PF_X, PN_XNUM, PT_LOAD, PT_NOTE,
    ProgramHeader64, SectionHeader64,
};
use object::pod::{from_bytes, slice_from_all_bytes};
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::{FileType, Mode, OFlags};

use super::CoreError;
use super::notes::MappedFile;

const LE: LittleEndian = LittleEndian;
/// `vm.max_map_count` is 65,530 by default, 2^20 where raised.
const MAX_SEGMENTS: u64 = 1 << 21;

/// First bytes of compressed files, format, unpacking command.
const COMPRESSED: [(&[u8], &str, &str); 4] = [
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d FILE -o core"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d FILE core"),
    (b"\xfd7zXZ\0", "xz", "xz -dc FILE > core"),
    (b"\x1f\x8b", "gzip", "gzip -dc FILE > core"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CoreSegment {
    pub(super) start: u64,
    pub(super) end: u64,
    /// In the file.
    pub(super) offset: u64,
    /// Bytes in the file, from the start.
    pub(super) dumped: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) executable: bool,
}

pub(super) struct CoreHeader {
    /// In address order, without overlaps.
    pub(super) segments: Vec<CoreSegment>,
    /// Offset, bytes and alignment of notes.
    pub(super) notes: Vec<(u64, u64, u64)>,
    /// Bytes that the headers promise but the file lacks.
    pub(super) cut: u64,
    pub(super) is_x86_64: bool,
}

/// Opens only stored files: pipes and devices may never answer.
pub(super) fn open(path: &Path) -> Result<File, CoreError> {
    let io = |source: io::Error| CoreError::Io { path: path.to_owned(), source };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| io(error.into()))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| io(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let why = "it is not a regular file".to_owned();
        return Err(CoreError::NotCore { path: path.to_owned(), why });
    }
    Ok(File::from(file))
}

impl CoreHeader {
    pub(super) fn read(path: &Path, file: &File) -> Result<CoreHeader, CoreError> {
        let io = |source: io::Error| CoreError::Io { path: path.to_owned(), source };
        let not_core = |why: String| CoreError::NotCore { path: path.to_owned(), why };
        let malformed =
            |why: &str| CoreError::Malformed { path: path.to_owned(), why: why.to_owned() };
        let size = (&mut &*file).seek(SeekFrom::End(0)).map_err(io)?;
        let mut bytes = vec![0; size_of::<FileHeader64<LittleEndian>>().min(size as usize)];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        if let Some((_, name, command)) = COMPRESSED.iter().find(|it| bytes.starts_with(it.0)) {
            return Err(not_core(format!(
                "it is compressed ({name}): unpack it first ('{command}', or 'coredumpctl dump PID -o core')"
            )));
        }
        if !bytes.starts_with(b"\x7fELF") {
            return Err(not_core("it does not begin as an ELF file does".to_owned()));
        }
        let header = from_bytes::<FileHeader64<LittleEndian>>(&bytes).map(|(header, _)| header);
        let header = header.map_err(|()| malformed("it ends within its first header"))?;
        if !header.is_class_64() || !header.is_little_endian() {
            return Err(not_core("it is not of a 64-bit little-endian machine".to_owned()));
        }
        if header.e_type.get(LE) != ET_CORE {
            return Err(not_core("it is a program or a library".to_owned()));
        }
        if ![EM_X86_64, EM_AARCH64].contains(&header.e_machine.get(LE)) {
            return Err(not_core("it is neither of an x86-64 nor of an ARM64 machine".to_owned()));
        }
        let is_x86_64 = header.e_machine.get(LE) == EM_X86_64;
        let mut count = u64::from(header.e_phnum.get(LE));
        if count == u64::from(PN_XNUM) {
            count = section_info(file, header.e_shoff.get(LE))
                .ok_or_else(|| malformed("the number of its segments is missing"))?;
        }
        let entry = size_of::<ProgramHeader64<LittleEndian>>() as u64;
        if u64::from(header.e_phentsize.get(LE)) != entry || count == 0 || count > MAX_SEGMENTS {
            return Err(malformed("the table of its segments is damaged"));
        }
        let at = header.e_phoff.get(LE);
        if at.checked_add(count * entry).is_none_or(|end| end > size) {
            return Err(malformed("it is cut within the table of its segments"));
        }
        let mut bytes = vec![0; (count * entry) as usize];
        file.read_exact_at(&mut bytes, at).map_err(io)?;
        let headers: &[ProgramHeader64<LittleEndian>] =
            slice_from_all_bytes(&bytes).map_err(|()| malformed("its segments cannot be read"))?;
        let notes = headers.iter().filter(|it| it.p_type(LE) == PT_NOTE);
        let notes = notes.map(|it| (it.p_offset(LE), it.p_filesz(LE), it.p_align(LE))).collect();
        let (segments, cut) = segments(headers, size);
        Ok(CoreHeader { segments, notes, cut, is_x86_64 })
    }
}

/// `sh_info` of the first section: the number of segments if the header has no room for it.
fn section_info(file: &File, at: u64) -> Option<u64> {
    let mut bytes = [0; size_of::<SectionHeader64<LittleEndian>>()];
    file.read_exact_at(&mut bytes, at).ok()?;
    let (section, _) = from_bytes::<SectionHeader64<LittleEndian>>(&bytes).ok()?;
    Some(u64::from(section.sh_info.get(LE)))
}

/// Also counts the bytes missing from a file of `size` bytes.
fn segments(headers: &[ProgramHeader64<LittleEndian>], size: u64) -> (Vec<CoreSegment>, u64) {
    let mut cut = 0_u64;
    let mut segments = Vec::new();
    for header in headers.iter().filter(|header| header.p_type(LE) == PT_LOAD) {
        let (start, offset) = (header.p_vaddr(LE), header.p_offset(LE));
        let Some(end) = start.checked_add(header.p_memsz(LE)) else { continue };
        let promised = header.p_filesz(LE).min(end - start);
        let dumped = promised.min(size.saturating_sub(offset));
        cut = cut.saturating_add(promised - dumped);
        let flags = header.p_flags(LE);
        if start < end {
            segments.push(CoreSegment {
                start,
                end,
                offset,
                dumped,
                readable: flags.contains(PF_R),
                writable: flags.contains(PF_W),
                executable: flags.contains(PF_X),
            });
        }
    }
    sort(&mut segments);
    (segments, cut)
}

/// gdb's `gcore` leaves out mapped files that it does not dump. Their permissions are unknown; what
/// is not writable counts as code.
pub(super) fn add_files(segments: &mut Vec<CoreSegment>, files: &[MappedFile]) {
    let mut added = Vec::new();
    for file in files {
        let mut start = file.start;
        let first = segments.partition_point(|segment| segment.end <= start);
        let over = segments[first..].iter().take_while(|segment| segment.start < file.end);
        let ends = over.map(|segment| (segment.start, segment.end));
        for (from, to) in ends.chain([(file.end, file.end)]) {
            if start < from {
                added.push(CoreSegment {
                    start,
                    end: from,
                    offset: 0,
                    dumped: 0,
                    readable: true,
                    writable: false,
                    executable: true,
                });
            }
            start = start.max(to);
        }
    }
    segments.extend(added);
    sort(segments);
}

/// Keeps the first of overlapping segments, which no kernel writes.
fn sort(segments: &mut Vec<CoreSegment>) {
    segments.sort_by_key(|segment| (segment.start, segment.end));
    let mut last = 0;
    segments.retain(|segment| {
        let is_free = segment.start >= last;
        if is_free {
            last = segment.end;
        }
        is_free
    });
}
