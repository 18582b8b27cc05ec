//! The job's own `torch.cuda.memory._snapshot()`, as pickle or JSON.

use std::io::{self, Write};

use super::pickle::{PickleMemo, PickleWriter};
use crate::model::{
    AllocationHistory, Block, BlockState, DeviceHistory, HistoryAction, HistoryEvent, HistoryFrame,
    Segment,
};
use crate::render::shared::OutputError;

/// Writes a pickle for pytorch.org/memory_viz and torch/cuda/_memory_viz.py.
pub fn history_pickle(out: &mut dyn Write, history: &AllocationHistory) -> Result<(), OutputError> {
    let mut writer = PickleSnapshot {
        pickle: PickleWriter::new(out)?,
        frames: vec![None; history.frames.len()],
        stacks: vec![None; history.stacks.len()],
        history,
    };
    snapshot(&mut writer, history)?;
    Ok(writer.pickle.finish()?)
}

/// Writes JSON, which pytorch.org/memory_viz opens as well.
pub fn history_json(out: &mut dyn Write, history: &AllocationHistory) -> Result<(), OutputError> {
    let mut writer = JsonSnapshot { out, history, is_first: true };
    snapshot(&mut writer, history)?;
    writer.out.write_all(b"\n")?;
    Ok(())
}

trait HistoryFormat {
    fn begin_dict(&mut self) -> io::Result<()>;
    fn end_dict(&mut self) -> io::Result<()>;
    fn begin_list(&mut self) -> io::Result<()>;
    fn end_list(&mut self) -> io::Result<()>;
    fn key(&mut self, key: &str) -> io::Result<()>;
    fn begin_item(&mut self) -> io::Result<()>;
    fn end_item(&mut self) -> io::Result<()>;
    fn number(&mut self, value: u64) -> io::Result<()>;
    fn text(&mut self, text: &str) -> io::Result<()>;
    fn bool(&mut self, value: bool) -> io::Result<()>;
    fn pair(&mut self, first: u64, second: u64) -> io::Result<()>;
    /// Writes the frames, innermost first.
    fn stack(&mut self, stack: Option<u32>) -> io::Result<()>;
}

fn snapshot(writer: &mut dyn HistoryFormat, history: &AllocationHistory) -> io::Result<()> {
    writer.begin_dict()?;
    writer.key("segments")?;
    writer.begin_list()?;
    for device in &history.devices {
        for one in device.snapshot.iter().flat_map(|snapshot| &snapshot.segments) {
            writer.begin_item()?;
            segment(writer, device, one)?;
            writer.end_item()?;
        }
    }
    writer.end_list()?;
    writer.key("device_traces")?;
    writer.begin_list()?;
    for device in &history.devices {
        writer.begin_item()?;
        writer.begin_list()?;
        for one in &device.events {
            writer.begin_item()?;
            event(writer, one)?;
            writer.end_item()?;
        }
        writer.end_list()?;
        writer.end_item()?;
    }
    writer.end_list()?;
    writer.key("allocator_settings")?;
    writer.begin_dict()?;
    // The page shows this key.
    writer.key("read_by")?;
    writer.text(concat!("memspy ", env!("CARGO_PKG_VERSION")))?;
    writer.end_dict()?;
    writer.end_dict()
}

fn segment(
    writer: &mut dyn HistoryFormat,
    device: &DeviceHistory,
    segment: &Segment,
) -> io::Result<()> {
    let sum = |value: fn(&Block) -> u64, states: &[BlockState]| -> u64 {
        segment.blocks.iter().filter(|b| states.contains(&b.state)).map(value).sum()
    };
    let active = [BlockState::Allocated, BlockState::PendingFree];
    writer.begin_dict()?;
    for (key, value) in [
        ("device", u64::from(device.device.0)),
        ("address", segment.address),
        ("total_size", segment.size),
        ("allocated_size", sum(|block| block.size, &active[..1])),
        ("active_size", sum(|block| block.size, &active)),
        ("requested_size", sum(|block| block.requested, &active)),
        ("stream", segment.stream),
    ] {
        writer.key(key)?;
        writer.number(value)?;
    }
    writer.key("segment_type")?;
    writer.text(if segment.small { "small" } else { "large" })?;
    writer.key("segment_pool_id")?;
    writer.pair(segment.pool.0, segment.pool.1)?;
    writer.key("is_expandable")?;
    writer.bool(segment.expandable)?;
    writer.key("frames")?;
    writer.stack(device.segment_stacks.get(&segment.address).copied())?;
    writer.key("blocks")?;
    writer.begin_list()?;
    for block in &segment.blocks {
        writer.begin_item()?;
        writer.begin_dict()?;
        for (key, value) in
            [("address", block.address), ("size", block.size), ("requested_size", block.requested)]
        {
            writer.key(key)?;
            writer.number(value)?;
        }
        writer.key("state")?;
        writer.text(match block.state {
            BlockState::Allocated => "active_allocated",
            BlockState::PendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        })?;
        writer.key("frames")?;
        writer.stack(device.block_stacks.get(&block.address).copied())?;
        writer.end_dict()?;
        writer.end_item()?;
    }
    writer.end_list()?;
    writer.end_dict()
}

fn event(writer: &mut dyn HistoryFormat, event: &HistoryEvent) -> io::Result<()> {
    writer.begin_dict()?;
    writer.key("action")?;
    writer.text(event.action.name())?;
    writer.key(if event.action == HistoryAction::Oom { "device_free" } else { "addr" })?;
    writer.number(event.address)?;
    for (key, value) in [
        ("size", event.size),
        ("stream", event.stream),
        ("time_us", u64::try_from(event.time_us).unwrap_or(0)),
    ] {
        writer.key(key)?;
        writer.number(value)?;
    }
    for (key, value) in
        [("compile_context", &event.compile_context), ("user_metadata", &event.user_metadata)]
    {
        if let Some(value) = value {
            writer.key(key)?;
            writer.text(value)?;
        }
    }
    if let Some(pool) = event.pool {
        writer.key("pool_id")?;
        writer.pair(pool.0, pool.1)?;
    }
    // As in PyTorch: no key without a stack.
    if event.stack.is_some() {
        writer.key("frames")?;
        writer.stack(event.stack)?;
    }
    writer.end_dict()
}

struct PickleSnapshot<'a> {
    pickle: PickleWriter<'a>,
    frames: Vec<Option<PickleMemo>>,
    stacks: Vec<Option<PickleMemo>>,
    history: &'a AllocationHistory,
}

impl PickleSnapshot<'_> {
    fn frame(&mut self, number: u32) -> io::Result<()> {
        if let Some(Some(memo)) = self.frames.get(number as usize) {
            return self.pickle.again(*memo);
        }
        let history = self.history;
        let Some(HistoryFrame { name, file, line }) = history.frames.get(number as usize) else {
            return self.pickle.empty_dict();
        };
        self.pickle.begin_dict()?;
        self.key("name")?;
        self.text(name)?;
        self.key("filename")?;
        self.text(file)?;
        self.key("line")?;
        self.number(u64::from(*line))?;
        self.pickle.end_dict()?;
        let memo = self.pickle.remember()?;
        if let Some(place) = self.frames.get_mut(number as usize) {
            *place = Some(memo);
        }
        Ok(())
    }
}

impl HistoryFormat for PickleSnapshot<'_> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.pickle.begin_dict()
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.pickle.end_dict()
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.pickle.empty_list()
    }

    fn end_list(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        self.text(key)
    }

    fn begin_item(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn end_item(&mut self) -> io::Result<()> {
        self.pickle.append()
    }

    fn number(&mut self, value: u64) -> io::Result<()> {
        self.pickle.integer(value)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.pickle.text_once(text)
    }

    fn bool(&mut self, value: bool) -> io::Result<()> {
        self.pickle.bool(value)
    }

    fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.pickle.pair(first, second)
    }

    fn stack(&mut self, stack: Option<u32>) -> io::Result<()> {
        let history = self.history;
        let Some((number, stack)) =
            stack.and_then(|number| Some((number, history.stacks.get(number as usize)?)))
        else {
            return self.pickle.empty_list();
        };
        if let Some(Some(memo)) = self.stacks.get(number as usize) {
            return self.pickle.again(*memo);
        }
        self.pickle.empty_list()?;
        let memo = self.pickle.remember()?;
        for frame in &stack.frames {
            self.frame(*frame)?;
            self.pickle.append()?;
        }
        if let Some(place) = self.stacks.get_mut(number as usize) {
            *place = Some(memo);
        }
        Ok(())
    }
}

/// Written at once: a history may have millions of events.
struct JsonSnapshot<'a> {
    out: &'a mut dyn Write,
    history: &'a AllocationHistory,
    is_first: bool,
}

impl JsonSnapshot<'_> {
    fn separate(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.is_first, false) {
            self.out.write_all(b",")?;
        }
        Ok(())
    }

    fn begin(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.is_first = true;
        self.out.write_all(bracket)
    }

    fn end(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.is_first = false;
        self.out.write_all(bracket)
    }
}

impl HistoryFormat for JsonSnapshot<'_> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin(b"{")
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.end(b"}")
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.begin(b"[")
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.end(b"]")
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        self.separate()?;
        self.text(key)?;
        self.out.write_all(b":")
    }

    fn begin_item(&mut self) -> io::Result<()> {
        self.separate()
    }

    fn end_item(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn number(&mut self, value: u64) -> io::Result<()> {
        write!(self.out, "{value}")
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        Ok(serde_json::to_writer(&mut *self.out, text)?)
    }

    fn bool(&mut self, value: bool) -> io::Result<()> {
        write!(self.out, "{value}")
    }

    fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        write!(self.out, "[{first},{second}]")
    }

    fn stack(&mut self, stack: Option<u32>) -> io::Result<()> {
        let history = self.history;
        let stack = stack.and_then(|number| history.stacks.get(number as usize));
        let frames = stack.map_or(&[][..], |stack| &stack.frames);
        self.begin_list()?;
        for frame in frames.iter().filter_map(|number| history.frames.get(*number as usize)) {
            self.begin_item()?;
            self.begin_dict()?;
            for (key, text) in [("name", &frame.name), ("filename", &frame.file)] {
                self.key(key)?;
                self.text(text)?;
            }
            self.key("line")?;
            self.number(u64::from(frame.line))?;
            self.end_dict()?;
        }
        self.end_list()
    }
}
