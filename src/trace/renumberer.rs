//! Renumbers records for another file, with the definitions they use.

use rustc_hash::FxHashMap;

use crate::model::{
    AllocationSite, AllocationSource, Definition, FollowedChange, Frame, FrameId, FunctionId,
    Keyframe, NativeFrames, Record, SiteId, SourceText, StackId, StackNode, StackReading,
    StackTable, ThreadId,
};

/// Definitions and source texts of a stream of records.
#[derive(Debug, Default)]
pub struct DefinitionTables {
    table: StackTable,
    sources: FxHashMap<FunctionId, SourceText>,
}

impl DefinitionTables {
    /// Keeps a definition or source text; `false` for any other record.
    pub fn on_definition(&mut self, record: &Record) -> bool {
        match record {
            Record::Definition(Definition::Reset) => *self = DefinitionTables::default(),
            Record::Definition(definition) => {
                // A definition that does not fit is missing for its users.
                let _ = self.table.define(definition.clone());
            }
            Record::Source(source) => {
                self.sources.insert(source.function, source.clone());
            }
            _ => return false,
        }
        true
    }

    /// Functions, frames, stacks, threads and sites.
    pub fn table(&self) -> &StackTable {
        &self.table
    }

    /// The source text of a function.
    pub fn source(&self, function: FunctionId) -> Option<&SourceText> {
        self.sources.get(&function)
    }
}

/// Renumbers records.
///
/// Streams share equal definitions; call [`Renumberer::reset`] between them.
#[derive(Debug, Default)]
pub struct Renumberer {
    to: DefinitionTables,
    functions: NewIds,
    frames: NewIds,
    stacks: NewIds,
    threads: NewIds,
    sites: NewIds,
}

#[derive(Debug, Default)]
struct NewIds(Vec<Option<u32>>);

impl NewIds {
    fn get(&self, old: u32) -> Option<u32> {
        self.0.get(old as usize).copied().flatten()
    }

    fn set(&mut self, old: u32, new: u32) {
        if self.0.len() <= old as usize {
            self.0.resize(old as usize + 1, None);
        }
        self.0[old as usize] = Some(new);
    }

    fn forget(&mut self, old: u32) {
        if let Some(new) = self.0.get_mut(old as usize) {
            *new = None;
        }
    }
}

impl Renumberer {
    /// Without numbers yet.
    pub fn new() -> Renumberer {
        Renumberer::default()
    }

    /// The definitions behind the new numbers.
    pub fn names(&self) -> &DefinitionTables {
        &self.to
    }

    /// Begins another stream of old numbers.
    pub fn reset(&mut self) {
        for numbers in [
            &mut self.functions,
            &mut self.frames,
            &mut self.stacks,
            &mut self.threads,
            &mut self.sites,
        ] {
            numbers.0.clear();
        }
    }

    /// `record` redefines old numbers: a thread's new name, or a reset.
    pub fn redefined(&mut self, record: &Record) {
        match record {
            Record::Definition(Definition::Thread(id, _)) => self.threads.forget(id.0),
            Record::Definition(Definition::Reset) => self.reset(),
            _ => {}
        }
    }

    /// Appends `record` of stream `from` to `out`, after definitions and source texts that it uses
    /// first. Drops uses unknown to `from`. Definitions themselves go to [`DefinitionTables`].
    pub fn rewrite(&mut self, from: &DefinitionTables, record: &Record, out: &mut Vec<Record>) {
        let rewritten = match record {
            Record::Definition(_) | Record::Source(_) => return,
            Record::Sample(sample) => {
                let mut sample = sample.clone();
                sample.threads.retain_mut(|entry| {
                    let known = (self.thread(from, entry.thread), self.stack(from, entry.stack));
                    let (Some(thread), Some(stack)) = known else { return false };
                    (entry.thread, entry.stack) = (thread, stack);
                    true
                });
                Record::Sample(sample)
            }
            Record::Events(batch) => {
                let mut batch = batch.clone();
                for event in &mut batch.events {
                    event.site = event.site.and_then(|site| self.site(from, site));
                }
                Record::Events(batch)
            }
            Record::Followed(batch) => {
                let mut batch = batch.clone();
                for change in &mut batch.changes {
                    self.followed(from, change);
                }
                Record::Followed(batch)
            }
            Record::Keyframe(inherited) => Record::Keyframe(self.keyframe(from, inherited)),
            Record::OomException(oom_exception) => {
                let mut oom_exception = oom_exception.clone();
                if let Some(error) = &mut oom_exception.error {
                    error.thread = error.thread.and_then(|thread| self.thread(from, thread));
                    error.stack = error.stack.and_then(|stack| self.stack(from, stack));
                }
                Record::OomException(oom_exception)
            }
            other => other.clone(),
        };
        for definition in self.to.table.take_definitions() {
            let function = match &definition {
                Definition::Function(id, _) => Some(*id),
                _ => None,
            };
            out.push(Record::Definition(definition));
            let source = function.and_then(|id| self.to.sources.get(&id));
            out.extend(source.cloned().map(Record::Source));
        }
        out.push(rewritten);
    }

    fn followed(&mut self, from: &DefinitionTables, change: &mut FollowedChange) {
        let listed = change.threads.len();
        change.threads.retain_mut(|entry| {
            let Some(thread) = self.thread(from, entry.thread) else { return false };
            entry.thread = thread;
            for reading in [&mut entry.before, &mut entry.after] {
                if let StackReading::Whole(stack) = *reading {
                    let known = self.stack(from, stack);
                    *reading = known.map_or(StackReading::NotRead, StackReading::Whole);
                }
            }
            true
        });
        change.others_possible |= change.threads.len() < listed;
    }

    fn keyframe(&mut self, from: &DefinitionTables, inherited: &Keyframe) -> Keyframe {
        let mut inherited = inherited.clone();
        for allocation_source in &mut inherited.allocation_sources {
            match allocation_source {
                AllocationSource::Site(site) => match self.site(from, *site) {
                    Some(known) => *site = known,
                    None => *allocation_source = AllocationSource::Lost,
                },
                AllocationSource::Observed { shares, .. } => {
                    for share in shares {
                        share.by = share.by.and_then(|(thread, stack)| {
                            Some((self.thread(from, thread)?, self.stack(from, stack)?))
                        });
                    }
                }
                AllocationSource::Before
                | AllocationSource::BeforeOwned(_)
                | AllocationSource::NoEvent
                | AllocationSource::Lost
                | AllocationSource::NotTaken => {}
            }
        }
        inherited
    }

    fn function(&mut self, from: &DefinitionTables, old: FunctionId) -> Option<FunctionId> {
        if let Some(new) = self.functions.get(old.0) {
            return Some(FunctionId(new));
        }
        let new = self.to.table.function(from.table.get_function(old)?.clone());
        self.functions.set(old.0, new.0);
        if let Some(source) = from.source(old) {
            self.to.sources.insert(new, SourceText { function: new, ..source.clone() });
        }
        Some(new)
    }

    fn frame(&mut self, from: &DefinitionTables, old: FrameId) -> Option<FrameId> {
        if let Some(new) = self.frames.get(old.0) {
            return Some(FrameId(new));
        }
        let Frame { function, line } = from.table.get_frame(old)?;
        let function = self.function(from, function)?;
        let new = self.to.table.frame(Frame { function, line });
        self.frames.set(old.0, new.0);
        Some(new)
    }

    fn stack(&mut self, from: &DefinitionTables, old: StackId) -> Option<StackId> {
        // Outwards to the first numbered stack, then back.
        let mut missing: Vec<(StackId, StackNode)> = Vec::new();
        let mut next = Some(old);
        let mut parent = None;
        while let Some(stack) = next {
            if let Some(new) = self.stacks.get(stack.0) {
                parent = Some(StackId(new));
                break;
            }
            let node = from.table.get_stack(stack)?;
            missing.push((stack, node));
            next = node.parent;
        }
        for (stack, node) in missing.into_iter().rev() {
            let frame = self.frame(from, node.frame)?;
            let module = node.module.and_then(|module| self.function(from, module));
            let new = self.to.table.node(StackNode { parent, frame, module });
            self.stacks.set(stack.0, new.0);
            parent = Some(new);
        }
        parent
    }

    fn thread(&mut self, from: &DefinitionTables, old: ThreadId) -> Option<ThreadId> {
        if let Some(new) = self.threads.get(old.0) {
            return Some(ThreadId(new));
        }
        let thread = from.table.get_thread(old)?;
        // A thread without Python is identified by its whole description.
        let same = self.to.table.threads().find(|(_, known)| *known == thread).map(|(id, _)| id);
        let new = same.unwrap_or_else(|| self.to.table.thread(thread.clone()));
        self.threads.set(old.0, new.0);
        Some(new)
    }

    fn site(&mut self, from: &DefinitionTables, old: SiteId) -> Option<SiteId> {
        if let Some(new) = self.sites.get(old.0) {
            return Some(SiteId(new));
        }
        let site = from.table.get_site(old)?.clone();
        let thread = self.thread(from, site.thread)?;
        let mut stack = |old: Option<StackId>| match old {
            Some(old) => self.stack(from, old).map(Some),
            None => Some(None),
        };
        let native = match site.native {
            // The site is valid without them.
            NativeFrames::Stack(native) => {
                stack(Some(native)).flatten().map_or(NativeFrames::Lost, NativeFrames::Stack)
            }
            other => other,
        };
        let (stack, forward) = (stack(site.stack)?, stack(site.forward)?);
        let new = self.to.table.site(AllocationSite { thread, stack, forward, native, ..site });
        self.sites.set(old.0, new.0);
        Some(new)
    }
}
