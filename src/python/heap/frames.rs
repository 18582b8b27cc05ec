//! References of suspended generators' and tracebacks' frames.

use super::{HeapObject, ObjectHeap};
use crate::python::layouts::GeneratorFrame;
use crate::target::{Addr, Field};

const MAX_SLOTS: u64 = 1 << 16;
/// Maximum distance of an object's own frame.
const OWN_FRAME: u64 = 256;
/// Borrowed, immortal, or a number (3.14+, `Py_TAG_REFCNT`).
const UNCOUNTED: u64 = 1;
/// `gi_frame_state`, handled exception: before a generator's frame (`_PyGenObject_HEAD`, 3.11+).
const STATE_BEFORE: u64 = 5;
const EXCEPTION_BEFORE: u64 = 32;
/// `PyFrameObject.f_back`, `f_trace` (3.11+).
const BACK_AND_TRACE: [Field<Addr>; 2] = [Field::at(16), Field::at(32)];
/// `PyFrameObject.f_gen` (up to 3.10).
const GENERATOR_OF_FRAME: Field<Addr> = Field::at(88);

#[derive(Debug, Clone, Copy)]
enum ValuesEnd {
    /// `stackpointer`.
    Pointer(Field<Addr>),
    /// `f_stacktop`, else `f_valuestack`: a finished function has only local variables.
    Either(Field<Addr>, Field<Addr>),
    /// `f_valuestack` and `f_stackdepth`, which is negative while the frame runs.
    Depth { stack: Field<Addr>, depth: Field<i32> },
    /// `stacktop`: number of values, from the first local variable.
    Index(Field<i32>),
}

/// References of a frame besides its values.
#[derive(Debug)]
struct FrameReferences {
    since: u8,
    fields: &'static [Field<Addr>],
    end: ValuesEnd,
    /// First and last state of a suspended generator (`enum _framestate`, 3.11+).
    waits: (u8, u8),
    /// A generator's handled exception; since 3.11 before its frame.
    handles: &'static [Field<Addr>],
}

const OWNS: [FrameReferences; 6] = [
    FrameReferences {
        since: 15,
        fields: &[Field::at(16), Field::at(40), Field::at(48)],
        end: ValuesEnd::Pointer(Field::at(64)),
        waits: (0, 3),
        handles: &[],
    },
    FrameReferences {
        since: 14,
        fields: &[Field::at(16), Field::at(40), Field::at(48)],
        end: ValuesEnd::Pointer(Field::at(64)),
        waits: (253, 255),
        handles: &[],
    },
    // Function, class namespace, frame object.
    FrameReferences {
        since: 12,
        fields: &[Field::at(16), Field::at(40), Field::at(48)],
        end: ValuesEnd::Index(Field::at(64)),
        waits: (253, 255),
        handles: &[],
    },
    FrameReferences {
        since: 11,
        fields: &[Field::at(0), Field::at(24), Field::at(40)],
        end: ValuesEnd::Index(Field::at(64)),
        waits: (254, 255),
        handles: &[],
    },
    // Caller, builtins, globals, class namespace, trace function.
    FrameReferences {
        since: 10,
        fields: &[Field::at(24), Field::at(40), Field::at(48), Field::at(56), Field::at(72)],
        end: ValuesEnd::Depth { stack: Field::at(64), depth: Field::at(80) },
        waits: (0, 0),
        handles: &[Field::at(56), Field::at(64), Field::at(72)],
    },
    FrameReferences {
        since: 0,
        fields: &[Field::at(24), Field::at(40), Field::at(48), Field::at(56), Field::at(80)],
        end: ValuesEnd::Either(Field::at(72), Field::at(64)),
        waits: (0, 0),
        handles: &[Field::at(64), Field::at(72), Field::at(80)],
    },
];

impl ObjectHeap<'_> {
    fn owns(&self) -> &'static FrameReferences {
        let minor = self.layout.minor;
        OWNS.iter().find(|owns| owns.since <= minor).unwrap_or(&OWNS[0])
    }

    pub(super) fn is_waiting(&self, frame: Addr) -> bool {
        let (from, to) = self.owns().waits;
        let state = self.memory().bytes::<1>(frame - STATE_BEFORE);
        state.is_ok_and(|[state]| (from..=to).contains(&state))
    }

    /// Also returns whether the function has returned: then the object owns the frame. Up to 3.10 a
    /// generator owns its frame.
    pub(super) fn frame_of_object(&self, at: Addr) -> Option<(Addr, bool)> {
        let memory = self.memory();
        match self.layout.heap.frame_of_object {
            Some(field) => {
                let frame = memory.pointer(field.in_target(at)).ok()?;
                Some((frame, (at.0..at.0 + OWN_FRAME).contains(&frame.0)))
            }
            None => {
                let generator = memory.pointer(GENERATOR_OF_FRAME.in_target(at)).ok()?;
                Some((at, generator == Addr(0)))
            }
        }
    }

    /// Whether its function has returned.
    pub fn has_returned(&self, frame: &HeapObject) -> bool {
        self.frame_of_object(frame.at).is_some_and(|(_, returned)| returned)
    }

    pub(super) fn owned_by_generator(&self, at: Addr, take: &mut dyn FnMut(Addr)) -> Option<()> {
        match self.layout.heap.generator {
            GeneratorFrame::Pointer(field) => {
                for field in self.owns().handles.iter().chain([&field]) {
                    take(self.memory().pointer(field.in_target(at)).ok()?);
                }
            }
            GeneratorFrame::Inside(offset) => {
                let frame = at + offset as u64;
                if self.is_waiting(frame) {
                    take(self.memory().pointer(frame - EXCEPTION_BEFORE).ok()?);
                    self.owned_by_frame(frame, take)?;
                }
            }
        }
        Some(())
    }

    pub(super) fn owned_by_frame_object(&self, at: Addr, take: &mut dyn FnMut(Addr)) -> Option<()> {
        if self.layout.heap.frame_of_object.is_none() {
            return self.owned_by_frame(at, take);
        }
        for field in BACK_AND_TRACE {
            let field = self.layout.object.shift(field);
            take(self.memory().pointer(field.in_target(at)).ok()?);
        }
        match self.frame_of_object(at)? {
            (frame, true) => self.owned_by_frame(frame, take),
            _ => Some(()),
        }
    }

    /// Stack values after the local variables: iterators, awaited objects.
    pub(super) fn stack_of_frame(&self, frame: Addr, locals: Option<usize>) -> Option<Vec<Addr>> {
        let values = self.values_of_frame(frame)?;
        let stack = values.get(8 * locals?..)?.chunks_exact(8);
        let value =
            |value: &[u8]| Field::<u64>::at(0).get(value).map(|value| Addr(value & !super::TAG));
        Some(stack.filter_map(value).filter(|value| value.is_plausible()).collect())
    }

    fn owned_by_frame(&self, frame: Addr, take: &mut dyn FnMut(Addr)) -> Option<()> {
        let values = self.values_of_frame(frame)?;
        for field in self.owns().fields {
            self.counted(self.memory().pointer(field.in_target(frame)).ok()?, take);
        }
        for value in values.chunks_exact(8) {
            self.counted(Field::<Addr>::at(0).get(value)?, take);
        }
        Some(())
    }

    fn values_of_frame(&self, frame: Addr) -> Option<Vec<u8>> {
        let memory = self.memory();
        let owns = self.owns();
        let start = frame + self.layout.heap.frame_locals as u64;
        let end = match owns.end {
            ValuesEnd::Pointer(field) => memory.pointer(field.in_target(frame)).ok()?,
            ValuesEnd::Either(top, stack) => match memory.pointer(top.in_target(frame)).ok()? {
                Addr(0) => memory.pointer(stack.in_target(frame)).ok()?,
                top => top,
            },
            ValuesEnd::Depth { stack, depth } => {
                let depth = memory.u32(frame + depth.offset as u64).ok()? as i32;
                memory.pointer(stack.in_target(frame)).ok()?
                    + 8 * u64::from(depth.max(0).unsigned_abs())
            }
            ValuesEnd::Index(field) => {
                let index = memory.u32(frame + field.offset as u64).ok()? as i32;
                start + 8 * u64::try_from(index).ok()?
            }
        };
        let slots = end.0.checked_sub(start.0)? / 8;
        if slots > MAX_SLOTS {
            return None;
        }
        memory.vec(start, 8 * slots as usize).ok()
    }

    fn counted(&self, reference: Addr, take: &mut dyn FnMut(Addr)) {
        if reference.0 & UNCOUNTED == 0 && reference.is_plausible() {
            take(Addr(reference.0 & !super::TAG));
        }
    }
}
