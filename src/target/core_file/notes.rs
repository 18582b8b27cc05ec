//! Process, threads and mapped files in a core file (Linux, fs/binfmt_elf.c).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::LittleEndian;
use object::elf::{FileHeader64, NT_AUXV, NT_PRPSINFO, NT_PRSTATUS, NoteType};
use object::read::elf::NoteIterator;

use super::super::memory::Addr;
use super::{CoreError, CoreThread};

const LE: LittleEndian = LittleEndian;
/// `NT_FILE` of <linux/elf.h>.
const NT_FILE: NoteType = NoteType(0x4649_4c45);
/// Enough for 65,536 threads and mapped files.
const MAX_NOTES: u64 = 256 << 20;
/// Above `/proc/sys/kernel/threads-max`.
const MAX_THREADS: usize = 1 << 17;
/// <linux/auxvec.h>: address of the program headers.
const AT_PHDR: u64 = 3;

/// Offsets in `struct elf_prstatus` and `struct elf_prpsinfo` (64 bit: x86-64 and ARM64).
const STATUS_SIGNAL: usize = 12;
const STATUS_PID: usize = 32;
const STATUS_REGISTERS: usize = 112;
/// `struct user_regs_struct`: 27 on x86-64, 34 on ARM64.
const MAX_REGISTERS: usize = 34;
const INFO_USER: usize = 16;
const INFO_PID: usize = 24;
const INFO_NAME: usize = 40;
const INFO_ARGUMENTS: usize = 56;
const NAME_LEN: usize = 16;
const ARGUMENTS_LEN: usize = 80;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappedFile {
    pub(super) start: u64,
    pub(super) end: u64,
    /// In the file, in bytes.
    pub(super) offset: u64,
    pub(super) path: String,
}

#[derive(Debug, Default)]
pub(super) struct CoreNotes {
    pub(super) pid: u32,
    pub(super) user: Option<u32>,
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) threads: Vec<CoreThread>,
    /// In address order.
    pub(super) files: Vec<MappedFile>,
    pub(super) auxiliary_vector: Vec<u8>,
}

impl CoreNotes {
    /// `places`: offset, bytes, alignment.
    pub(super) fn read(
        path: &Path,
        file: &File,
        places: &[(u64, u64, u64)],
    ) -> Result<CoreNotes, CoreError> {
        let malformed =
            |why: &str| CoreError::Malformed { path: path.to_owned(), why: why.to_owned() };
        let mut notes = CoreNotes::default();
        let mut has_process = false;
        let mut left = MAX_NOTES;
        let there = file.metadata().map(|it| it.len()).unwrap_or(0);
        for (offset, bytes, align) in places {
            if offset.checked_add(*bytes).is_none_or(|end| end > there) || *bytes > left {
                return Err(malformed("its notes lie outside of the file: it is cut or damaged"));
            }
            left -= bytes;
            let mut content = vec![0; *bytes as usize];
            file.read_exact_at(&mut content, *offset)
                .map_err(|source| CoreError::Io { path: path.to_owned(), source })?;
            let list = NoteIterator::<FileHeader64<LittleEndian>>::new(LE, *align, &content);
            let Ok(list) = list else { return Err(malformed("its notes are not aligned")) };
            // Notes after a damaged one cannot be found.
            for note in list.map_while(Result::ok) {
                if !note.name().starts_with(b"CORE") {
                    continue;
                }
                match note.n_type(LE) {
                    NT_PRSTATUS if notes.threads.len() < MAX_THREADS => {
                        notes.threads.extend(thread(note.desc()));
                    }
                    NT_PRPSINFO => has_process |= notes.add_process(note.desc()),
                    NT_AUXV => notes.auxiliary_vector = note.desc().to_vec(),
                    NT_FILE => notes.files = mapped_files(note.desc()),
                    _ => {}
                }
            }
        }
        match (has_process, notes.threads.first()) {
            (_, None) => Err(malformed("it has no thread")),
            (true, _) => Ok(notes),
            (false, Some(first)) => Ok(CoreNotes { pid: first.id, ..notes }),
        }
    }

    pub(super) fn program_headers(&self) -> Option<Addr> {
        let mut entries = self.auxiliary_vector.chunks_exact(16);
        entries.find_map(|entry| {
            let is_it = number(entry, 0)? == AT_PHDR;
            is_it.then(|| number(entry, 8).map(Addr))?
        })
    }

    fn add_process(&mut self, info: &[u8]) -> bool {
        let (Some(pid), Some(user)) = (half(info, INFO_PID), half(info, INFO_USER)) else {
            return false;
        };
        (self.pid, self.user) = (pid, Some(user));
        self.name = text(info, INFO_NAME, NAME_LEN);
        self.arguments = text(info, INFO_ARGUMENTS, ARGUMENTS_LEN);
        true
    }
}

fn thread(status: &[u8]) -> Option<CoreThread> {
    let signal = status.get(STATUS_SIGNAL..STATUS_SIGNAL + 2)?;
    let registers = (0..MAX_REGISTERS).map_while(|n| number(status, STATUS_REGISTERS + 8 * n));
    // After the registers come a word, `pr_fpvalid`, and padding.
    let mut registers: Vec<u64> = registers.collect();
    registers.pop();
    Some(CoreThread {
        id: half(status, STATUS_PID)?,
        signal: u16::from_le_bytes(signal.try_into().ok()?),
        registers,
    })
}

/// `NT_FILE`: count, page size; start, end and page offset of each; names.
fn mapped_files(note: &[u8]) -> Vec<MappedFile> {
    let (Some(count), Some(page)) = (number(note, 0), number(note, 8)) else { return Vec::new() };
    let (count, entries) = (count as usize, note.get(16..).unwrap_or_default());
    let Some((entries, names)) =
        count.checked_mul(24).and_then(|len| entries.split_at_checked(len))
    else {
        return Vec::new();
    };
    let names = names.split(|byte| *byte == 0);
    let mut files: Vec<MappedFile> = entries
        .chunks_exact(24)
        .zip(names)
        .filter_map(|(entry, name)| {
            Some(MappedFile {
                start: number(entry, 0)?,
                end: number(entry, 8)?,
                offset: number(entry, 16)?.checked_mul(page)?,
                path: String::from_utf8_lossy(name).into_owned(),
            })
        })
        .collect();
    files.sort_by_key(|file| (file.start, file.end));
    // No kernel writes overlapping files: keep the first.
    let mut last = 0;
    files.retain(|file| {
        let is_free = file.start >= last && file.start < file.end;
        if is_free {
            last = file.end;
        }
        is_free
    });
    files
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|it| u64::from_le_bytes(*it))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|it| u32::from_le_bytes(*it))
}

fn text(bytes: &[u8], at: usize, len: usize) -> String {
    let all = bytes.get(at..).unwrap_or_default();
    let all = &all[..len.min(all.len())];
    let end = all.iter().position(|byte| *byte == 0).unwrap_or(all.len());
    String::from_utf8_lossy(&all[..end]).trim().to_owned()
}
