//! Reads the job's own allocation history.

use std::collections::BTreeMap;
use std::time::Duration;

use rustc_hash::FxHashMap;

use super::readers::{TargetReaders, TorchState};
use crate::model::{
    AllocationHistory, AllocatorSnapshot, CudaIndex, DeviceHistory, HistoryFrame, HistoryStack,
};
use crate::python::CodeReader;
use crate::torch::{AllocatorError, RecordedFrame, RecordedHistory, RecordedStack};

const SNAPSHOT_TIMEOUT: Duration = Duration::from_millis(500);

/// Why the history cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum HistoryError {
    #[error("no PyTorch with CUDA is loaded in it")]
    NoTorch,
    #[error("its allocator cannot be read: {0}")]
    Refused(String),
    #[error(transparent)]
    Torch(#[from] AllocatorError),
    #[error("the code objects of CPython {version} cannot be read: its layout is not known")]
    NoCode { version: String },
    #[error(
        "the job records no history of its allocations: it has not called torch.cuda.memory._record_memory_history"
    )]
    NotRecorded,
}

/// Reads what `torch.cuda.memory._record_memory_history` recorded, without a stop.
pub fn read_history(readers: &mut TargetReaders) -> Result<AllocationHistory, HistoryError> {
    readers.refresh();
    let torch = match &mut readers.torch {
        TorchState::Attached(torch) => torch,
        TorchState::NotLoaded => return Err(HistoryError::NoTorch),
        TorchState::Refused(error) => return Err(HistoryError::Refused(error.to_string())),
    };
    let python = readers.python.as_ref().ok_or(HistoryError::NoTorch)?;
    let codes = python
        .code_reader(&readers.process)
        .ok_or_else(|| HistoryError::NoCode { version: python.version().to_owned() })?;
    let devices: Vec<_> = torch.devices().collect();
    if devices.is_empty() {
        return Err(HistoryError::Torch(AllocatorError::NotInitialized));
    }
    torch.set_timeout(SNAPSHOT_TIMEOUT);
    let mut joined = HistoryJoiner::new(codes);
    let mut is_recording = false;
    for device in devices {
        let mut keep = |recorded: &RecordedHistory| joined.keep(recorded);
        let (snapshot, recorded) = torch.history(device, &mut keep)?;
        is_recording |= recorded.has_recorder
            || !recorded.events.is_empty()
            || !recorded.block_stacks.is_empty();
        joined.add(device, snapshot, recorded);
    }
    if !is_recording {
        return Err(HistoryError::NotRecorded);
    }
    Ok(joined.history)
}

struct HistoryJoiner {
    history: AllocationHistory,
    codes: CodeReader,
    named: FxHashMap<RecordedFrame, Option<HistoryFrame>>,
    frames: FxHashMap<Option<HistoryFrame>, u32>,
    stacks: FxHashMap<HistoryStack, u32>,
}

impl HistoryJoiner {
    fn new(codes: CodeReader) -> HistoryJoiner {
        HistoryJoiner {
            history: AllocationHistory::default(),
            codes,
            named: FxHashMap::default(),
            frames: FxHashMap::default(),
            stacks: FxHashMap::default(),
        }
    }

    fn keep(&mut self, recorded: &RecordedHistory) {
        self.codes.forget();
        self.named.clear();
        for frame in recorded.stacks.iter().flat_map(|stack| &stack.frames) {
            let codes = &mut self.codes;
            self.named.entry(*frame).or_insert_with(|| {
                let code = codes.at(frame.code, frame.instruction)?;
                Some(HistoryFrame { name: code.name, file: code.file, line: code.line })
            });
        }
    }

    fn frame(&mut self, frame: &RecordedFrame) -> u32 {
        let named = self.named.get(frame).cloned().flatten();
        if named.is_none() {
            self.history.unreadable_frames += 1;
        }
        let frames = &mut self.history.frames;
        *self.frames.entry(named).or_insert_with_key(|named| {
            frames.push(named.clone().unwrap_or_else(|| HistoryFrame {
                name: "<unreadable>".into(),
                file: "??".into(),
                line: 0,
            }));
            frames.len() as u32 - 1
        })
    }

    fn stack(&mut self, stack: &RecordedStack) -> u32 {
        let frames = stack.frames.iter().map(|frame| self.frame(frame)).collect();
        let stack = HistoryStack { frames, native: stack.native, has_script: stack.has_script };
        let stacks = &mut self.history.stacks;
        *self.stacks.entry(stack).or_insert_with_key(|stack| {
            stacks.push(stack.clone());
            stacks.len() as u32 - 1
        })
    }

    fn add(
        &mut self,
        device: CudaIndex,
        snapshot: Option<AllocatorSnapshot>,
        recorded: RecordedHistory,
    ) {
        let mut numbers: FxHashMap<u32, u32> = FxHashMap::default();
        let mut number = |joiner: &mut HistoryJoiner, stack: u32| {
            if let Some(number) = numbers.get(&stack) {
                return Some(*number);
            }
            let number = joiner.stack(recorded.stacks.get(stack as usize)?);
            numbers.insert(stack, number);
            Some(number)
        };
        let mut events = recorded.events;
        for event in &mut events {
            event.stack = event.stack.and_then(|stack| number(self, stack));
        }
        let mut by_address = |joiner: &mut HistoryJoiner, stacks: Vec<(u64, u32)>| {
            let named = stacks.into_iter();
            named
                .filter_map(|(address, stack)| Some((address, number(joiner, stack)?)))
                .collect::<BTreeMap<_, _>>()
        };
        let block_stacks = by_address(self, recorded.block_stacks);
        let segment_stacks = by_address(self, recorded.segment_stacks);
        self.history.unreadable_stacks += recorded.unreadable_stacks;
        self.history.devices.push(DeviceHistory {
            device,
            max_entries: recorded.max_entries,
            events,
            overwritten: recorded.overwritten,
            beyond_limit: recorded.beyond_limit,
            snapshot,
            block_stacks,
            segment_stacks,
        });
    }
}
