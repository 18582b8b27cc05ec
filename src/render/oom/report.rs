//! The OOM report as text.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::accounting::{allocated, write_accounting};
use super::conclusion::{conclusion, fit, free_fit_text, sees_refusals};
use super::stacks::{own_frame, path_text, stack_text};
use crate::analysis::{
    AllocatorCache, FoldedProfile, OomDevice, OomReport, Profile, RefusedAllocation, StackLabel,
    peak, recorded_owner_groups, requested_bytes,
};
use crate::model::{
    DeviceOwners, DeviceUsage, Frame, FunctionId, MemoryKind, Nanos, OwnershipBreakdown,
    ProcessUsage, RaisedError, StackId,
};
use crate::render::owners::{group_rows, outside_recorded, write_rows};
use crate::render::shared::{
    EscapeGuard, FrameLabels, OutputError, bytes, count, end_text, evidence, number, one_line,
    optional_bytes, percent, time_range, utc, warnings,
};

/// Bytes that the snapshot of owners does not cover.
const UNKNOWN_OWNER: &str = "[unattributed]";
const SINCE_THEN: &str = "[allocated since this snapshot of the owners: unattributed]";
const LISTED: usize = 10;
const REFUSED: usize = 3;

/// Writes the report. `profile` is of the same recording.
pub fn oom_report_text(
    out: &mut dyn Write,
    profile: &Profile,
    report: &OomReport,
) -> Result<(), OutputError> {
    let out = &mut EscapeGuard::text(out);
    let text = ReportText { profile, report, labels: FrameLabels::new(profile, false) };
    text.head(out)?;
    let conclusion = conclusion(profile, report, text.labels);
    if !conclusion.is_empty() {
        writeln!(out, "\nIn short")?;
        for sentence in conclusion {
            writeln!(out, "  {sentence}")?;
        }
    }
    text.oom_exception(out)?;
    text.asked(out)?;
    for device in &report.devices {
        text.device(out, device)?;
    }
    if report.devices.is_empty() {
        writeln!(out, "\nNo memory of PyTorch on a GPU was seen.")?;
    }
    text.owners(out)?;
    Ok(())
}

struct ReportText<'a> {
    profile: &'a Profile,
    report: &'a OomReport,
    labels: FrameLabels<'a>,
}

impl ReportText<'_> {
    fn head(&self, out: &mut dyn Write) -> io::Result<()> {
        let time = self.report.time;
        let at = format!("at {:.3} s of the recording", time.seconds());
        let wall = self.profile.start().map_or_else(String::new, |start| {
            format!(", {}", utc(start.unix_nanos.saturating_add(time.0)))
        });
        match &self.report.trigger {
            Some(trigger) => {
                writeln!(out, "'{}' was met {at}{wall}", one_line(&trigger.condition))?;
                writeln!(out, "  {}", one_line(&trigger.seen))?;
            }
            None => {
                writeln!(out, "No condition was met: {} {at}{wall}", end_text(self.profile))?;
            }
        }
        if let Some(start) = self.profile.start() {
            let command = one_line(&start.command.join(" "));
            writeln!(out, "Process {} on {}: {command}", start.pid, one_line(&start.host))?;
        }
        writeln!(out, "Recorded: {}", time_range(self.profile))?;
        for warning in warnings(self.profile) {
            writeln!(out, "warning: {}", one_line(&warning))?;
        }
        Ok(())
    }

    fn oom_exception(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut told: Vec<&RaisedError> = Vec::new();
        for error in self.errors() {
            // The program retried.
            let same =
                |other: &&RaisedError| (other.stack, &other.text) == (error.stack, &error.text);
            if !told.iter().any(same) {
                told.push(error);
            }
        }
        if told.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nWhat PyTorch's error says")?;
        for error in told.iter().take(REFUSED) {
            match requested_bytes(&error.text) {
                Some(size) => {
                    let size = bytes(size);
                    writeln!(
                        out,
                        "  asked for {size} (as PyTorch says: rounded, and in whole segments), at"
                    )?;
                }
                None => writeln!(out, "  its message does not say how much was asked for; at")?,
            }
            match error.stack {
                Some(stack) => self.raised(out, stack)?,
                None => writeln!(out, "    an unknown place: it had no traceback")?,
            }
            let first = error.text.lines().next().unwrap_or_default();
            writeln!(out, "    \"{}\"", one_line(first))?;
        }
        let more = told.len().saturating_sub(REFUSED);
        if more > 0 {
            writeln!(out, "  and {more} more in the two seconds around it")?;
        }
        Ok(())
    }

    fn errors(&self) -> impl Iterator<Item = &RaisedError> {
        self.report.oom_exception.iter().filter_map(|oom_exception| oom_exception.error.as_ref())
    }

    /// Where the error was raised, and the program's own line if that is in a library.
    fn raised(&self, out: &mut dyn Write, stack: StackId) -> io::Result<()> {
        writeln!(out, "    {}", self.stack(stack))?;
        let stacks = self.profile.stacks();
        let own = stacks.frames(stack).enumerate().find(|(_, frame)| {
            stacks.get_function(frame.function).is_some_and(|f| !f.is_of_library())
        });
        match own {
            Some((depth, frame)) if depth > 0 => {
                writeln!(out, "    called by the program's line {}", self.labels.frame(frame, true))
            }
            _ => Ok(()),
        }
    }

    fn asked(&self, out: &mut dyn Write) -> io::Result<()> {
        let report = self.report;
        if !report.refused.is_empty() {
            writeln!(out, "\nThe driver refused")?;
            // PyTorch makes the same request up to three times.
            let alike =
                |a: &RefusedAllocation, b: &RefusedAllocation| (a.size, a.site) == (b.size, b.site);
            let different: Vec<&[RefusedAllocation]> = report.refused.chunk_by(alike).collect();
            for asked in different.iter().take(REFUSED) {
                self.refused(out, asked)?;
            }
            let more: usize = different.iter().skip(REFUSED).map(|asked| asked.len()).sum();
            if more > 0 {
                writeln!(out, "  and {more} more in the two seconds before")?;
            }
            return Ok(());
        }
        // The error's thread is better evidence than samples.
        if report.stood.is_empty() || self.errors().any(|error| error.stack.is_some()) {
            return Ok(());
        }
        writeln!(out, "\nWhat the threads ran around that moment, by samples")?;
        for stood in &report.stood {
            let when = self.before(stood.time);
            writeln!(out, "  {}, {when}:", self.labels.thread(stood.thread))?;
            writeln!(out, "    {}", self.stack(stood.stack))?;
        }
        if report.out_of_memory && !sees_refusals(self.profile) {
            let words = match report.oom_exception.is_empty() {
                true => "its message was not searched for",
                false => "the job had handled its error before it could be read",
            };
            writeln!(
                out,
                "  These are samples: the failing line is one of them, or ran between them. How much it asked for is unknown: {words} (record --exact shows it)."
            )?;
        }
        Ok(())
    }

    fn refused(&self, out: &mut dyn Write, alike: &[RefusedAllocation]) -> io::Result<()> {
        let Some(asked) = alike.first() else { return Ok(()) };
        let times = match alike.len() {
            1 => String::new(),
            n => format!(", {n} times"),
        };
        let (size, when) = (bytes(asked.size), self.before(asked.time));
        let what = match asked.memory_kind {
            MemoryKind::Driver(_) => "cuMemAlloc",
            MemoryKind::Physical(_) => "cuMemCreate",
            MemoryKind::Managed => "cuMemAllocManaged",
            MemoryKind::PinnedHost => "page-locked host memory",
            MemoryKind::Torch(_) | MemoryKind::Mapping => "an allocation",
        };
        writeln!(out, "  {size} ({what}), {when}{times}, asked for by")?;
        let site = asked.site.and_then(|site| self.profile.stacks().get_site(site));
        let Some(site) = site else { return writeln!(out, "    an unknown place") };
        match site.stack {
            Some(stack) => writeln!(out, "    {}", self.stack(stack))?,
            None => {
                writeln!(out, "    {}, without a known stack", self.labels.thread(site.thread))?
            }
        }
        if let Some(node) = &site.node {
            writeln!(out, "    for {} of the backward pass", one_line(node))?;
        }
        if let Some(forward) = site.forward {
            writeln!(out, "    which belongs to {}", self.stack(forward))?;
        }
        Ok(())
    }

    fn stack(&self, stack: StackId) -> String {
        stack_text(self.labels, stack)
    }

    /// Relative to the moment.
    fn before(&self, time: Nanos) -> String {
        let now = self.report.time;
        let seconds = now.0.abs_diff(time.0) as f64 / 1e9;
        match time <= now {
            true => format!("{seconds:.3} s before"),
            false => format!("{seconds:.3} s after"),
        }
    }

    fn device(&self, out: &mut dyn Write, device: &OomDevice) -> io::Result<()> {
        let name = device
            .name
            .as_deref()
            .map_or_else(String::new, |name| format!(" ({})", one_line(name)));
        let total = optional_bytes(device.total);
        writeln!(out, "\nGPU {}{name}, {total} of memory", device.device.0)?;
        match &device.usage {
            Some(usage) => self.usage(out, usage)?,
            None => writeln!(out, "  what is in use on the device is unknown: NVML does not say")?,
        }
        if let Some(counters) = &device.counters {
            let size = |value: i64| bytes(value.max(0) as u64);
            writeln!(
                out,
                "  PyTorch: reserved {}, of it allocated {}; peaks {} and {}; {} out-of-memory errors, {} retries{}",
                size(counters.reserved()),
                size(counters.allocated()),
                size(counters.max_reserved()),
                size(self.peak(device, counters.max_allocated())),
                counters.num_ooms,
                counters.num_alloc_retries,
                device.counters_time.map_or_else(String::new, |time| {
                    format!(" (counters, {})", self.before(time))
                })
            )?;
        }
        write_accounting(out, device)?;
        match &device.cache {
            Some(cache) => {
                self.cache(out, cache)?;
                if let Some(fit) = fit(self.report, device) {
                    free_fit_text(out, &fit)?;
                }
            }
            None => writeln!(out, "  no snapshot was recorded: what its cache holds is unknown")?,
        }
        match &device.live {
            Some(live) => {
                let counted = device.counters.as_ref().map(|c| c.allocated().max(0) as u64);
                self.live(out, live, counted)
            }
            None => Ok(()),
        }
    }

    fn usage(&self, out: &mut dyn Write, usage: &DeviceUsage) -> io::Result<()> {
        let others = match &usage.process {
            ProcessUsage::Bytes(own) => format!(
                "this process {}, other processes {}",
                bytes(*own),
                bytes(usage.used.saturating_sub(*own))
            ),
            ProcessUsage::Unknown(why) => {
                format!("this process's part is unknown: {}", one_line(why))
            }
        };
        writeln!(
            out,
            "  in use {}, free {}; {others} (NVML, {})",
            bytes(usage.used),
            bytes(usage.free),
            self.before(usage.time)
        )
    }

    /// The allocator's mark if it is older than the recording.
    fn peak(&self, device: &OomDevice, mark: i64) -> i64 {
        let peak = peak::allocated(self.profile, device.device);
        peak.map_or(mark, |peak| peak.older().unwrap_or(peak.within))
    }

    fn cache(&self, out: &mut dyn Write, cache: &AllocatorCache) -> io::Result<()> {
        let torn = if cache.consistent { "" } else { ", changed while it was read" };
        writeln!(
            out,
            "  cache: {} free, the largest block {} (snapshot, {}{torn})",
            bytes(cache.cut.all.free),
            bytes(cache.cut.largest_free),
            self.before(cache.time)
        )?;
        for class in &cache.classes {
            let range = match (class.from, class.below) {
                (0, below) => format!("under {}", bytes(below)),
                (from, u64::MAX) => format!("from {}", bytes(from)),
                (from, below) => format!("{} to {}", bytes(from), bytes(below)),
            };
            writeln!(
                out,
                "    {:>12} in {} {range}",
                bytes(class.bytes),
                number(class.blocks, "free block")
            )?;
        }
        if cache.cut.pending_free > 0 {
            let pending = bytes(cache.cut.pending_free);
            writeln!(out, "    {pending:>12} freed, while another stream may still use it")?;
        }
        let parts = match cache.cut.expandable.segments {
            0 => "",
            _ => " and free parts of expandable ones",
        };
        let whole = bytes(cache.cut.releasable);
        match (self.report.out_of_memory, cache.time <= self.report.time) {
            (false, _) => writeln!(
                out,
                "  torch.cuda.empty_cache() could return {whole} (wholly free segments{parts})"
            ),
            (true, true) => writeln!(
                out,
                "  of it {whole} was in wholly free segments{parts}: PyTorch returned these itself before it gave up"
            ),
            (true, false) => writeln!(
                out,
                "  of it {whole} is in wholly free segments{parts}: free again since the error was raised"
            ),
        }
    }

    fn live(
        &self,
        out: &mut dyn Write,
        live: &FoldedProfile,
        counted: Option<u64>,
    ) -> io::Result<()> {
        let when = self.before(live.snapshot.time);
        let whole = live.total + live.left_out;
        let same = match counted {
            Some(counted) if counted == whole => {
                "; the counters say the same at the moment".to_owned()
            }
            // Partial: samples missed some or are of another moment.
            Some(counted) => format!("; the counters above say {}: another moment", bytes(counted)),
            None => String::new(),
        };
        writeln!(
            out,
            "  live: {} by allocation site ({when}{same})",
            bytes(live.total + live.left_out)
        )?;
        let listed = live_rows(self.labels, live);
        for row in listed.iter().take(LISTED) {
            let size = row.bytes;
            let more = match row.stacks {
                0 | 1 => String::new(),
                stacks => format!(" ({} stacks of this line)", count(stacks)),
            };
            let share = percent(size, whole);
            writeln!(out, "    {:>12} {share:>5.1} %  {}{more}", bytes(size), row.text)?;
        }
        let rest: u64 = listed.iter().skip(LISTED).map(|row| row.bytes).sum();
        if rest > 0 {
            let lines = number((listed.len() - LISTED) as u64, "more line");
            let share = percent(rest, whole);
            writeln!(out, "    {:>12} {share:>5.1} %  in {lines}", bytes(rest))?;
        }
        if let Some(after) = counted.and_then(|counted| counted.checked_sub(whole))
            && after > 0
        {
            let text = "[allocated after this: unattributed]";
            writeln!(out, "    {:>12} {:>7}  {text}", bytes(after), "")?;
        }
        match evidence(live.resolution) {
            Some(evidence) => writeln!(out, "    of this: {evidence}"),
            None => Ok(()),
        }
    }

    fn owners(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(OwnershipBreakdown { time, devices, .. }) = &self.report.owners else {
            return Ok(());
        };
        for held in devices {
            let when = self.before(*time);
            writeln!(out, "\nOwners of the memory of GPU {} ({when})", held.device.0)?;
            categories(out, held)?;
            let groups = recorded_owner_groups(held);
            let known: u64 = groups.iter().map(|group| group.size.bytes).sum();
            let mut others = outside_recorded(held);
            let known = known + others.iter().map(|(_, size)| size).sum::<u64>();
            others.push((UNKNOWN_OWNER.to_owned(), held.allocated.saturating_sub(known)));
            let device = self.report.devices.iter().find(|device| device.device == held.device);
            let now = device.and_then(allocated).unwrap_or(held.allocated);
            others.push((SINCE_THEN.to_owned(), now.saturating_sub(held.allocated)));
            let groups: Vec<_> = groups.iter().collect();
            writeln!(out)?;
            let whole = now.max(held.allocated);
            write_rows(out, &group_rows(&groups, &others, LISTED), whole)?;
        }
        Ok(())
    }
}

pub(super) struct LiveRow {
    /// Its largest stack.
    pub(super) text: String,
    /// `None` if no line of the program allocated it.
    pub(super) own: Option<Frame>,
    pub(super) bytes: u64,
    pub(super) stacks: u64,
}

pub(super) fn live_rows(labels: FrameLabels<'_>, live: &FoldedProfile) -> Vec<LiveRow> {
    let mut rows: Vec<LiveRow> = Vec::new();
    let mut by_own: BTreeMap<(FunctionId, u32), usize> = BTreeMap::new();
    let mut by_text: BTreeMap<String, usize> = BTreeMap::new();
    // The largest stack of a line comes first.
    for stack in &live.stacks {
        let own = own_frame(labels, &stack.path);
        let next = rows.len();
        let at = match own {
            Some(own) => *by_own.entry((own.function, own.line)).or_insert(next),
            None => *by_text.entry(path_text(labels, &stack.path)).or_insert(next),
        };
        if at == next {
            let mut text = path_text(labels, &stack.path);
            let is_known =
                |label: &StackLabel| matches!(label, StackLabel::Frame(_) | StackLabel::Owner(_));
            if !stack.path.iter().any(is_known) {
                text += " (unattributed)";
            }
            rows.push(LiveRow { text, own, bytes: 0, stacks: 0 });
        }
        rows[at].bytes += stack.bytes;
        rows[at].stacks += 1;
    }
    let mut older: BTreeMap<String, u64> = BTreeMap::new();
    for stack in &live.left_out_stacks {
        let texts = stack.path.iter().take(2).map(|label| labels.label(*label, true));
        *older.entry(texts.collect::<Vec<_>>().join(" ")).or_default() += stack.bytes;
    }
    rows.extend(older.into_iter().map(|(text, bytes)| LiveRow {
        text,
        own: None,
        bytes,
        stacks: 0,
    }));
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

fn categories(out: &mut dyn Write, held: &DeviceOwners) -> io::Result<()> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for held in &held.held {
        *sums.entry(held.category.name()).or_default() += held.bytes;
    }
    for (name, size) in [("rounding", held.rounding), ("in no tensor", held.without_tensor)] {
        if size > 0 {
            sums.insert(name, size);
        }
    }
    let mut sums: Vec<(&str, u64)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    for (name, size) in sums {
        let share = percent(size, held.allocated);
        writeln!(out, "  {:>12} {share:>5.1} %  {name}", bytes(size))?;
    }
    Ok(())
}
