//! A file's definitions and their numbers.

use super::exact;
use super::records::{self, WireBlockHead, appended, structure};
use super::varint::PayloadCursor;
use super::{MalformedPayload, tag};
use crate::model::{
    Definition, Frame, FrameId, Function, FunctionId, NativeFrames, SiteId, SourceText, StackId,
    StackNode, Thread, ThreadId,
};
use crate::trace::id_map::IdMap;

/// Next unused in the current block.
#[derive(Debug, Clone, Copy, Default)]
struct NextIds {
    function: u32,
    frame: u32,
    stack: u32,
}

/// From the file's to the reader's.
#[derive(Debug, Default)]
pub(crate) struct ReaderIds {
    functions: IdMap,
    frames: IdMap,
    pub(super) stacks: IdMap,
    pub(super) threads: IdMap,
    pub(super) sites: IdMap,
    next: NextIds,
}

impl ReaderIds {
    /// The head has the first numbers.
    pub(super) fn begin_block(&mut self, head: &WireBlockHead) {
        self.next = NextIds { function: head.functions, frame: head.frames, stack: head.stacks };
    }

    /// `None`: it uses a lost definition.
    pub(super) fn definition(
        &mut self,
        tag: u8,
        from: &mut PayloadCursor<'_>,
    ) -> Result<Option<Definition>, MalformedPayload> {
        match tag {
            tag::FUNCTION => self.function(from).map(Some),
            tag::FRAME => self.frame(from),
            tag::STACK => self.stack(from),
            tag::SITE => self.site(from),
            _ => self.thread(from).map(Some),
        }
    }

    fn function(&mut self, from: &mut PayloadCursor<'_>) -> Result<Definition, MalformedPayload> {
        let function: records::WireFunction<'_> = structure(from)?;
        let is_native = appended::<bool>(from)?;
        let number = take(&mut self.next.function)?;
        Ok(Definition::Function(
            FunctionId(self.functions.define(number).ok_or(TWICE)?),
            Function {
                name: function.name.into(),
                file: function.file.into(),
                first_line: function.first_line,
                last_line: function.last_line,
                is_native: is_native.unwrap_or_default(),
            },
        ))
    }

    fn frame(
        &mut self,
        from: &mut PayloadCursor<'_>,
    ) -> Result<Option<Definition>, MalformedPayload> {
        let frame: records::WireFrame = structure(from)?;
        let number = take(&mut self.next.frame)?;
        let Some(function) = self.functions.get(frame.function) else {
            return Ok(None);
        };
        Ok(Some(Definition::Frame(
            FrameId(self.frames.define(number).ok_or(TWICE)?),
            Frame { function: FunctionId(function), line: frame.line },
        )))
    }

    fn stack(
        &mut self,
        from: &mut PayloadCursor<'_>,
    ) -> Result<Option<Definition>, MalformedPayload> {
        let node: records::WireStack = structure(from)?;
        let module = appended::<u32>(from)?;
        let number = take(&mut self.next.stack)?;
        let parent = match node.parent.map(|p| self.stacks.get(p)) {
            Some(None) => return Ok(None),
            Some(Some(parent)) => Some(StackId(parent)),
            None => None,
        };
        let Some(frame) = self.frames.get(node.frame).map(FrameId) else {
            return Ok(None);
        };
        Ok(Some(Definition::Stack(
            StackId(self.stacks.define(number).ok_or(TWICE)?),
            StackNode {
                parent,
                frame,
                // The stack is valid without its name.
                module: module.and_then(|number| self.functions.get(number)).map(FunctionId),
            },
        )))
    }

    fn site(
        &mut self,
        from: &mut PayloadCursor<'_>,
    ) -> Result<Option<Definition>, MalformedPayload> {
        let site: exact::WireAllocationSite<'_> = structure(from)?;
        let native = match appended::<Option<u32>>(from)? {
            None => NativeFrames::NotTaken,
            // The site is valid without them.
            Some(native) => native
                .and_then(|number| self.stacks.get(number))
                .map_or(NativeFrames::Lost, |stack| NativeFrames::Stack(StackId(stack))),
        };
        let stack = |number: Option<u32>| match number.map(|n| self.stacks.get(n)) {
            Some(None) => None,
            Some(Some(stack)) => Some(Some(StackId(stack))),
            None => Some(None),
        };
        let found = (self.threads.get(site.thread), stack(site.stack), stack(site.forward));
        let (Some(thread), Some(stack), Some(forward)) = found else { return Ok(None) };
        let number = self.sites.define(site.number).ok_or(TWICE)?;
        let described = site.with(ThreadId(thread), stack, forward, native)?;
        Ok(Some(Definition::Site(SiteId(number), described)))
    }

    fn thread(&mut self, from: &mut PayloadCursor<'_>) -> Result<Definition, MalformedPayload> {
        let thread: records::WireThread<'_> = structure(from)?;
        let known = self.threads.get(thread.number);
        let number = known.or_else(|| self.threads.define(thread.number));
        Ok(Definition::Thread(
            ThreadId(number.ok_or(TWICE)?),
            Thread {
                os_id: thread.os_id,
                python_id: thread.python_id,
                name: thread.name.map(Into::into),
                main: thread.main,
            },
        ))
    }

    /// `None`: its function was lost.
    pub(super) fn source(&self, source: records::WireSource<'_>) -> Option<SourceText> {
        Some(SourceText {
            function: FunctionId(self.functions.get(source.function)?),
            first_line: source.first_line,
            text: source.text.into(),
        })
    }
}

const TWICE: MalformedPayload = MalformedPayload("a number is defined twice");

fn take(next: &mut u32) -> Result<u32, MalformedPayload> {
    let number = *next;
    *next = number.checked_add(1).ok_or(MalformedPayload("numbers have run out"))?;
    Ok(number)
}
