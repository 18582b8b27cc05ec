//! `torch.cuda.memory._snapshot()` of a moment, for pytorch.org/memory_viz and
//! torch/cuda/_memory_viz.py.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::pickle::{PickleMemo, PickleWriter};
use super::{ExportedFrame, frames};
use crate::analysis::{BlockEvent, DeviceBlocks, MomentBlocks, Profile};
use crate::model::{Block, BlockState, CudaIndex, Segment};
use crate::render::shared::OutputError;

/// A damaged recording may name any number of devices.
const MAX_DEVICES: u32 = 1024;

/// Writes the segments, blocks and events of a moment.
pub fn memory_viz(
    out: &mut dyn Write,
    profile: &Profile,
    moment: &MomentBlocks,
) -> Result<(), OutputError> {
    let mut writer = VizWriter {
        pickle: PickleWriter::new(out)?,
        frames: BTreeMap::new(),
        stacks: vec![None; moment.stacks.len()],
        profile,
        moment,
    };
    writer.snapshot()?;
    Ok(writer.pickle.finish()?)
}

/// Writes each frame and stack once, then its number.
struct VizWriter<'a> {
    pickle: PickleWriter<'a>,
    frames: BTreeMap<ExportedFrame, PickleMemo>,
    stacks: Vec<Option<PickleMemo>>,
    profile: &'a Profile,
    moment: &'a MomentBlocks,
}

impl VizWriter<'_> {
    fn number(&mut self, key: &str, value: u64) -> io::Result<()> {
        self.pickle.text_once(key)?;
        self.pickle.integer(value)
    }

    fn words(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.pickle.text_once(key)?;
        self.pickle.text_once(value)
    }

    fn snapshot(&mut self) -> io::Result<()> {
        let moment = self.moment;
        self.pickle.begin_dict()?;
        self.pickle.text_once("segments")?;
        self.pickle.empty_list()?;
        for (device, blocks) in &moment.devices {
            for segment in &blocks.segments {
                self.segment(*device, segment, blocks)?;
                self.pickle.append()?;
            }
        }
        self.pickle.text_once("device_traces")?;
        self.pickle.empty_list()?;
        let devices = moment.devices.keys().map(|device| device.0).filter(|d| *d < MAX_DEVICES);
        let devices = devices.max().map_or(0, |last| last + 1);
        for device in 0..devices {
            self.trace(moment.devices.get(&CudaIndex(device)))?;
            self.pickle.append()?;
        }
        self.pickle.text_once("allocator_settings")?;
        self.pickle.empty_dict()?;
        self.words("memspy", concat!("memspy ", env!("CARGO_PKG_VERSION")))?;
        self.pickle.end_dict()
    }

    fn segment(
        &mut self,
        device: CudaIndex,
        segment: &Segment,
        blocks: &DeviceBlocks,
    ) -> io::Result<()> {
        let sum = |value: fn(&Block) -> u64, states: &[BlockState]| -> u64 {
            segment.blocks.iter().filter(|b| states.contains(&b.state)).map(value).sum()
        };
        let active = [BlockState::Allocated, BlockState::PendingFree];
        self.pickle.begin_dict()?;
        self.number("device", u64::from(device.0))?;
        self.number("address", segment.address)?;
        self.number("total_size", segment.size)?;
        self.number("allocated_size", sum(|block| block.size, &active[..1]))?;
        self.number("active_size", sum(|block| block.size, &active))?;
        self.number("requested_size", sum(|block| block.requested, &active))?;
        self.number("stream", segment.stream)?;
        self.words("segment_type", if segment.small { "small" } else { "large" })?;
        self.pickle.text_once("segment_pool_id")?;
        self.pickle.pair(segment.pool.0, segment.pool.1)?;
        self.pickle.text_once("is_expandable")?;
        self.pickle.bool(segment.expandable)?;
        self.pickle.text_once("frames")?;
        self.pickle.empty_list()?;
        self.pickle.text_once("blocks")?;
        self.pickle.empty_list()?;
        for block in &segment.blocks {
            let stack = blocks.stack_of.get(&block.address).copied();
            self.block(block, stack.filter(|_| block.state == BlockState::Allocated))?;
            self.pickle.append()?;
        }
        self.pickle.end_dict()
    }

    fn block(&mut self, block: &Block, stack: Option<u32>) -> io::Result<()> {
        self.pickle.begin_dict()?;
        self.number("address", block.address)?;
        self.number("size", block.size)?;
        self.number("requested_size", block.requested)?;
        let state = match block.state {
            BlockState::Allocated => "active_allocated",
            BlockState::PendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        };
        self.words("state", state)?;
        self.pickle.text_once("frames")?;
        self.stack(stack)?;
        self.pickle.end_dict()
    }

    fn trace(&mut self, blocks: Option<&DeviceBlocks>) -> io::Result<()> {
        self.pickle.empty_list()?;
        let Some(blocks) = blocks else { return Ok(()) };
        for event in &blocks.events {
            // A probe sees the free, but not which streams still use the block.
            let actions: &[&str] =
                if event.is_free { &["free_requested", "free_completed"] } else { &["alloc"] };
            for action in actions {
                self.event(action, event, blocks)?;
                self.pickle.append()?;
            }
        }
        Ok(())
    }

    fn event(&mut self, action: &str, event: &BlockEvent, blocks: &DeviceBlocks) -> io::Result<()> {
        let segments = &blocks.segments;
        let at = segments.partition_point(|segment| segment.address <= event.address);
        let segment = at.checked_sub(1).and_then(|at| segments.get(at));
        let segment = segment.filter(|s| event.address - s.address < s.size);
        self.pickle.begin_dict()?;
        self.words("action", action)?;
        self.number("addr", event.address)?;
        self.number("size", event.size)?;
        self.number("stream", segment.map_or(0, |segment| segment.stream))?;
        let began = self.profile.start().map_or(0, |start| start.unix_nanos);
        self.number("time_us", began.saturating_add(event.time.0) / 1000)?;
        self.pickle.text_once("frames")?;
        self.stack(event.stack)?;
        self.pickle.end_dict()
    }

    fn stack(&mut self, stack: Option<u32>) -> io::Result<()> {
        let number = stack.map(|stack| stack as usize);
        let path = number.and_then(|number| self.moment.stacks.get(number));
        let (Some(number), Some(path)) = (number, path) else { return self.pickle.empty_list() };
        if let Some(Some(memo)) = self.stacks.get(number) {
            return self.pickle.again(*memo);
        }
        self.pickle.empty_list()?;
        let memo = self.pickle.remember()?;
        for frame in frames(self.profile, path).into_iter().rev() {
            self.frame(frame)?;
            self.pickle.append()?;
        }
        self.stacks[number] = Some(memo);
        Ok(())
    }

    fn frame(&mut self, frame: ExportedFrame) -> io::Result<()> {
        if let Some(&memo) = self.frames.get(&frame) {
            return self.pickle.again(memo);
        }
        self.pickle.begin_dict()?;
        self.words("filename", if frame.file.is_empty() { "??" } else { &frame.file })?;
        self.number("line", u64::from(frame.line))?;
        self.words("name", &frame.name)?;
        self.pickle.end_dict()?;
        let memo = self.pickle.remember()?;
        self.frames.insert(frame, memo);
        Ok(())
    }
}
