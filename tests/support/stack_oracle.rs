//! Targets that never rest, with all possible stacks of their threads: a reader must show no other.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use memspy::model::StackTable;
use memspy::python::{ChainFrame, ChainNamer, InterpreterReader, PolledStack, StackPoller};
use memspy::target::{Memory, MemoryError, Process, ProcessMemory};
use serde_json::Value;

use super::pythons::Python;
use super::target::Target;

/// Innermost frame first: unqualified name, and line.
pub type NamedStack = Vec<(String, u32)>;

/// The unqualified name.
pub fn last_part(name: &str) -> String {
    name.rsplit('.').next().unwrap().to_owned()
}

/// The frames of a stack in memspy's table.
pub fn named(table: &StackTable, stack: memspy::model::StackId) -> NamedStack {
    let frames = table.frames(stack).map(|frame| {
        let name = &table.get_function(frame.function).unwrap().name;
        (last_part(name), frame.line)
    });
    frames.collect()
}

/// A target with a known set of possible stacks.
pub enum KnownStacks {
    /// `busy_pairs.py`: functions, each called from its own line, and the frames around them.
    Pairs { pairs: HashSet<(u32, String)>, outer: &'static [&'static str] },
    /// `busy_stacks.py`: functions that follow each other without a gap.
    Levels,
    /// `busy_calls.py`: pairs of caller and callee, through C.
    Calls(HashSet<(String, String)>),
}

impl KnownStacks {
    /// Functions called from their own lines, in `threads` threads or the main one.
    pub fn pairs(python: &Python, threads: Option<&str>) -> (Target, KnownStacks) {
        let mut command = python.target("busy_pairs.py");
        command.args(threads.map(|_| "--threads")).args(threads);
        let target = Target::start(command);
        let truth: Value = serde_json::from_str(&target.said[0]).unwrap();
        let pair = |p: &Value| (p[0].as_u64().unwrap() as u32, p[1].as_str().unwrap().to_owned());
        let pairs = truth["pairs"].as_array().unwrap().iter().map(pair).collect();
        let outer: &[&str] = match threads {
            Some(_) => &["run", "_bootstrap_inner", "_bootstrap"],
            None => &["main", "<module>"],
        };
        (target, KnownStacks::Pairs { pairs, outer })
    }

    /// Two threads, 20 functions deep, each calling the next or returning.
    pub fn levels(python: &Python) -> (Target, KnownStacks) {
        let mut command = python.target("busy_stacks.py");
        command.args(["--threads", "2", "--depth", "20"]);
        (Target::start(command), KnownStacks::Levels)
    }

    /// Functions that call each other through C, from several lines at one depth.
    pub fn calls(python: &Python) -> (Target, KnownStacks) {
        let target = Target::start(python.target("busy_calls.py"));
        let truth: Value = serde_json::from_str(&target.said[0]).unwrap();
        let name = |name: &Value| name.as_str().unwrap().to_owned();
        let calls = truth["calls"].as_array().unwrap().iter();
        let calls = calls.map(|call| (name(&call[0]), name(&call[1]))).collect();
        (target, KnownStacks::Calls(calls))
    }

    /// Whether one of its threads can have had this stack.
    pub fn can_be(&self, stack: &[(String, u32)]) -> bool {
        match self {
            KnownStacks::Pairs { pairs, outer } => {
                let Some(at) = stack.iter().position(|(name, _)| name == "spin") else {
                    return !stack.iter().any(|(name, _)| pairs.iter().any(|p| p.1 == *name));
                };
                let under_deep = at < 2 || (stack[0].0 == "two_deep" && stack[1].0 == "three");
                let paired = at == 0 || pairs.contains(&(stack[at].1, stack[at - 1].0.clone()));
                let around = stack.iter().map(|frame| frame.0.as_str()).skip(at + 1);
                under_deep && paired && around.eq(outer.iter().copied())
            }
            KnownStacks::Levels => {
                let Some(worker) = stack.iter().position(|(name, _)| name == "worker") else {
                    return !stack.iter().any(|(name, _)| name.starts_with("level_"));
                };
                let levels = stack[..worker].iter().rev().map(|frame| frame.0.as_str());
                levels.enumerate().all(|(n, name)| name == format!("level_{n}"))
            }
            KnownStacks::Calls(calls) => {
                let is_main = stack.last().is_some_and(|frame| frame.0 == "<module>");
                let called = |pair: &[(String, u32)]| {
                    calls.contains(&(pair[1].0.clone(), pair[0].0.clone()))
                };
                match is_main {
                    true => stack.windows(2).all(called),
                    false => !stack.iter().any(|(name, _)| calls.iter().any(|c| c.1 == *name)),
                }
            }
        }
    }
}

/// The accepted stacks of many polls of all threads, with counts.
#[derive(Default)]
pub struct PolledStacks {
    /// By stack.
    pub stacks: HashMap<NamedStack, u64>,
    /// Accepted stacks, stacks of code that could not be named later, rejected stacks.
    pub believed: u64,
    pub unnamed: u64,
    pub doubted: u64,
    /// The time of all polls, without counting.
    pub took: Duration,
}

/// Polls all threads of `target`.
pub fn poll(target: &Target, polls: usize) -> PolledStacks {
    let process = Process::open(target.pid()).unwrap();
    let mut reader = InterpreterReader::attach_own(&process).unwrap();
    let mut table = StackTable::new();
    reader.sample(&mut table, &mut Vec::new()).unwrap();
    let (mut poller, mut namer) = reader.stack_poller(&process).unwrap();
    poller.set_targets(&reader.poll_targets());
    let memory = process.memory();
    let mut chains: HashMap<Box<[ChainFrame]>, u64> = HashMap::new();
    let mut copies = rustc_hash::FxHashMap::default();
    let mut polled = PolledStacks::default();
    let (mut spans, mut now, mut before) = (Vec::new(), Vec::new(), Vec::new());
    let (mut again, mut copy) = (Vec::new(), Vec::new());
    let mut comparable = false;
    for _ in 0..polls {
        let began = Instant::now();
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
        again.clear();
        copy.resize(poller.push_again(&mut again), 0);
        if !again.is_empty() {
            match memory.read_spans(&again, &mut copy) {
                Ok(()) => poller.confirm(&copy),
                Err(MemoryError::Fault { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        polled.took += began.elapsed();
        for number in 0..poller.len() {
            match poller.now(number) {
                PolledStack::Frames(frames) => {
                    polled.believed += 1;
                    let frames: Box<[ChainFrame]> = frames.into();
                    copy_codes(&poller, &memory, &frames, &mut copies);
                    *chains.entry(frames).or_default() += 1;
                }
                PolledStack::NoFrames => {}
                PolledStack::Unconfirmed(_) | PolledStack::Torn => polled.doubted += 1,
            }
        }
        comparable &= !poller.trim();
    }
    let (keys, counts): (Vec<_>, Vec<_>) = chains.into_iter().unzip();
    let refs: Vec<&[ChainFrame]> = keys.iter().map(|chain| &**chain).collect();
    let names = namer.name(&refs, &copies, &mut table).unwrap();
    for (name, count) in names.iter().zip(counts) {
        match name {
            Some(name) => *polled.stacks.entry(named(&table, name.stack)).or_default() += count,
            None => polled.unnamed += count,
        }
    }
    polled
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
