//! Whole stacks: steps, then names per library.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::modules::{NativeModule, NativeModules};
use super::names::demangle;
use super::stack_copy::StackCopy;
use super::step::{RETURN_ADDRESS, StepOutcome, step};
use crate::model::NativeFrame;
use crate::target::{Addr, Mappings, Memory, Process};

const MAX_DEPTH: usize = 8192;
/// Walks take milliseconds, unless a table is crafted to be slow.
const MAX_TIME: Duration = Duration::from_secs(20);

/// One thread's stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnwoundThread {
    /// Its id.
    pub thread: u32,
    /// Innermost first.
    pub frames: Vec<NativeFrame>,
    /// Why it ends early; `None` if complete.
    pub incomplete: Option<String>,
}

/// Unwinds stacks of one process.
pub struct Unwinder<'a> {
    process: &'a Process,
    modules: NativeModules<'a>,
}

struct UnnamedFrame {
    /// Of the call, not of the next instruction.
    address: Addr,
    module: Option<Addr>,
}

impl<'a> Unwinder<'a> {
    /// Reads code and tables of `process` through `memory`.
    pub fn new(
        process: &'a Process,
        memory: &'a dyn Memory,
        mappings: &'a Mappings,
    ) -> Unwinder<'a> {
        Unwinder { process, modules: NativeModules::new(memory, mappings.clone()) }
    }

    /// The stacks of these threads.
    pub fn unwind(&mut self, threads: &[StackCopy]) -> Vec<UnwoundThread> {
        let began = Instant::now();
        let walked: Vec<_> = threads.iter().map(|thread| self.walk(thread, began)).collect();
        let names = self.names(walked.iter().flat_map(|(frames, _)| frames));
        threads
            .iter()
            .zip(walked)
            .map(|(thread, (frames, incomplete))| UnwoundThread {
                thread: thread.registers.thread,
                frames: frames.iter().map(|raw| self.frame(raw, &names)).collect(),
                incomplete,
            })
            .collect()
    }

    fn walk(&mut self, thread: &StackCopy, began: Instant) -> (Vec<UnnamedFrame>, Option<String>) {
        let mut registers = thread.registers.values;
        let mut frames = Vec::new();
        let mut is_exact = true;
        while frames.len() < MAX_DEPTH {
            if began.elapsed() > MAX_TIME {
                let why = format!("the time for it, {} s, is over", MAX_TIME.as_secs());
                return (frames, Some(why));
            }
            let at = registers[RETURN_ADDRESS];
            // A call may be the last instruction of its function.
            let address = if is_exact { at } else { at.wrapping_sub(1) };
            let module = self.modules.find(Addr(address));
            frames.push(UnnamedFrame { address: Addr(address), module });
            let Some(module) = module.and_then(|start| self.modules.get(start)) else {
                let why = "its code is in no program or library, so its caller is unknown";
                return (frames, Some(why.to_owned()));
            };
            let outcome = match &module.tables {
                Ok(tables) => step(tables, thread, &registers, address).0,
                Err(why) => StepOutcome::Unknown(why.clone()),
            };
            match outcome {
                StepOutcome::Caller { registers: caller, is_exact: exact } => {
                    (registers, is_exact) = (caller, exact);
                }
                StepOutcome::Outermost => return (frames, None),
                StepOutcome::Unknown(why) => return (frames, Some(why)),
            }
        }
        (frames, Some(format!("it has more than {MAX_DEPTH} frames")))
    }

    fn names<'r>(&self, frames: impl Iterator<Item = &'r UnnamedFrame>) -> BTreeMap<Addr, String> {
        let mut wanted: BTreeMap<Addr, Vec<Addr>> = BTreeMap::new();
        for frame in frames {
            if let Some(start) = frame.module {
                wanted.entry(start).or_default().push(frame.address);
            }
        }
        let mut names = BTreeMap::new();
        for (start, mut addresses) in wanted {
            addresses.sort_unstable();
            addresses.dedup();
            let Some(module) = self.modules.get(start) else { continue };
            let Ok(found) = module.object.functions_at(self.process, &addresses) else { continue };
            let known = addresses.into_iter().zip(found);
            names.extend(known.filter_map(|(at, name)| Some((at, demangle(&name?)))));
        }
        names
    }

    fn frame(&self, raw: &UnnamedFrame, names: &BTreeMap<Addr, String>) -> NativeFrame {
        let module = raw.module.and_then(|start| self.modules.get(start));
        NativeFrame {
            function: names.get(&raw.address).cloned(),
            module: module.map(NativeModule::name),
            address: module.map_or(raw.address.0, |it| it.object.virtual_of(raw.address)),
        }
    }
}
