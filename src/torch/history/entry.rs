//! An entry of the ring buffer (`TraceEntry`).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::clock::TraceClock;
use super::ring::RingState;
use crate::model::{HistoryAction, HistoryEvent, PoolId};
use crate::target::{Addr, Field, Memory};

/// After `mempool_` since torch 2.9.
const TIMES: [usize; 2] = [0x30, 0x40];
/// `compile_context_`, `user_metadata_`, `internal_metadata_`, by version.
const MAX_STRINGS: usize = 3;
/// libstdc++, cxx11 ABI.
const STRING: usize = 0x20;
const IN_PLACE: u64 = 15;
const MAX_TEXT: u64 = 1 << 16;
const SAMPLES: u64 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryLayout {
    time: usize,
    strings: usize,
}

#[derive(Debug, Clone, Copy)]
enum StoredText {
    InPlace([u8; IN_PLACE as usize], u8),
    Elsewhere(Addr, u64),
}

#[derive(Debug)]
pub(super) struct RawEntry {
    action: HistoryAction,
    address: u64,
    size: u64,
    stream: u64,
    time: i64,
    pub(super) context: Addr,
    pool: Option<PoolId>,
    texts: [Option<StoredText>; 2],
}

impl EntryLayout {
    pub(super) fn size(self) -> usize {
        self.time + 8 + self.strings * STRING
    }

    /// `action_` i32, `device_` i8 (i32 up to torch 2.2), `addr_`, `context_` (pointer and control
    /// block), `stream_`, `size_`; `None` if invalid.
    pub(super) fn decode(
        self,
        bytes: &[u8],
        at: Addr,
        index: u32,
        clock: &TraceClock,
    ) -> Option<RawEntry> {
        let word = |at: usize| Field::<u64>::at(at).get(bytes);
        let action = Field::<u32>::at(0).get(bytes)?;
        let action = *HistoryAction::ALL.get(action as usize)?;
        let device = Field::<i8>::at(4).get(bytes)?;
        let [context, control] = [Addr(word(0x10)?), Addr(word(0x18)?)];
        let is_pointer = |at: Addr| at.0 == 0 || (at.is_plausible() && at.0.is_multiple_of(8));
        let time = Field::<i64>::at(self.time).get(bytes)?;
        if u32::try_from(device) != Ok(index)
            || !is_pointer(context)
            || !is_pointer(control)
            || (context.0 == 0) != (control.0 == 0)
            || !clock.can_be(time)
        {
            return None;
        }
        let mut texts = [None; 2];
        for number in 0..self.strings {
            let offset = self.time + 8 + number * STRING;
            let text = string_at(bytes.get(offset..)?, at + offset as u64)?;
            if let Some(place) = texts.get_mut(number) {
                *place = Some(text);
            }
        }
        let (stream, size) = (word(0x20)?, word(0x28)?);
        let pool = match self.time == TIMES[1] {
            true => Some(PoolId(word(0x30)?, word(0x38)?)),
            false => None,
        };
        Some(RawEntry { action, address: word(8)?, size, stream, time, context, pool, texts })
    }
}

fn string_at(bytes: &[u8], at: Addr) -> Option<StoredText> {
    let word = |at: usize| Field::<u64>::at(at).get(bytes);
    let (start, len) = (Addr(word(0)?), word(8)?);
    if start == at + 0x10 {
        let content = *bytes.get(0x10..)?.first_chunk::<{ IN_PLACE as usize }>()?;
        return (len <= IN_PLACE).then_some(StoredText::InPlace(content, len as u8));
    }
    let capacity = word(0x10)?;
    let sound =
        start.is_plausible() && len <= capacity && capacity > IN_PLACE && capacity < 1 << 40;
    sound.then_some(StoredText::Elsewhere(start, len))
}

impl RawEntry {
    pub(super) fn event(
        &self,
        memory: &dyn Memory,
        convert: &dyn Fn(i64) -> i64,
        strings: &mut StringReader,
    ) -> HistoryEvent {
        let [compile_context, user_metadata] =
            self.texts.map(|text| text.map(|text| strings.text(memory, text)));
        HistoryEvent {
            action: self.action,
            address: self.address,
            size: self.size,
            stream: self.stream,
            time_us: convert(self.time) / 1000,
            stack: None,
            pool: self.pool,
            compile_context,
            user_metadata,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct StringReader {
    kept: FxHashMap<Vec<u8>, Arc<str>>,
}

impl StringReader {
    fn text(&mut self, memory: &dyn Memory, text: StoredText) -> Arc<str> {
        let elsewhere;
        let bytes = match &text {
            StoredText::InPlace(content, len) => {
                content.get(..usize::from(*len)).unwrap_or_default()
            }
            StoredText::Elsewhere(start, len) => {
                elsewhere = memory.vec_up_to(*start, (*len).min(MAX_TEXT) as usize);
                &elsewhere
            }
        };
        if let Some(known) = self.kept.get(bytes) {
            return Arc::clone(known);
        }
        let text: Arc<str> = String::from_utf8_lossy(bytes).into();
        self.kept.insert(bytes.to_vec(), Arc::clone(&text));
        text
    }
}

pub(super) fn find_layout(
    memory: &dyn Memory,
    state: &RingState,
    index: u32,
    clock: &TraceClock,
) -> Option<EntryLayout> {
    let fits = |layout: &EntryLayout| {
        let size = layout.size() as u64;
        if !state.bytes().is_multiple_of(size) {
            return false;
        }
        let count = state.bytes() / size;
        let samples = count.min(SAMPLES);
        [0, count - samples].into_iter().all(|first| {
            let begin = state.begin() + first * size;
            memory.vec(begin, (samples * size) as usize).is_ok_and(|bytes| {
                (0..).zip(bytes.chunks_exact(size as usize)).all(|(number, entry)| {
                    layout.decode(entry, begin + number * size, index, clock).is_some()
                })
            })
        })
    };
    let candidates = TIMES
        .into_iter()
        .flat_map(|time| (0..=MAX_STRINGS).map(move |strings| EntryLayout { time, strings }));
    let found: Vec<EntryLayout> = candidates.filter(fits).collect();
    match found[..] {
        [one] => Some(one),
        _ => None,
    }
}
