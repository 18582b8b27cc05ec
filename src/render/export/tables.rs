//! A recording as five tables.
//!
//! Each row names its recording (`rank`, `pid`, `host`), so the files of all ranks form one table.
//! Join `stack_id` and `frame_id` with `pid` and `host`: they belong to one recording.

use std::io::{self, Write};

use rustc_hash::FxHashMap;

use super::parquet_file::{ColumnType, ParquetCell, ParquetFile};
use super::{ExportedFrame, frames};
use crate::analysis::{CounterSample, Moment, MomentBlocks, Profile};
use crate::model::{BlockState, RecordingStart};

/// The tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportedTable {
    /// Allocations and frees of an exact recording.
    Events,
    /// The allocator's counters at each reading.
    Samples,
    /// The blocks of the moment, with segment and stack.
    Blocks,
    /// The frames of the stacks.
    Stacks,
    /// Functions, files and lines.
    Frames,
}

impl ExportedTable {
    /// All.
    pub const ALL: [ExportedTable; 5] = [
        ExportedTable::Events,
        ExportedTable::Samples,
        ExportedTable::Blocks,
        ExportedTable::Stacks,
        ExportedTable::Frames,
    ];

    /// The name of its folder.
    pub fn name(self) -> &'static str {
        match self {
            ExportedTable::Events => "events",
            ExportedTable::Samples => "samples",
            ExportedTable::Blocks => "blocks",
            ExportedTable::Stacks => "stacks",
            ExportedTable::Frames => "frames",
        }
    }

    fn columns(self) -> Vec<(&'static str, ColumnType)> {
        use ColumnType::{Fraction, Integer, Text};
        let own: &[(&str, ColumnType)] = match self {
            ExportedTable::Events => &[
                ("device", Integer),
                ("time_ns", Integer),
                ("unix_ns", Integer),
                ("action", Text),
                ("address", Integer),
                ("size", Integer),
                ("stack_id", Integer),
            ],
            ExportedTable::Samples => &[
                ("device", Integer),
                ("time_ns", Integer),
                ("unix_ns", Integer),
                ("allocated_bytes", Integer),
                ("allocated_bytes_peak", Integer),
                ("reserved_bytes", Integer),
                ("active_bytes", Integer),
                ("requested_bytes", Integer),
                ("inactive_split_bytes", Integer),
                ("num_alloc_retries", Integer),
                ("num_ooms", Integer),
            ],
            ExportedTable::Blocks => &[
                ("device", Integer),
                ("moment", Text),
                ("seconds", Fraction),
                ("segment_address", Integer),
                ("segment_size", Integer),
                ("segment_type", Text),
                ("stream", Integer),
                ("address", Integer),
                ("size", Integer),
                ("requested_size", Integer),
                ("state", Text),
                ("stack_id", Integer),
            ],
            ExportedTable::Stacks => {
                &[("stack_id", Integer), ("depth", Integer), ("frame_id", Integer)]
            }
            ExportedTable::Frames => {
                &[("frame_id", Integer), ("function", Text), ("file", Text), ("line", Integer)]
            }
        };
        let of_recording = [("rank", Integer), ("pid", Integer), ("host", Text)];
        of_recording.into_iter().chain(own.iter().copied()).collect()
    }
}

/// A recording as tables.
#[derive(Debug)]
pub struct TableExport<'a> {
    start: Option<&'a RecordingStart>,
    /// All events.
    whole: &'a MomentBlocks,
    moment: &'a MomentBlocks,
    name: &'static str,
    seconds: f64,
    samples: &'a [CounterSample],
    /// Frame numbers, innermost first.
    stacks: Vec<Vec<u32>>,
    frames: Vec<ExportedFrame>,
    /// The exported numbers of the stacks of `whole` and `moment`.
    of_whole: Vec<u32>,
    of_moment: Vec<u32>,
}

impl<'a> TableExport<'a> {
    /// `whole` has all events of `profile`; `at` has the blocks of `moment`, `seconds` after the
    /// start.
    pub fn new(
        profile: &'a Profile,
        whole: &'a MomentBlocks,
        at: &'a MomentBlocks,
        (moment, seconds): (Moment, f64),
        samples: &'a [CounterSample],
    ) -> TableExport<'a> {
        let mut export = TableExport {
            start: profile.start(),
            whole,
            moment: at,
            name: match moment {
                Moment::Peak => "peak",
                Moment::End => "end",
            },
            seconds,
            samples,
            stacks: Vec::new(),
            frames: Vec::new(),
            of_whole: Vec::new(),
            of_moment: Vec::new(),
        };
        let mut numbers: FxHashMap<Vec<u32>, u32> = FxHashMap::default();
        let mut frame_numbers: FxHashMap<ExportedFrame, u32> = FxHashMap::default();
        let mut named = |export: &mut TableExport<'_>, blocks: &MomentBlocks| {
            let mut of = Vec::with_capacity(blocks.stacks.len());
            for path in &blocks.stacks {
                let mut stack = Vec::with_capacity(path.len());
                for frame in frames(profile, path).into_iter().rev() {
                    stack.push(*frame_numbers.entry(frame).or_insert_with_key(|frame| {
                        export.frames.push(frame.clone());
                        export.frames.len() as u32 - 1
                    }));
                }
                of.push(*numbers.entry(stack).or_insert_with_key(|stack| {
                    export.stacks.push(stack.clone());
                    export.stacks.len() as u32 - 1
                }));
            }
            of
        };
        export.of_whole = named(&mut export, whole);
        export.of_moment = named(&mut export, at);
        export
    }

    /// Writes one table.
    pub fn write(&self, table: ExportedTable, out: &mut dyn Write) -> io::Result<()> {
        let start = self.start;
        let mut rows = TableRows {
            file: ParquetFile::new(out, &table.columns())?,
            recording: [
                start.and_then(|start| start.rank).map(u64::from).into(),
                start.map(|start| u64::from(start.pid)).into(),
                start.map_or(ParquetCell::Null, |start| ParquetCell::Text(&start.host)),
            ],
        };
        match table {
            ExportedTable::Events => self.events(&mut rows)?,
            ExportedTable::Samples => self.samples(&mut rows)?,
            ExportedTable::Blocks => self.blocks(&mut rows)?,
            ExportedTable::Stacks => self.stacks(&mut rows)?,
            ExportedTable::Frames => self.frames(&mut rows)?,
        }
        rows.file.finish()
    }

    fn events(&self, rows: &mut TableRows<'_>) -> io::Result<()> {
        for (device, blocks) in &self.whole.devices {
            for event in &blocks.events {
                rows.push(&[
                    u64::from(device.0).into(),
                    event.time.0.into(),
                    self.unix(event.time.0).into(),
                    ParquetCell::Text(if event.is_free { "free" } else { "alloc" }),
                    event.address.into(),
                    event.size.into(),
                    number(&self.of_whole, event.stack).into(),
                ])?;
            }
        }
        Ok(())
    }

    fn samples(&self, rows: &mut TableRows<'_>) -> io::Result<()> {
        for sample in self.samples {
            rows.push(&[
                u64::from(sample.device.0).into(),
                sample.time.0.into(),
                self.unix(sample.time.0).into(),
                ParquetCell::Integer(sample.allocated),
                ParquetCell::Integer(sample.allocated_peak),
                ParquetCell::Integer(sample.reserved),
                ParquetCell::Integer(sample.active),
                ParquetCell::Integer(sample.requested),
                ParquetCell::Integer(sample.inactive_split),
                ParquetCell::Integer(sample.alloc_retries),
                ParquetCell::Integer(sample.ooms),
            ])?;
        }
        Ok(())
    }

    fn blocks(&self, rows: &mut TableRows<'_>) -> io::Result<()> {
        for (device, blocks) in &self.moment.devices {
            let all = blocks.segments.iter();
            for (segment, block) in
                all.flat_map(|it| it.blocks.iter().map(move |block| (it, block)))
            {
                let stack = blocks.stack_of.get(&block.address).copied();
                let state = match block.state {
                    BlockState::Allocated => "active_allocated",
                    BlockState::PendingFree => "active_pending_free",
                    BlockState::Inactive => "inactive",
                };
                let stack = stack.filter(|_| block.state == BlockState::Allocated);
                rows.push(&[
                    u64::from(device.0).into(),
                    ParquetCell::Text(self.name),
                    ParquetCell::Fraction(self.seconds),
                    segment.address.into(),
                    segment.size.into(),
                    ParquetCell::Text(if segment.small { "small" } else { "large" }),
                    segment.stream.into(),
                    block.address.into(),
                    block.size.into(),
                    block.requested.into(),
                    ParquetCell::Text(state),
                    number(&self.of_moment, stack).into(),
                ])?;
            }
        }
        Ok(())
    }

    fn stacks(&self, rows: &mut TableRows<'_>) -> io::Result<()> {
        for (stack, frames) in (0u64..).zip(&self.stacks) {
            for (depth, frame) in (0u64..).zip(frames) {
                rows.push(&[stack.into(), depth.into(), u64::from(*frame).into()])?;
            }
        }
        Ok(())
    }

    fn frames(&self, rows: &mut TableRows<'_>) -> io::Result<()> {
        for (number, frame) in (0u64..).zip(&self.frames) {
            let file = Some(frame.file.as_str()).filter(|file| !file.is_empty());
            rows.push(&[
                number.into(),
                ParquetCell::Text(&frame.name),
                file.map_or(ParquetCell::Null, ParquetCell::Text),
                Some(u64::from(frame.line)).filter(|line| *line > 0).into(),
            ])?;
        }
        Ok(())
    }

    /// Nanoseconds since 1970.
    fn unix(&self, time: u64) -> Option<u64> {
        self.start.map(|start| start.unix_nanos.saturating_add(time))
    }
}

fn number(of: &[u32], stack: Option<u32>) -> Option<u64> {
    stack.and_then(|stack| of.get(stack as usize)).map(|stack| u64::from(*stack))
}

struct TableRows<'a> {
    file: ParquetFile<'a>,
    recording: [ParquetCell<'a>; 3],
}

impl TableRows<'_> {
    fn push(&mut self, cells: &[ParquetCell<'_>]) -> io::Result<()> {
        let mut all: Vec<ParquetCell<'_>> = self.recording.to_vec();
        all.extend_from_slice(cells);
        self.file.row(&all)
    }
}
