//! Stacks of compiled code out of damaged tables and symbols: a made-up library with random call
//! frame programs, in a core file, and copies of stacks as they come out of the ring of an exact
//! recording.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use memspy::model::{Frame, FunctionId, StackTable};
use memspy::native::{RepeatedUnwinder, StackCopy, Unwinder, copy_stacks};
use memspy::probe::{RingDecoder, RingRecord};
use memspy::sampler::{PythonPart, merge};
use memspy::target::{Process, ThreadRegisters};

use super::campaign::{self, Random};
use super::edits::edit_bytes;
use crate::support::core_file::{CoreBuilder, Segment};

/// Where the library and the stack lie.
const LIBRARY: u64 = 0x40_0000;
const STACK: u64 = 0x7000_0000;
const STACK_LEN: usize = 0x4000;
/// Offsets in the library: its dynamic section, symbols, their names, sections, tables, code.
const DYNAMIC: usize = 0x100;
const SYMBOLS: usize = 0x200;
const NAMES: usize = 0x400;
const SECTIONS: usize = 0xc00;
const HEADER: usize = 0xe00;
const FRAMES: usize = 0x1000;
const CODE: usize = 0x3000;
const LEN: usize = 0x4000;
/// Functions, and bytes of each.
const FUNCTIONS: usize = 12;
const FUNCTION_LEN: usize = 0x100;
/// What tables may take that are mapped so large, whatever a core file has of them.
const MAX_TABLES: usize = 160 << 20;
/// The most frames that are read of a stack.
const MAX_FRAMES: usize = 8192;

fn put(bytes: &mut [u8], at: usize, numbers: &[(u64, usize)]) {
    let new =
        numbers.iter().flat_map(|(number, width)| number.to_le_bytes().into_iter().take(*width));
    bytes[at..].iter_mut().zip(new).for_each(|(byte, new)| *byte = new);
}

fn leb(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A register that is often one that matters.
fn register(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => random.edge(),
        1 => 17 + random.word() % 100,
        2 => 16,
        3 | 4 => 6 + random.word() % 2,
        _ => random.word() % 17,
    }
}

fn offset(random: &mut Random) -> u64 {
    if random.below(8) == 0 { random.edge() } else { random.word() % 40 }
}

/// A DWARF expression, which may branch backwards for ever.
fn expression(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..random.few(12) {
        match random.below(8) {
            0 => out.push(0x30 + random.below(32) as u8), // lit
            1 | 2 => {
                out.push(0x70 + random.below(17) as u8); // breg
                leb(&mut out, offset(random));
            }
            3 => out
                .push(*random.pick(&[0x06, 0x12, 0x13, 0x14, 0x16, 0x1a, 0x1c, 0x22, 0x27, 0x96])),
            4 => out.extend([0x2f, 0xff - random.below(12) as u8, 0xff]), // skip backwards
            5 => out.extend([0x12, 0x28, 0xff - random.below(12) as u8, 0xff]), // branch backwards
            6 => {
                out.push(0x23); // plus
                leb(&mut out, offset(random));
            }
            _ => out.push(random.word() as u8),
        }
    }
    out
}

/// A program of call frame instructions.
fn program(random: &mut Random) -> Vec<u8> {
    // A frame that is its own caller.
    if random.below(8) == 0 {
        return vec![0x0c, 7, 0, 0x08, 16];
    }
    let mut out = Vec::new();
    for _ in 0..random.below(14) {
        let before = out.len();
        match random.below(16) {
            0..=2 => out.push(0x40 | random.below(63) as u8), // advance
            3 | 4 => {
                out.push(0x0e); // def_cfa_offset
                leb(&mut out, offset(random));
            }
            5 => {
                out.push(0x0c); // def_cfa
                leb(&mut out, register(random));
                leb(&mut out, offset(random));
            }
            6..=8 => {
                out.push(0x80 | (register(random) & 0x3f) as u8); // offset
                leb(&mut out, offset(random));
            }
            9 => out.extend([0x0a, 0x0b]), // remember and restore
            10 => {
                out.push(*random.pick(&[0x07, 0x08, 0x0d, 0x2e])); // undefined, same, register, arguments
                leb(&mut out, register(random));
            }
            11 => {
                out.push(*random.pick(&[0x09, 0x14, 0x05, 0x11])); // register, val_offset, extended
                leb(&mut out, register(random));
                leb(&mut out, register(random));
            }
            12 | 13 => {
                let kind = *random.pick(&[0x0f, 0x10, 0x16]);
                out.push(kind); // def_cfa_expression, expression, val_expression
                if kind != 0x0f {
                    leb(&mut out, register(random));
                }
                let code = expression(random);
                leb(&mut out, code.len() as u64);
                out.extend(code);
            }
            14 => out.push(random.word() as u8),
            _ => {
                let bytes = out[before.saturating_sub(6)..].to_vec();
                out.extend(bytes.repeat(random.few(20)));
            }
        }
    }
    out
}

fn name(random: &mut Random) -> String {
    let names = [
        "_PyEval_EvalFrameDefault",
        "_PyEval_EvalFrameDefault.cold",
        "_ZN2at6native3addERKNS_6TensorES3_",
        "_ZNSt6vectorIS_IiSaIiEESaIS1_EE9push_backERKS1_",
        "_RNvC6_123foo3bar",
        "malloc",
        "",
    ];
    let mut name = random.pick(&names).as_bytes().to_vec();
    if random.below(3) == 0 {
        edit_bytes(&mut name, random);
        name.truncate(100);
    }
    name.retain(|byte| *byte != 0);
    String::from_utf8_lossy(&name).into_owned()
}

/// The library's bytes, in memory and on the disk.
fn library(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 16, &[(3, 2), (62, 2), (1, 4), (0, 8), (64, 8), (SECTIONS as u64, 8)]);
    put(&mut bytes, 52, &[(64, 2), (56, 2), (3, 2), (64, 2), (4, 2), (3, 2)]);
    let segments = [(1, 0, LEN), (2, DYNAMIC, 16), (0x6474_e550, HEADER, 12 + 8 * FUNCTIONS)];
    for (n, (kind, at, len)) in segments.into_iter().enumerate() {
        let (at, len) = (at as u64, len as u64);
        let numbers = [(kind, 4), (5, 4), (at, 8), (at, 8), (at, 8), (len, 8), (len, 8), (8, 8)];
        put(&mut bytes, 64 + 56 * n, &numbers);
    }
    let mut names = vec![0];
    for n in 0..FUNCTIONS {
        let (start, len) = ((CODE + n * FUNCTION_LEN) as u64, FUNCTION_LEN as u64);
        let numbers = [(names.len() as u64, 4), (0x12, 1), (0, 1), (1, 2), (start, 8), (len, 8)];
        put(&mut bytes, SYMBOLS + 24 * (n + 1), &numbers);
        names.extend(name(random).bytes().chain([0]));
    }
    assert!(NAMES + names.len() <= SECTIONS);
    bytes[NAMES..NAMES + names.len()].copy_from_slice(&names);
    let symbols = (2, SYMBOLS, 24 * (FUNCTIONS + 1), 2);
    for (n, (kind, at, len, link)) in
        [symbols, (3, NAMES, names.len(), 0), (3, NAMES, names.len(), 0)].into_iter().enumerate()
    {
        let at = at as u64;
        let numbers = [(0, 4), (kind, 4), (0, 8), (0, 8), (at, 8), (len as u64, 8), (link, 4)];
        put(&mut bytes, SECTIONS + 64 * (n + 1), &numbers);
    }
    // The tables: one common entry, usual or of signal frames, and an entry for each function.
    let mut frames = Vec::new();
    let entry = |bytes: &mut Vec<u8>, content: &[u8]| {
        let at = bytes.len();
        let len = content.len().next_multiple_of(4);
        bytes.extend((len as u32).to_le_bytes());
        bytes.extend(content);
        bytes.resize(at + 4 + len, 0);
        at
    };
    let mut starts = Vec::new();
    let mut table = Vec::new();
    for augmentation in ["zR\0", "zRS\0"] {
        let mut common = vec![0, 0, 0, 0, 1];
        common.extend(augmentation.bytes());
        common.extend([1, 0x78, 16, 1, 0x1b]);
        if random.below(4) > 0 {
            common.extend([0x0c, 7, 8, 0x90, 1]);
        }
        starts.push(entry(&mut frames, &common));
    }
    for n in 0..FUNCTIONS {
        let at = frames.len() + 4;
        let common = starts[usize::from(random.below(4) == 0)];
        let code = CODE + n * FUNCTION_LEN;
        let mut content = ((at - common) as u32).to_le_bytes().to_vec();
        content.extend((code as i32 - (FRAMES + at + 4) as i32).to_le_bytes());
        content.extend((FUNCTION_LEN as u32).to_le_bytes());
        content.push(0);
        if random.below(3) == 0 {
            content.extend(program(random));
        }
        let at = entry(&mut frames, &content);
        table.extend([(code - HEADER) as u64, (FRAMES + at - HEADER) as u64].map(|it| (it, 4)));
    }
    frames.truncate(CODE - FRAMES - 4);
    bytes[FRAMES..FRAMES + frames.len()].copy_from_slice(&frames);
    let head = [(1, 1), (0x1b, 1), (3, 1), (0x3b, 1), ((FRAMES - HEADER - 4) as u64, 4)];
    put(&mut bytes, HEADER, &head);
    put(&mut bytes, HEADER + 8, &[(FUNCTIONS as u64, 4)]);
    put(&mut bytes, HEADER + 12, &table);
    // A number of functions that takes 8 bytes, and may be any.
    if random.below(16) == 0 {
        put(&mut bytes, HEADER + 2, &[(4, 1)]);
        put(&mut bytes, HEADER + 8, &[(random.edge(), 8)]);
        put(&mut bytes, HEADER + 16, &table);
    }
    bytes
}

/// Another number or two in the headers, the symbols and the tables.
fn damage(bytes: &mut [u8], random: &mut Random) {
    let places = [
        (0, 64 + 3 * 56),
        (SYMBOLS, 0x200),
        (SECTIONS, 0x100),
        (HEADER, 12),
        (HEADER, 0x100),
        (FRAMES, 0x800),
    ];
    for _ in 0..random.few(6) {
        let (start, len) = *random.pick(&places);
        let width = *random.pick(&[1, 2, 4, 8]);
        put(bytes, start + random.below(len), &[(random.edge(), width)]);
    }
}

/// An address, of code rather often.
fn word(random: &mut Random) -> u64 {
    match random.below(24) {
        0 => random.edge(),
        1 => 0,
        2..=5 => STACK + random.word() % STACK_LEN as u64,
        6 => LIBRARY + random.word() % LEN as u64,
        _ => LIBRARY + (CODE + random.below(FUNCTIONS * FUNCTION_LEN)) as u64,
    }
}

fn registers(random: &mut Random) -> [u64; 17] {
    let mut registers = [0; 17].map(|_| word(random));
    if random.below(8) > 0 {
        registers[7] = STACK + 8 * (random.word() % (STACK_LEN as u64 / 8));
        registers[16] = LIBRARY + (CODE + random.below(FUNCTIONS * FUNCTION_LEN)) as u64;
    }
    registers
}

/// A process of which the library is the only code, as a core file.
fn process(folder: &Path, random: &mut Random) -> Process {
    let mut bytes = library(random);
    if random.below(2) == 0 {
        damage(&mut bytes, random);
    }
    let path = folder.join("library.so");
    fs::write(&path, &bytes).unwrap();
    if random.below(8) == 0 {
        damage(&mut bytes, random);
    }
    let mut core = CoreBuilder::default();
    for thread in 0..8 {
        let [rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15, rip] =
            registers(random);
        let mut all = [
            r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, 0, rip, 0, 0,
            rsp,
        ]
        .to_vec();
        all.resize(27, 0);
        core.thread(100 + thread, 0, &all.try_into().unwrap());
    }
    let end = LIBRARY + LEN as u64;
    core.files(&[(LIBRARY, end, 0, path.to_str().unwrap().to_owned())]);
    core.segments.push(Segment { start: LIBRARY, end, flags: 5, bytes });
    let stack: Vec<u8> = (0..STACK_LEN / 8).flat_map(|_| word(random).to_le_bytes()).collect();
    let end = STACK + STACK_LEN as u64;
    core.segments.push(Segment { start: STACK, end, flags: 6, bytes: stack });
    let path = folder.join("core");
    core.write(&path);
    Process::open_core(&path).unwrap()
}

#[test]
fn stacks_are_unwound_by_damaged_tables() {
    let folder = tempfile::tempdir().unwrap();
    let (mut steps, mut named, mut deepest) = (0, 0, 0);
    campaign::run("unwinding", 200, &mut |random: &mut Random| {
        let process = process(folder.path(), random);
        let (memory, mappings) = (process.memory(), process.mappings().unwrap());
        let stacks = copy_stacks(&memory, &mappings, process.core_registers());
        let once = Unwinder::new(&process, &memory, &mappings).unwind(&stacks);
        let mut repeated = RepeatedUnwinder::new(&process, &memory);
        let first = repeated.unwind(&stacks);
        // By what was remembered of each address, and no more by the tables.
        let again = repeated.unwind(&stacks);
        for ((once, first), again) in once.iter().zip(&first).zip(&again) {
            let count = once.frames.len();
            if count == 0 || count > MAX_FRAMES {
                return Err(format!("{count} frames"));
            }
            let addresses = |frames: &[memspy::model::NativeFrame]| {
                frames.iter().map(|it| it.address).collect::<Vec<_>>()
            };
            let (all, many) = (addresses(&once.frames), addresses(&first.frames));
            let is_whole = count < 1000 && once.incomplete != first.incomplete;
            if !all.starts_with(&many) || is_whole {
                return Err(format!("another stack: {once:x?} {first:x?}"));
            }
            if !Arc::ptr_eq(first, again) {
                return Err(format!("another stack the second time: {first:x?} {again:x?}"));
            }
            steps += count - 1;
            deepest = deepest.max(count);
            named += once.frames.iter().filter(|it| it.function.is_some()).count();
        }
        Ok(MAX_TABLES)
    });
    eprintln!("unwinding: {steps} steps, {named} names, {deepest} frames at most");
    assert!(campaign::is_long() || (steps > 1000 && named > 1000), "{steps} {named}");
}

/// A record of a copy of a stack as the kernel's program writes it, and what is wrong with it.
fn record(random: &mut Random) -> Vec<u8> {
    let stack: Vec<u8> = (0..random.few(600)).flat_map(|_| word(random).to_le_bytes()).collect();
    let len = match random.below(8) {
        0 => random.edge() as u32,
        _ => stack.len() as u32,
    };
    let mut record = vec![9, 0, 0, 0];
    for number in [random.word() as u32, len, len.saturating_add(random.below(3) as u32)] {
        record.extend(number.to_le_bytes());
    }
    record.extend(registers(random).iter().flat_map(|it| it.to_le_bytes()));
    record.extend(stack);
    match random.below(6) {
        0 => edit_bytes(&mut record, random),
        1 => record.iter_mut().for_each(|byte| *byte = random.word() as u8 % 12),
        _ => {}
    }
    record
}

#[test]
fn copies_of_stacks_out_of_the_ring_are_unwound_and_merged() {
    let folder = tempfile::tempdir().unwrap();
    let mut merged = 0;
    campaign::run("ring", 150, &mut |random: &mut Random| {
        let process = process(folder.path(), random);
        let memory = process.memory();
        let mut unwinder = RepeatedUnwinder::new(&process, &memory);
        let mut copies = Vec::new();
        let mut decoder = RingDecoder::default();
        for _ in 0..random.few(40) {
            let record = record(random);
            decoder.decode(&record, &mut |it| {
                if let RingRecord::NativeStack { registers, stack, is_cut, .. } = it {
                    let registers = ThreadRegisters { thread: 0, values: registers };
                    copies.push(StackCopy::new(registers, stack.to_vec(), is_cut));
                }
            });
        }
        let mut table = StackTable::new();
        for unwound in unwinder.unwind(&copies) {
            let frames: Vec<Frame> = (0..random.below(20) as u32)
                .map(|line| Frame { function: FunctionId(line % 3), line })
                .collect();
            // Calls that fit to the frames, and others.
            let mut calls: Vec<u32> = Vec::new();
            while calls.iter().sum::<u32>() < frames.len() as u32 {
                calls.push(1 + random.below(3) as u32);
            }
            if random.below(4) == 0 {
                calls.push(random.edge() as u32);
            }
            let python =
                PythonPart { frames: &frames, calls: &calls, truncated: random.below(2) == 0 };
            let python = (random.below(4) > 0).then_some(python);
            let Some(stack) = merge(&unwound, python, &mut table) else {
                return Err("a stack without frames".to_owned());
            };
            let found: Vec<Frame> = table.frames(stack).collect();
            let most = unwound.frames.len() + frames.len() + 1;
            if found.len() > most {
                return Err(format!("{} frames of {most}", found.len()));
            }
            // All of Python's frames, in their order: none is lost, whatever the other ones are.
            let of_python = found.iter().filter(|it| it.line > 0 || it.function.0 == 0);
            let lines: Vec<u32> = of_python.map(|it| it.line).filter(|line| *line > 0).collect();
            let expected: Vec<u32> = python
                .iter()
                .flat_map(|it| it.frames)
                .map(|it| it.line)
                .filter(|line| *line > 0)
                .collect();
            if lines != expected {
                return Err(format!("Python's frames are {lines:?}, not {expected:?}"));
            }
            merged += 1;
        }
        Ok(MAX_TABLES)
    });
    eprintln!("ring: {merged} stacks merged");
    assert!(campaign::is_long() || merged > 200, "{merged}");
}
