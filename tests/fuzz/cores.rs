//! Core files, damaged and forged: their headers, notes and memory, and the stacks that are unwound
//! out of them.

use std::fs;
use std::path::Path;

use memspy::native::{Unwinder, copy_stacks};
use memspy::target::{Addr, CoreError, Memory, Process};

use super::campaign::{self, Random};
use super::edits::edit_bytes;
use crate::support::core_file::{CoreBuilder, Segment};

/// Sizes of the file's header and of a program header.
const HEADER: usize = 64;
const ENTRY: usize = 56;
/// Offsets of the 8-byte numbers of a program header: offset, address, size in the file, size in
/// memory, alignment.
const FIELDS: [usize; 5] = [8, 16, 32, 40, 48];
/// The most threads and mapped pieces that a reader may make of a file of so many bytes.
const MIN_THREAD: usize = 40;

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A small core file with all that memspy reads: threads, process, files on the disk and lost ones,
/// a stack with arguments.
fn sound(folder: &Path) -> Vec<u8> {
    let mut core = CoreBuilder::default();
    let vector = words(&[3, 0x40_0040, 6, 4096, 25, 0x7000_0800, 33, 1, 9, 0x40_1000, 0, 0]);
    let mut registers = [0; 27];
    (registers[16], registers[19]) = (0x40_1000, 0x7000_0100);
    for thread in 77..81 {
        core.thread(thread, if thread == 77 { 6 } else { 0 }, &registers);
    }
    core.process(77, "python", "python x.py");
    core.auxiliary_vector(&vector);
    let library = folder.join("library.so");
    let mut page = b"\x7fELF\x02\x01\x01".to_vec();
    page.resize(4096, 0);
    fs::write(&library, [page.clone(), vec![7; 8192]].concat()).unwrap();
    let library = library.to_str().unwrap().to_owned();
    core.files(&[
        (0x40_0000, 0x40_1000, 0, library.clone()),
        (0x40_1000, 0x40_3000, 4096, library),
        (0x50_0000, 0x50_1000, 4096, "/gone (deleted)".into()),
    ]);
    core.segments.push(Segment { start: 0x40_0000, end: 0x40_3000, flags: 5, bytes: page });
    let bytes = vec![1; 4096];
    core.segments.push(Segment { start: 0x50_0000, end: 0x50_1000, flags: 6, bytes });
    let mut stack = vec![0; 8192];
    stack[4096..4112].copy_from_slice(b"arg0\0arg1\0A=one\0");
    let start = [2, 0x7000_1000, 0x7000_1005, 0, 0x7000_100a, 0];
    stack[0x400..0x430].copy_from_slice(&words(&start));
    stack[0x430..0x430 + vector.len()].copy_from_slice(&vector);
    core.segments.push(Segment { start: 0x7000_0000, end: 0x7000_2000, flags: 6, bytes: stack });
    let path = folder.join("sound");
    core.write(&path);
    fs::read(path).unwrap()
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |it| u64::from_le_bytes(it.try_into().unwrap()))
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (byte, new) in bytes.iter_mut().skip(at).zip(new) {
        *byte = *new;
    }
}

/// Another number: of a mistake, of the last addresses, of another field, or nearly the same.
fn forged(old: u64, other: u64, random: &mut Random) -> u64 {
    match random.below(6) {
        0 => random.edge(),
        1 => u64::MAX - random.word() % 9000,
        2 => other,
        3 => other.wrapping_add(random.word() % 8193).wrapping_sub(4096),
        4 => old.wrapping_mul(random.word() % 5000),
        _ => old.wrapping_add(random.word() % 17).wrapping_sub(8),
    }
}

/// Edits the core file of which `sound` is a copy.
fn edited(sound: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    let headers = usize::from(u16::from_le_bytes([sound[56], sound[57]]));
    let (notes, notes_len) =
        (number(sound, HEADER + 8) as usize, number(sound, HEADER + 32) as usize);
    for _ in 0..random.few(8) {
        let entry = HEADER + ENTRY * random.below(headers);
        let field = entry + *random.pick(&FIELDS);
        let other = HEADER + ENTRY * random.below(headers) + *random.pick(&FIELDS);
        match random.below(12) {
            0..=3 => {
                let new = forged(number(&bytes, field), number(&bytes, other), random);
                put(&mut bytes, field, &new.to_le_bytes());
            }
            // Segments that lie over each other.
            4 => {
                let from = HEADER + ENTRY * random.below(headers);
                let copy = bytes.get(from..from + ENTRY).unwrap_or_default().to_vec();
                put(&mut bytes, entry, &copy);
            }
            // The kind and the rights.
            5 => put(&mut bytes, entry, &[random.below(8) as u8, 0, 0, 0, random.below(8) as u8]),
            6 => {
                let at = random.below(HEADER);
                put(&mut bytes, at, &random.edge().to_le_bytes()[..*random.pick(&[1, 2, 4, 8])]);
            }
            // Numbers in the notes: sizes of names and contents, counts of files, addresses.
            7 | 8 => {
                let at = notes + 4 * random.below(notes_len / 4);
                let near = notes + 4 * random.below(notes_len / 4);
                let new = forged(number(&bytes, at), number(&bytes, near), random).to_le_bytes();
                put(&mut bytes, at, &new[..*random.pick(&[4, 8])]);
            }
            // The same notes many times: thousands of threads, many lists of files.
            9 => {
                let copy = bytes.get(notes..notes + notes_len).unwrap_or_default().to_vec();
                let many = copy.repeat(random.few(1000));
                let end = bytes.len() as u64;
                put(&mut bytes, HEADER + 8, &end.to_le_bytes());
                put(&mut bytes, HEADER + 32, &(many.len() as u64).to_le_bytes());
                bytes.extend(many);
            }
            10 => edit_bytes(&mut bytes, random),
            _ => bytes.truncate(random.below(bytes.len() + 1)),
        }
    }
    bytes
}

/// All that is read of a core file; what must hold for whatever stands in it.
fn read(path: &Path, bytes: usize, random: &mut Random) -> Result<(), String> {
    let process = match Process::open_core(path) {
        Ok(process) => process,
        Err(
            error
            @ (CoreError::Io { .. } | CoreError::NotCore { .. } | CoreError::Malformed { .. }),
        ) => {
            let said = error.to_string();
            let is_line = said.lines().count() == 1 && said.len() < 1000;
            return if is_line { Ok(()) } else { Err(format!("no line: {said}")) };
        }
    };
    let memory = process.memory();
    let _ = (process.command(), process.program(), process.environment("A"), process.owner());
    let threads = process.threads().map_err(|error| error.to_string())?;
    if threads.is_empty() || threads.len() > bytes / MIN_THREAD {
        return Err(format!("{} threads in {bytes} bytes", threads.len()));
    }
    let mappings = process.mappings().map_err(|error| error.to_string())?;
    let mut last = Addr(0);
    for mapping in mappings.iter() {
        if mapping.start < last || mapping.end <= mapping.start {
            return Err(format!("mappings lie over each other at {}", mapping.start));
        }
        last = mapping.end;
    }
    for mapping in mappings.iter().take(50) {
        let mut out = [0; 64];
        let inside = random.word() % (mapping.end.0 - mapping.start.0);
        for at in [mapping.start.0, mapping.start.0 + inside, mapping.end.0 - 1] {
            let _ = memory.read(Addr(at), &mut out);
        }
        let _ = process.open_mapped(mapping);
    }
    let _ = memory.read(Addr(u64::MAX - 3), &mut [0; 8]);
    let registers = process.core_registers();
    let mut unwinder = Unwinder::new(&process, &memory, &mappings);
    for stack in unwinder.unwind(&copy_stacks(&memory, &mappings, registers)).iter().take(50) {
        if stack.frames.is_empty() || stack.frames.len() > 8192 {
            return Err(format!("{} frames", stack.frames.len()));
        }
    }
    let origin = process.core_origin().ok_or("it is no core file any more")?;
    if origin.missing.len() > 10 {
        return Err(format!("{} sentences of what is missing", origin.missing.len()));
    }
    Ok(())
}

#[test]
fn damaged_core_files_are_errors_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let sound = sound(folder.path());
    let path = folder.path().join("core");
    campaign::run("cores", 300, &mut |random: &mut Random| {
        let bytes = edited(&sound, random);
        fs::write(&path, &bytes).unwrap();
        read(&path, bytes.len(), random)?;
        Ok(32 * bytes.len())
    });
}

/// Of files over each other, each was cut into pieces by all segments: 16 million pieces, 900 MB,
/// of a core file of half a MB.
#[test]
fn mapped_files_over_each_other_were_each_cut_by_all_segments() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("core");
    let mut core = CoreBuilder::default();
    core.thread(1, 0, &[0; 27]);
    let count = 4000;
    let files: Vec<_> = (0..count).map(|n| (n, 1 << 40, 0, "/x".to_owned())).collect();
    core.files(&files);
    core.segments = (1..=count)
        .map(|n| Segment { start: n << 13, end: (n << 13) + 4096, flags: 4, bytes: Vec::new() })
        .collect();
    core.write(&path);
    campaign::once("files-over-each-other", &mut || {
        let process = Process::open_core(&path).map_err(|error| error.to_string())?;
        let mappings = process.mappings().map_err(|error| error.to_string())?;
        // The first file counts: before, between and behind the segments.
        match mappings.iter().count() {
            8001 => Ok(0),
            other => Err(format!("{other} mappings")),
        }
    });
}
