//! Unwinds stacks with cached rules and names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::frame_rule::FrameRule;
use super::modules::NativeModules;
use super::names::demangle;
use super::stack_copy::StackCopy;
use super::step::{RETURN_ADDRESS, StepOutcome, step};
use crate::model::NativeFrame;
use crate::target::{Addr, Mappings, Memory, Process};

const MAX_DEPTH: usize = 1024;
const MAX_TIME: Duration = Duration::from_secs(20);
const MAX_STACKS: usize = 1 << 15;
const MAX_ADDRESSES: usize = 1 << 17;
/// Libraries come and, rarely, go. Shorter when a frame has code in no known mapping.
const MAPPINGS_INTERVAL: Duration = Duration::from_secs(1);
const MIN_MAPPINGS_INTERVAL: Duration = Duration::from_millis(50);

/// A stack that may occur often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnwoundStack {
    /// Unique.
    pub number: u64,
    /// Innermost first.
    pub frames: Vec<NativeFrame>,
    /// Why it ends early; `None` if complete.
    pub incomplete: Option<String>,
}

/// The code address of each frame, and why there are no more.
type CodeAddresses = (Vec<u64>, Option<String>);

/// Unwinds stacks of one process.
pub struct RepeatedUnwinder<'a> {
    process: &'a Process,
    modules: NativeModules<'a>,
    read: Option<Instant>,
    has_ended: bool,
    max_time: Duration,
    rules: FxHashMap<u64, FrameRule>,
    names: FxHashMap<u64, NativeFrame>,
    stacks: FxHashMap<CodeAddresses, Arc<UnwoundStack>>,
    next: u64,
}

impl<'a> RepeatedUnwinder<'a> {
    /// Reads code and tables of `process` through `memory`.
    pub fn new(process: &'a Process, memory: &'a dyn Memory) -> RepeatedUnwinder<'a> {
        RepeatedUnwinder {
            process,
            modules: NativeModules::new(memory, Mappings::default()),
            read: None,
            has_ended: false,
            max_time: MAX_TIME,
            rules: FxHashMap::default(),
            names: FxHashMap::default(),
            stacks: FxHashMap::default(),
            next: 0,
        }
    }

    /// Reads accepted libraries in advance: the first stacks need not wait.
    pub fn prepare(&mut self, wanted: impl Fn(&str) -> bool) {
        self.read_mappings(MAPPINGS_INTERVAL);
        for start in self.modules.code_of(wanted) {
            if let Some(module) = self.modules.find(start) {
                self.modules.read_functions(self.process, module);
            }
        }
    }

    /// The stacks of these threads.
    pub fn unwind(&mut self, threads: &[StackCopy]) -> Vec<Arc<UnwoundStack>> {
        self.read_mappings(MAPPINGS_INTERVAL);
        let began = Instant::now();
        let walked: Vec<CodeAddresses> =
            threads.iter().map(|thread| self.walk(thread, began)).collect();
        if self.names.len() > MAX_ADDRESSES {
            self.names.clear();
        }
        let unnamed: Vec<&CodeAddresses> =
            walked.iter().filter(|walked| !self.stacks.contains_key(*walked)).collect();
        self.find_names(&unnamed);
        walked.into_iter().map(|walked| self.stack(walked)).collect()
    }

    fn read_mappings(&mut self, interval: Duration) {
        if self.read.is_some_and(|read| read.elapsed() < interval) {
            return;
        }
        self.read = Some(Instant::now());
        // An ended process keeps its known mappings.
        let mappings = self.process.mappings().unwrap_or_default();
        self.has_ended = !mappings.iter().any(|it| it.executable);
        if self.has_ended {
            return;
        }
        if !self.modules.set_mappings(mappings) {
            // The addresses may have other code.
            self.rules.clear();
            self.names.clear();
            self.stacks.clear();
        }
    }

    fn walk(&mut self, thread: &StackCopy, began: Instant) -> CodeAddresses {
        let mut registers = thread.registers.values;
        let mut frames = Vec::new();
        let mut is_exact = true;
        while frames.len() < MAX_DEPTH {
            let at = registers[RETURN_ADDRESS];
            let address = if is_exact { at } else { at.wrapping_sub(1) };
            frames.push(address);
            if began.elapsed() > self.max_time {
                let why = format!("the time for it, {} s, is over", MAX_TIME.as_secs());
                return (frames, Some(why));
            }
            match self.step(thread, &registers, address) {
                StepOutcome::Caller { registers: caller, is_exact: exact } => {
                    (registers, is_exact) = (caller, exact);
                }
                StepOutcome::Outermost => return (frames, None),
                StepOutcome::Unknown(why) => return (frames, Some(why)),
            }
        }
        (frames, Some(format!("it has more than {MAX_DEPTH} frames")))
    }

    fn step(&mut self, thread: &StackCopy, registers: &[u64; 17], address: u64) -> StepOutcome {
        if let Some(rule) = self.rules.get(&address) {
            return rule.step(thread, registers);
        }
        if !self.modules.has_code(Addr(address)) {
            self.read_mappings(MIN_MAPPINGS_INTERVAL);
        }
        let start = self.modules.find(Addr(address));
        let Some(module) = start.and_then(|start| self.modules.get(start)) else {
            let why = match self.has_ended {
                false => "its code is in no program or library, so its caller is unknown",
                true => "the process had ended before the tables of its libraries were read",
            };
            return StepOutcome::Unknown(why.to_owned());
        };
        match &module.tables {
            Ok(tables) => {
                let (outcome, rule) = step(tables, thread, registers, address);
                if self.rules.len() > MAX_ADDRESSES {
                    self.rules.clear();
                }
                if let Some(rule) = rule {
                    self.rules.insert(address, rule);
                }
                outcome
            }
            Err(why) => StepOutcome::Unknown(why.clone()),
        }
    }

    fn find_names(&mut self, walked: &[&CodeAddresses]) {
        let mut wanted: FxHashMap<Addr, Vec<Addr>> = FxHashMap::default();
        for address in walked.iter().flat_map(|(frames, _)| frames) {
            if self.names.contains_key(address) {
                continue;
            }
            if let Some(start) = self.modules.find(Addr(*address)) {
                wanted.entry(start).or_default().push(Addr(*address));
            }
        }
        for (start, mut addresses) in wanted {
            addresses.sort_unstable();
            addresses.dedup();
            let names = self.modules.names(self.process, start, &addresses);
            let Some(module) = self.modules.get(start) else { continue };
            for (address, name) in addresses.into_iter().zip(names) {
                let frame = NativeFrame {
                    function: name.map(|name| demangle(&name)),
                    module: Some(module.name()),
                    address: module.object.virtual_of(address),
                };
                self.names.insert(address.0, frame);
            }
        }
    }

    fn stack(&mut self, walked: CodeAddresses) -> Arc<UnwoundStack> {
        if let Some(known) = self.stacks.get(&walked) {
            return Arc::clone(known);
        }
        if self.stacks.len() == MAX_STACKS {
            self.stacks.clear();
        }
        self.next += 1;
        let named = |address: &u64| {
            let unnamed = NativeFrame { function: None, module: None, address: *address };
            self.names.get(address).cloned().unwrap_or(unnamed)
        };
        let stack = Arc::new(UnwoundStack {
            number: self.next,
            frames: walked.0.iter().map(named).collect(),
            incomplete: walked.1.clone(),
        });
        self.stacks.insert(walked, Arc::clone(&stack));
        stack
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::super::{Unwinder, copy_stacks};
    use super::*;
    use crate::target::StoppedProcess;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn sleeping() -> (Child, Process, Vec<StackCopy>) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        let until = Instant::now() + TIMEOUT;
        while process.is_asleep(child.id()) != Some(true) {
            assert!(Instant::now() < until, "it never sleeps");
            std::thread::yield_now();
        }
        let (memory, mappings) = (process.memory(), process.mappings().unwrap());
        let (stop, registers) =
            StoppedProcess::with_registers(&process, Duration::from_secs(5)).unwrap();
        let stacks = copy_stacks(&memory, &mappings, registers);
        stop.end();
        (child, process, stacks)
    }

    #[test]
    fn repeated_stacks_are_shared_and_equal_those_of_dump() {
        let (mut child, process, stacks) = sleeping();
        let (memory, mappings) = (process.memory(), process.mappings().unwrap());
        let expected = Unwinder::new(&process, &memory, &mappings).unwind(&stacks);

        let mut unwinder = RepeatedUnwinder::new(&process, &memory);
        unwinder.prepare(|name| name.starts_with("libc.so"));
        let first = unwinder.unwind(&stacks);
        assert_eq!(first[0].frames, expected[0].frames);
        assert_eq!(first[0].incomplete, expected[0].incomplete);
        assert!(first[0].frames.len() > 2, "{first:?}");
        assert!(!unwinder.rules.is_empty());
        let second = unwinder.unwind(&stacks);
        assert!(Arc::ptr_eq(&first[0], &second[0]));
        let StackCopy { registers, .. } = &stacks[0];
        let cut = unwinder.unwind(&[StackCopy::new(*registers, vec![0; 4], true)]);
        assert_ne!(cut[0].number, first[0].number);
        assert!(cut[0].incomplete.as_deref().unwrap().contains("were copied"), "{cut:?}");
        assert_eq!(cut[0].frames[0], first[0].frames[0]);
        unwinder.max_time = Duration::ZERO;
        let late = unwinder.unwind(&stacks);
        assert_eq!(late[0].frames, first[0].frames[..1]);
        assert!(late[0].incomplete.as_deref().unwrap().contains("is over"), "{late:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn stack_copies_of_an_ended_process_keep_their_frames() {
        let (mut child, process, stacks) = sleeping();
        let (memory, until) = (process.memory(), Instant::now() + TIMEOUT);
        let mut unwinder = RepeatedUnwinder::new(&process, &memory);
        let before = unwinder.unwind(&stacks);
        child.kill().unwrap();
        // A zombie has empty mappings.
        while process.mappings().is_ok_and(|it| it.iter().next().is_some()) {
            assert!(Instant::now() < until, "it never ends");
            std::thread::yield_now();
        }
        unwinder.read = None;
        assert_eq!(unwinder.unwind(&stacks), before);
        let late = RepeatedUnwinder::new(&process, &memory).unwind(&stacks);
        assert!(late[0].incomplete.as_deref().unwrap().contains("had ended"), "{late:?}");
        child.wait().unwrap();
    }
}
