//! Programs and libraries, damaged: the readers of ELF files, of marks for probes, and of what is
//! loaded of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use memspy::target::{Addr, LoadedObject, Memory, MemoryImage, Process, usdt};

use super::campaign::{self, Random};
use super::edits::edit_bytes;

/// PyTorch's library with marks for probes, in the environment that scripts/setup.sh env made.
fn library() -> PathBuf {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/envs/torch-2.11/lib");
    let pythons = fs::read_dir(&environment)
        .unwrap_or_else(|_| panic!("{}: run scripts/setup.sh env first", environment.display()));
    let library = |python: PathBuf| python.join("site-packages/torch/lib/libc10_cuda.so");
    pythons.map(|python| library(python.unwrap().path())).find(|path| path.exists()).unwrap()
}

/// Places where the numbers that lead to others are: headers, notes, and the start and end of the
/// file.
fn edit_file(bytes: &mut [u8], sections: &[(usize, usize)], random: &mut Random) {
    for _ in 0..random.few(12) {
        let (start, len) = *random.pick(sections);
        let at = start + random.below(len);
        let width = *random.pick(&[1, 2, 4, 8]);
        let word = random.edge().to_le_bytes();
        for (byte, new) in bytes[at..].iter_mut().zip(&word[..width]) {
            *byte = *new;
        }
    }
}

fn word(bytes: &[u8], at: usize, width: usize) -> usize {
    let mut word = [0; 8];
    word[..width].copy_from_slice(&bytes[at..at + width]);
    u64::from_le_bytes(word) as usize
}

/// Where the file's header, its tables of segments and sections, and its small sections are: start
/// and length.
fn numbers(bytes: &[u8]) -> Vec<(usize, usize)> {
    let (segments, sections) = (word(bytes, 32, 8), word(bytes, 40, 8));
    let (segment_count, section_count) = (word(bytes, 56, 2), word(bytes, 60, 2));
    let mut found = vec![(0, 64), (segments, 56 * segment_count), (sections, 64 * section_count)];
    for section in (0..section_count).map(|n| sections + 64 * n) {
        let (kind, at, len) = (
            word(bytes, section + 4, 4),
            word(bytes, section + 24, 8),
            word(bytes, section + 32, 8),
        );
        // Notes, dynamic section, hash tables, dynamic symbols and names.
        if [3, 5, 6, 7, 11, 0x6FFF_FFF6].contains(&kind) && len > 0 {
            found.push((at, len));
        }
    }
    found
}

#[test]
fn damaged_libraries_are_errors_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("library");
    let sound = fs::read(library()).unwrap();
    let numbers = numbers(&sound);
    assert!(
        !usdt::notes(&File::open(library()).unwrap()).unwrap().is_empty(),
        "no marks to damage"
    );
    campaign::run("elf", 60, &mut |random: &mut Random| {
        let mut bytes = sound.clone();
        edit_file(&mut bytes, &numbers, random);
        if random.below(10) == 0 {
            edit_bytes(&mut bytes, random);
        }
        fs::write(&path, &bytes).unwrap();
        if let Err(error) = usdt::notes(&File::open(&path).unwrap()) {
            let said = error.to_string();
            // Names in it are the file's own: they are cleaned where they are printed.
            if said.len() > 1000 {
                return Err(format!("{} bytes of an error: {said}", said.len()));
            }
        }
        Ok(8 * bytes.len())
    });
}

/// The C library as it lies in this process.
#[test]
fn damaged_loaded_libraries_are_errors_or_read() {
    let own = Process::open(std::process::id()).unwrap();
    let mappings = own.mappings().unwrap();
    let mapping = mappings.object(|name| name.starts_with("libc.so")).unwrap();
    let object = LoadedObject::read(&own.memory(), mapping).unwrap();
    let mut sound = MemoryImage::default();
    let parts = mappings.iter().filter(|part| part.path == mapping.path);
    let mut ranges = Vec::new();
    for part in parts {
        let len = (part.end.0 - part.start.0) as usize;
        let memory = own.memory();
        if let Ok(bytes) = (&memory as &dyn Memory).vec(part.start, len) {
            sound.insert(part.start, &bytes);
            ranges.push((part.start.0, len));
        }
    }
    assert!(object.exported(&sound, "getpid").unwrap().is_some());
    // The header and what follows: segments, notes, hash table, symbols, names.
    let start = mapping.start.0;
    campaign::run("loaded", 60, &mut |random: &mut Random| {
        let mut image = sound.clone();
        for _ in 0..random.few(12) {
            let at = match random.below(3) {
                0 => start + random.below(64 + 56 * 14) as u64,
                1 => start + random.below(0x2_0000) as u64,
                _ => {
                    let (from, len) = ranges[random.below(ranges.len())];
                    from + random.below(len) as u64
                }
            };
            image.insert(Addr(at), &random.edge().to_le_bytes());
        }
        if let Ok(object) = LoadedObject::read(&image, mapping) {
            for name in ["getpid", "no_such_symbol"] {
                let _ = object.exported(&image, name);
            }
            let _ = object.contains(Addr(random.edge()));
        }
        Ok(64 << 20)
    });
}
