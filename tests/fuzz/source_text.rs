//! Source text in traces, damaged and made to take long: what is read out of it for followed
//! recordings and for tables of lines.

use memspy::analysis::{Moment, Profile, lines};
use memspy::model::{
    AllocatorCounters, AllocatorSnapshot, Block, BlockState, CounterDelta, CudaIndex, Definition,
    FollowedChange, FollowedChanges, FollowedThread, Frame, FrameId, Function, FunctionId, Metric,
    Nanos, Pool, PoolId, Record, RecordSink, Segment, SnapshotConsistency, SourceText, StackId,
    StackNode, StackReading, StackSample, Thread, ThreadActivity, ThreadId, ThreadSample,
};

use super::campaign::{self, Random};
use super::edits::edit_bytes;

const GPU: CudaIndex = CudaIndex(0);
/// Bytes of each block.
const BLOCK: i64 = 2 << 20;

/// What a source is put together of: brackets and quotes that never close, characters of several
/// bytes, and statements.
const PIECES: &[&str] = &[
    "(",
    ")",
    "[",
    "}",
    "'",
    "\"",
    "'''",
    "\"\"\"",
    "\\",
    "\\\n",
    "#",
    "\n",
    "\r\n",
    "\u{2028}",
    "\t",
    " ",
    ",",
    "*",
    ":",
    "=",
    "==",
    ":=",
    "+=",
    "<<=",
    "<=",
    "del ",
    "for ",
    " in ",
    "é",
    "变量",
    "𝑥",
    "\u{feff}",
    "\0",
    "self.x",
    "x = f(y)\n",
    "x, y = y, x\n",
    "    q, k, v = split(\n        x)\n",
    "é, 变量 = g(\"",
    "del x, é\n",
    "for x, é in zip(a, b):\n",
];

fn text(random: &mut Random) -> String {
    let mut text: String = (0..random.few(300)).map(|_| *random.pick(PIECES)).collect();
    if random.below(4) == 0 {
        let mut bytes = std::mem::take(&mut text).into_bytes();
        edit_bytes(&mut bytes, random);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    match random.below(8) {
        // All of it, or one line, many times.
        0 => text.repeat(random.few(300)),
        1 => format!("{}\n", text.lines().next().unwrap_or_default()).repeat(random.few(2000)),
        _ => text,
    }
}

/// A job that allocates and frees while it goes from line to line of one function.
struct FollowedFunction {
    records: Vec<Record>,
    now: u64,
    live: i64,
}

impl FollowedFunction {
    /// Each line is a stack of its own, with the number of the line counted from 0.
    fn new(source: SourceText, lines: u32) -> FollowedFunction {
        let (function, first_line) = (source.function, source.first_line);
        let mut job = FollowedFunction { records: Vec::new(), now: 0, live: 0 };
        let forward = Function {
            name: "forward".into(),
            file: "a.py".into(),
            first_line,
            last_line: first_line.saturating_add(lines),
            is_native: false,
        };
        job.records.push(Record::Definition(Definition::Function(function, forward)));
        job.records.push(Record::Source(source));
        for number in 0..lines {
            let frame = Frame { function, line: first_line.saturating_add(number) };
            let node = StackNode { parent: None, frame: FrameId(number), module: None };
            job.records.push(Record::Definition(Definition::Frame(FrameId(number), frame)));
            job.records.push(Record::Definition(Definition::Stack(StackId(number), node)));
        }
        let thread = Thread { os_id: None, python_id: 1, name: None, main: true };
        job.records.push(Record::Definition(Definition::Thread(ThreadId(0), thread)));
        job.map();
        job
    }

    fn map(&mut self) {
        self.now += 1_000_000;
        let block = |n: i64| Block {
            address: (1 << 40) + n as u64 * BLOCK as u64,
            size: BLOCK as u64,
            requested: BLOCK as u64,
            state: BlockState::Allocated,
        };
        let segment = Segment {
            address: 1 << 40,
            size: 1 << 38,
            stream: 0,
            small: false,
            expandable: false,
            granule: 0,
            retired: false,
            pool: PoolId(0, 0),
            blocks: (0..self.live / BLOCK).map(block).collect(),
        };
        self.records.push(Record::Snapshot(AllocatorSnapshot {
            time: Nanos(self.now),
            device: GPU,
            retries: 0,
            consistency: SnapshotConsistency::Consistent,
            segments: vec![segment],
        }));
    }

    /// Memory is allocated (more than 0 bytes) or freed while the program goes from one line to
    /// another.
    fn change(&mut self, bytes: i64, from: u32, to: u32) {
        self.now += 1_000_000;
        self.live += bytes;
        let amount = bytes.abs();
        let large = match bytes > 0 {
            true => CounterDelta {
                allocations: 1,
                allocated_bytes: amount,
                requested_bytes: amount,
                ..CounterDelta::default()
            },
            false => CounterDelta {
                frees: 1,
                freed_bytes: amount,
                freed_requested_bytes: amount,
                ..CounterDelta::default()
            },
        };
        let [before, after] = [from, to].map(|line| StackReading::Whole(StackId(line)));
        let change = FollowedChange {
            before: Nanos(self.now - 3_000),
            after: Nanos(self.now),
            device: GPU,
            small: CounterDelta::default(),
            large,
            live: [0, self.live],
            threads: vec![FollowedThread {
                thread: ThreadId(0),
                before,
                after,
                held_lock: false,
                wait: Default::default(),
            }],
            others_possible: false,
            counters_torn: false,
            totals_reset: false,
            addresses: None,
        };
        self.records.push(Record::Followed(FollowedChanges { changes: vec![change] }));
        self.sample(to);
    }

    /// The thread is at this line, and the counters are what they are.
    fn sample(&mut self, line: u32) {
        let (thread, stack) = (ThreadId(0), StackId(line));
        let activity = ThreadActivity::Active;
        let threads = vec![ThreadSample { thread, stack, gil: true, activity }];
        let mut counters = AllocatorCounters::default();
        for pool in [Pool::All, Pool::Large] {
            let stat = &mut counters.stats[Metric::AllocatedBytes as usize][pool as usize];
            (stat.current, stat.peak, stat.allocated) = (self.live, self.live, self.live);
        }
        self.records.push(Record::Sample(StackSample { time: Nanos(self.now), threads }));
        let (time, counters) = (Nanos(self.now + 1000), Box::new(counters));
        self.records.push(Record::Counters { time, device: GPU, counters });
    }

    /// Reads all that is found out of it; how many lines its functions have.
    fn analyse(mut self) -> usize {
        self.map();
        let mut profile = Profile::new();
        for record in &self.records {
            profile.record(record).unwrap();
        }
        profile.finish();
        let _ = (profile.warnings(), profile.snapshot(GPU, Moment::End));
        let Ok(table) = lines::table(&profile, GPU, &lines::default_columns()) else { return 0 };
        let table = table.with_all_lines(&profile);
        let _ = lines::ranking(&profile, &table, true);
        table.functions.iter().map(|function| function.rows.len()).sum()
    }
}

#[test]
fn sources_of_any_text_are_read() {
    campaign::run("sources", 200, &mut |random: &mut Random| {
        let text = text(random);
        let bytes = text.len();
        let lines = (text.lines().count() as u32 + 2).min(300);
        let first_line = if random.below(8) == 0 { random.edge() as u32 } else { 1 };
        let source = SourceText { function: FunctionId(0), first_line, text: text.into() };
        let mut job = FollowedFunction::new(source, lines);
        let mut line = || random.below(lines as usize) as u32;
        for _ in 0..40 {
            let (a, b, c) = (line(), line(), line());
            job.change(BLOCK, a, a);
            job.change(BLOCK, b, b);
            job.change(-BLOCK, c, line());
        }
        job.analyse();
        Ok(256 * bytes)
    });
}

/// Each statement searched the whole text, and kept the lines of all others for each of its names:
/// 480 MB and minutes for a source of 130 KB.
#[test]
fn each_statement_of_a_long_function_kept_the_lines_of_all_others() {
    let lines = 2_000;
    let names: Vec<String> = (0..15).map(|n| format!("n{n}")).collect();
    let line = format!("{} = f()\n", names.join(","));
    campaign::once("long-source", &mut || {
        let text = line.repeat(lines as usize);
        let source = SourceText { function: FunctionId(0), first_line: 1, text: text.into() };
        let mut job = FollowedFunction::new(source, lines);
        for line in 0..lines - 1 {
            job.change(BLOCK, line, line);
            job.change(BLOCK, line, line);
            job.change(-BLOCK, line, line + 1);
        }
        job.analyse();
        Ok(0)
    });
}

/// A search of all rows for each line took hours on a text of some KB in a trace.
#[test]
fn each_line_of_a_long_source_was_searched_in_all_rows() {
    let lines = 400_000;
    campaign::once("all-lines", &mut || {
        let text = "x\n".repeat(lines);
        let source = SourceText { function: FunctionId(0), first_line: 1, text: text.into() };
        let mut job = FollowedFunction::new(source, 3);
        job.change(BLOCK, 1, 1);
        job.change(BLOCK, 2, 2);
        match job.analyse() {
            found if found == lines => Ok(0),
            found => Err(format!("{found} of {lines} lines")),
        }
    });
}
