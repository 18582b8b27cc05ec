//! Chains of frames as a poller believes them: none may be one that the thread never had.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use crate::support::pythons;
use crate::support::target::Target;
use memspy::model::StackTable;
use memspy::python::{ChainFrame, ChainNamer, PolledStack, PythonReader, StackPoller};
use memspy::target::{Memory, MemoryError, Process, ProcessMemory};
use serde_json::Value;

/// Innermost frame first: name without its qualification, and line.
type Stack = Vec<(String, u32)>;

/// What so many polls of all threads of a target believed, and how often.
fn poll(target: &Target, polls: usize) -> (HashMap<Stack, u64>, String) {
    let process = Process::open(target.pid()).unwrap();
    let mut reader = PythonReader::attach_own(&process).unwrap();
    let mut table = StackTable::new();
    reader.sample(&mut table, &mut Vec::new()).unwrap();
    let (mut poller, mut namer) = reader.stack_poller(&process).unwrap();
    poller.set_targets(&reader.poll_targets());
    let memory = process.memory();
    let mut chains: HashMap<Box<[ChainFrame]>, u64> = HashMap::new();
    let mut copies = rustc_hash::FxHashMap::default();
    let (mut believed, mut doubted) = (0u64, 0u64);
    let (mut spans, mut now, mut before) = (Vec::new(), Vec::new(), Vec::new());
    let mut comparable = false;
    let began = Instant::now();
    for _ in 0..polls {
        loop {
            if !comparable {
                spans.clear();
                let bytes = poller.push(&mut spans, 0);
                now.resize(bytes, 0);
                before.resize(bytes, 0);
            }
            std::mem::swap(&mut now, &mut before);
            match memory.read_spans(&spans, &mut now) {
                Ok(()) => {
                    if !poller.examine(&now, comparable.then_some(&before)) {
                        comparable = true;
                        break;
                    }
                }
                Err(MemoryError::Fault { index, .. }) => assert!(poller.fault(index)),
                Err(error) => panic!("{error}"),
            }
            comparable = false;
        }
        for number in 0..poller.len() {
            match poller.now(number) {
                PolledStack::Frames(frames) => {
                    believed += 1;
                    let frames: Box<[ChainFrame]> = frames.into();
                    copy_codes(&poller, &memory, &frames, &mut copies);
                    *chains.entry(frames).or_default() += 1;
                }
                PolledStack::NoFrames => {}
                PolledStack::Unconfirmed(_) | PolledStack::Torn => doubted += 1,
            }
        }
        comparable &= !poller.trim();
    }
    let apart = began.elapsed().as_secs_f64() * 1e6 / polls as f64;
    let (keys, counts): (Vec<_>, Vec<_>) = chains.into_iter().unzip();
    let refs: Vec<&[ChainFrame]> = keys.iter().map(|chain| &**chain).collect();
    let named = namer.name(&refs, &copies, &mut table).unwrap();
    let mut stacks: HashMap<Stack, u64> = HashMap::new();
    let mut unnamed = 0;
    for (named, count) in named.iter().zip(counts) {
        let Some(named) = named else {
            unnamed += count;
            continue;
        };
        let frames = table.frames(named.stack).map(|frame| {
            let name = &table.get_function(frame.function).unwrap().name;
            (name.rsplit('.').next().unwrap().to_owned(), frame.line)
        });
        *stacks.entry(frames.collect()).or_default() += count;
    }
    assert!(believed > 0, "no stack was believed");
    // A chain read while the interpreter wrote it may name what is no code object: it is not believed then, either.
    assert!(unnamed * 4_000 <= believed, "{unnamed} of {believed} code objects could not be named");
    let told = format!(
        "{apart:.1} us a poll, {believed} believed ({} different), {doubted} not",
        stacks.len()
    );
    (stacks, told)
}

fn copy_codes(
    poller: &StackPoller,
    memory: &ProcessMemory,
    frames: &[ChainFrame],
    copies: &mut rustc_hash::FxHashMap<u64, Vec<u8>>,
) {
    for frame in frames {
        let code = ChainNamer::code_of(frame);
        if let std::collections::hash_map::Entry::Vacant(entry) = copies.entry(code) {
            entry.insert(poller.code_copy(memory, frame).unwrap());
        }
    }
}

/// Fails unless all stacks believed can be.
fn check(
    label: &str,
    (stacks, told): (HashMap<Stack, u64>, String),
    can_be: impl Fn(&Stack) -> bool,
) {
    eprintln!("{label}: {told}");
    let wrong: HashSet<_> = stacks.iter().filter(|(stack, _)| !can_be(stack)).collect();
    let count: u64 = wrong.iter().map(|(_, count)| **count).sum();
    let all: u64 = stacks.values().sum();
    for (stack, count) in wrong.iter().take(3) {
        eprintln!("{label}: {count} times, never was: {stack:?}");
    }
    // A thread that comes through the same state twice between two polls, and was elsewhere at the instants of copying,
    // cannot be told from one that stood still: that is so more often where others are at work, too.
    assert!(count * 4_000 <= all, "{label}: {count} of {all} stacks believed never were");
}

fn polls() -> usize {
    std::env::var("MEMSPY_BUSY_POLLS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

#[test]
fn a_callee_is_believed_only_under_the_line_that_calls_it() {
    for python in pythons::one_per_version() {
        let target = Target::start(python.target("busy_pairs.py"));
        let truth: Value = serde_json::from_str(&target.said[0]).unwrap();
        let pairs: HashSet<(u32, String)> = truth["pairs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| (p[0].as_u64().unwrap() as u32, p[1].as_str().unwrap().to_owned()))
            .collect();
        check(&python.label, poll(&target, polls()), |stack| {
            let Some(at) = stack.iter().position(|(name, _)| name == "spin") else {
                return !stack.iter().any(|(name, _)| pairs.iter().any(|p| p.1 == *name));
            };
            let under_deep = at < 2 || (stack[0].0 == "two_deep" && stack[1].0 == "three");
            let paired = at == 0 || pairs.contains(&(stack[at].1, stack[at - 1].0.clone()));
            let outer = stack.iter().map(|f| f.0.as_str()).skip(at + 1);
            under_deep && paired && outer.eq(["main", "<module>"])
        });
    }
}

#[test]
fn levels_believed_follow_each_other_without_a_gap() {
    for python in pythons::one_per_version() {
        let target = Target::start({
            let mut command = python.target("busy_stacks.py");
            command.args(["--threads", "2", "--depth", "20"]);
            command
        });
        check(&python.label, poll(&target, polls()), |stack| {
            let Some(worker) = stack.iter().position(|(name, _)| name == "worker") else {
                return !stack.iter().any(|(name, _)| name.starts_with("level_"));
            };
            let levels = stack[..worker].iter().rev().map(|f| f.0.as_str());
            levels.enumerate().all(|(n, name)| name == format!("level_{n}"))
        });
    }
}
