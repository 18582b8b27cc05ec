//! Core files as the kernel writes them: built piece by piece, or from a process like `gcore`.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

const PAGE: u64 = 4096;
const NT_PRSTATUS: u32 = 1;
const NT_PRPSINFO: u32 = 3;
const NT_AUXV: u32 = 6;
const NT_FILE: u32 = 0x4649_4c45;

/// A memory segment of a core file.
pub struct Segment {
    pub start: u64,
    pub end: u64,
    /// `PF_X` 1, `PF_W` 2, `PF_R` 4.
    pub flags: u32,
    /// The first, dumped bytes; the rest is left out.
    pub bytes: Vec<u8>,
}

/// A core file under construction.
#[derive(Default)]
pub struct CoreBuilder {
    pub segments: Vec<Segment>,
    notes: Vec<u8>,
}

impl CoreBuilder {
    fn note(&mut self, kind: u32, content: &[u8]) {
        let head = [5, content.len() as u32, kind];
        self.notes.extend(head.iter().flat_map(|word| word.to_le_bytes()));
        self.notes.extend(b"CORE\0\0\0\0");
        self.notes.extend(content);
        self.notes.resize(self.notes.len().next_multiple_of(4), 0);
    }

    /// A thread that received `signal`, with the 27 registers of `struct user_regs_struct`.
    pub fn thread(&mut self, id: u32, signal: u16, registers: &[u64; 27]) {
        let mut status = vec![0; 112];
        status[12..14].copy_from_slice(&signal.to_le_bytes());
        status[32..36].copy_from_slice(&id.to_le_bytes());
        status.extend(registers.iter().flat_map(|register| register.to_le_bytes()));
        status.extend([0; 8]);
        self.note(NT_PRSTATUS, &status);
    }

    pub fn process(&mut self, pid: u32, name: &str, arguments: &str) {
        let mut info = vec![0; 136];
        info[24..28].copy_from_slice(&pid.to_le_bytes());
        info[40..40 + name.len()].copy_from_slice(name.as_bytes());
        info[56..56 + arguments.len()].copy_from_slice(arguments.as_bytes());
        self.note(NT_PRPSINFO, &info);
    }

    pub fn auxiliary_vector(&mut self, vector: &[u8]) {
        self.note(NT_AUXV, vector);
    }

    /// The mapped files: start, end, offset in bytes, path.
    pub fn files(&mut self, files: &[(u64, u64, u64, String)]) {
        let mut note: Vec<u8> =
            [files.len() as u64, PAGE].iter().flat_map(|word| word.to_le_bytes()).collect();
        for (start, end, offset, _) in files {
            note.extend([*start, *end, offset / PAGE].iter().flat_map(|word| word.to_le_bytes()));
        }
        for (.., path) in files {
            note.extend(path.as_bytes());
            note.push(0);
        }
        self.note(NT_FILE, &note);
    }

    /// Writes the file. Pages of zeros become holes, as the kernel leaves them.
    pub fn write(&self, path: &Path) {
        let mut file = File::create(path).unwrap();
        let count = self.segments.len() as u16 + 1;
        let mut head = b"\x7fELF\x02\x01\x01".to_vec();
        head.resize(16, 0);
        head.extend([4, 0, 62, 0, 1, 0, 0, 0]); // ET_CORE, EM_X86_64
        head.extend([0, 64, 0].iter().flat_map(|word: &u64| word.to_le_bytes()));
        head.extend([0; 4]);
        head.extend([64, 56, count, 0, 0, 0].iter().flat_map(|it: &u16| it.to_le_bytes()));
        let mut offset = (64 + 56 * u64::from(count)).next_multiple_of(4);
        let mut header = |kind: u32, flags: u32, at: u64, start: u64, size: u64, all: u64| {
            head.extend([kind, flags].iter().flat_map(|word| word.to_le_bytes()));
            let words = [at, start, 0, size, all, if kind == 4 { 4 } else { PAGE }];
            head.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        };
        let notes_at = offset;
        header(4, 0, notes_at, 0, self.notes.len() as u64, 0);
        offset = (offset + self.notes.len() as u64).next_multiple_of(PAGE);
        let mut places = Vec::new();
        for Segment { start, end, flags, bytes } in &self.segments {
            header(1, *flags, offset, *start, bytes.len() as u64, end - start);
            places.push(offset);
            offset += (bytes.len() as u64).next_multiple_of(PAGE);
        }
        file.write_all(&head).unwrap();
        file.write_all_at(&self.notes, notes_at).unwrap();
        for (segment, at) in self.segments.iter().zip(places) {
            for (page, number) in segment.bytes.chunks(PAGE as usize).zip(0..) {
                if page.iter().any(|byte| *byte != 0) {
                    file.write_all_at(page, at + number * PAGE).unwrap();
                }
            }
        }
        file.set_len(offset).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
    }
}

/// Writes a core file of the stopped process `pid` by the kernel's default rules (`coredump_filter`
/// 0x33): changed pages, and the first page of mapped ELF files.
pub fn write_core_of(pid: u32, path: &Path) {
    let mut core = CoreBuilder::default();
    let proc = |name: &str| format!("/proc/{pid}/{name}");
    let name = std::fs::read_to_string(proc("comm")).unwrap();
    let arguments = String::from_utf8_lossy(&std::fs::read(proc("cmdline")).unwrap()).into_owned();
    let arguments = arguments.replace('\0', " ");
    let threads: Vec<Pid> = std::fs::read_dir(proc("task"))
        .unwrap()
        .map(|task| Pid::from_raw(task.unwrap().file_name().to_str().unwrap().parse().unwrap()))
        .collect();
    for thread in &threads {
        ptrace::attach(*thread).unwrap();
        waitpid(*thread, Some(WaitPidFlag::__WALL)).unwrap();
        let registers = ptrace::getregs(*thread).unwrap();
        let registers = [
            registers.r15,
            registers.r14,
            registers.r13,
            registers.r12,
            registers.rbp,
            registers.rbx,
            registers.r11,
            registers.r10,
            registers.r9,
            registers.r8,
            registers.rax,
            registers.rcx,
            registers.rdx,
            registers.rsi,
            registers.rdi,
            registers.orig_rax,
            registers.rip,
            registers.cs,
            registers.eflags,
            registers.rsp,
            registers.ss,
            registers.fs_base,
            registers.gs_base,
            registers.ds,
            registers.es,
            registers.fs,
            registers.gs,
        ];
        core.thread(thread.as_raw() as u32, 0, &registers);
        if thread.as_raw() as u32 == pid {
            core.process(pid, name.trim(), &arguments.chars().take(79).collect::<String>());
            core.auxiliary_vector(&std::fs::read(proc("auxv")).unwrap());
        }
    }
    let memory = File::open(proc("mem")).unwrap();
    let mut files = Vec::new();
    for mapping in smaps(&std::fs::read_to_string(proc("smaps")).unwrap()) {
        let (start, end) = (mapping.start, mapping.end);
        if mapping.path.starts_with('/') {
            files.push((start, end, mapping.offset, mapping.path.clone()));
        }
        let whole = (end - start) as usize;
        let is_file = mapping.path.starts_with('/');
        let len = match mapping.flags & 4 != 0 {
            true if !is_file || mapping.is_changed => whole,
            true if mapping.offset == 0 => PAGE as usize,
            _ => 0,
        };
        let mut bytes = vec![0; len];
        if len > 0 && memory.read_exact_at(&mut bytes, start).is_err() {
            bytes.clear(); // The kernel's own pages (`[vvar]`).
        }
        if is_file && !mapping.is_changed && !bytes.starts_with(b"\x7fELF") {
            bytes.clear();
        }
        // gdb omits files if it dumps nothing of them.
        if !bytes.is_empty() || !is_file {
            core.segments.push(Segment { start, end, flags: mapping.flags, bytes });
        }
    }
    core.files(&files);
    for thread in threads {
        ptrace::detach(thread, None).unwrap();
    }
    core.write(path);
}

struct SmapsEntry {
    start: u64,
    end: u64,
    flags: u32,
    offset: u64,
    path: String,
    /// Whether it has private pages.
    is_changed: bool,
}

fn smaps(text: &str) -> Vec<SmapsEntry> {
    let mut list: Vec<SmapsEntry> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let Some((start, end)) = words[0].split_once('-') {
            let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
            let rights = words[1].as_bytes();
            let flag = |at: usize, value: u32| if rights[at] == b'-' { 0 } else { value };
            list.push(SmapsEntry {
                start: number(start),
                end: number(end),
                flags: flag(0, 4) | flag(1, 2) | flag(2, 1),
                offset: number(words[2]),
                path: words.get(5..).unwrap_or_default().join(" "),
                is_changed: false,
            });
        } else if words[0] == "Anonymous:" && words[1] != "0" {
            list.last_mut().unwrap().is_changed = true;
        }
    }
    list
}
