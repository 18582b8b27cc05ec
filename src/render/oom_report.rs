//! The report as text: what happened, what was asked for, what lived, who held it, what was free.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::RenderError;
use super::clock::utc;
use super::escape::EscapeGuard;
use super::header::{end_text, time_range};
use super::label::{FrameLabels, one_line};
use super::owner_groups::{group_rows, outside_recorded, write_rows};
use super::size::{bytes, count, optional_bytes, percent};
use crate::analysis::{
    AllocatorCache, ExactProfile, FoldedProfile, OomDevice, OomReport, Profile, RefusedAllocation,
    StackLabel, recorded_owner_groups, requested_bytes,
};
use crate::model::{
    MemoryKind, Nanos, OwnedOnDevice, OwnershipBreakdown, ProcessUsage, RaisedError, StackId,
    is_library,
};

/// Stacks, owners and refusals listed.
const LISTED: usize = 10;
const REFUSED: usize = 3;
/// Callers shown of a stack.
const CALLERS: usize = 5;

/// Writes the report. `profile` is that of the same recording.
pub fn oom_report_text(
    out: &mut dyn Write,
    profile: &Profile,
    report: &OomReport,
) -> Result<(), RenderError> {
    let out = &mut EscapeGuard::text(out);
    let text = OomReportText { profile, report, labels: super::lines::labels(profile, false) };
    text.head(out)?;
    text.oom_exception(out)?;
    text.asked(out)?;
    for device in &report.devices {
        text.device(out, device)?;
    }
    if report.devices.is_empty() {
        writeln!(out, "\nNo memory of PyTorch on a GPU was seen.")?;
    }
    text.owners(out)?;
    let reasons = text.reasons();
    if !reasons.is_empty() {
        writeln!(out, "\nIn short")?;
        for reason in reasons {
            writeln!(out, "  {reason}")?;
        }
    }
    Ok(())
}

struct OomReportText<'a> {
    profile: &'a Profile,
    report: &'a OomReport,
    labels: FrameLabels<'a>,
}

impl OomReportText<'_> {
    fn head(&self, out: &mut dyn Write) -> io::Result<()> {
        let time = self.report.time;
        let at = format!("at {:.3} s of the recording", time.seconds());
        let wall = self.profile.start().map_or_else(String::new, |start| {
            format!(", {}", utc(start.unix_nanos.saturating_add(time.0)))
        });
        match &self.report.trigger {
            Some(trigger) => {
                writeln!(out, "'{}' came true {at}{wall}", one_line(&trigger.condition))?;
                writeln!(out, "  {}", one_line(&trigger.seen))?;
            }
            None => {
                writeln!(out, "No condition came true: {} {at}{wall}", end_text(self.profile))?;
            }
        }
        if let Some(start) = self.profile.start() {
            let command = one_line(&start.command.join(" "));
            writeln!(out, "Process {} on {}: {command}", start.pid, one_line(&start.host))?;
        }
        writeln!(out, "Recorded: {}", time_range(self.profile))?;
        for warning in self.profile.warnings() {
            writeln!(out, "warning: {}", one_line(&warning))?;
        }
        Ok(())
    }

    /// The errors as the program saw them.
    fn oom_exception(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut told: Vec<&RaisedError> = Vec::new();
        for error in self.errors() {
            // The same one again: a program that tries it once more.
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
                        "  asked for {size} (PyTorch's words: rounded, and in whole segments), at"
                    )?;
                }
                None => writeln!(out, "  how much was asked for is not in its words; at")?,
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

    /// The errors found.
    fn errors(&self) -> impl Iterator<Item = &RaisedError> {
        self.report.oom_exception.iter().filter_map(|oom_exception| oom_exception.error.as_ref())
    }

    /// Where an error was raised, with the program's own line where libraries stand before it.
    fn raised(&self, out: &mut dyn Write, stack: StackId) -> io::Result<()> {
        writeln!(out, "    {}", self.stack(stack))?;
        let stacks = self.profile.stacks();
        let own = stacks.frames(stack).enumerate().find(|(_, frame)| {
            stacks.get_function(frame.function).is_some_and(|f| !is_library(&f.file))
        });
        match own {
            Some((depth, frame)) if depth > 0 => {
                writeln!(out, "    called by the program's line {}", self.labels.frame(frame, true))
            }
            _ => Ok(()),
        }
    }

    /// What failed and where: exactly, or as far as samples show.
    fn asked(&self, out: &mut dyn Write) -> io::Result<()> {
        let report = self.report;
        if !report.refused.is_empty() {
            writeln!(out, "\nThe driver refused")?;
            // PyTorch asks up to three times for the same.
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
        // Who threw says more than where threads stood.
        if report.stood.is_empty() || self.errors().any(|error| error.stack.is_some()) {
            return Ok(());
        }
        writeln!(out, "\nWhere threads stood at the samples around that moment")?;
        for stood in &report.stood {
            let when = self.before(stood.time);
            writeln!(out, "  {}, {when}:", self.labels.thread(stood.thread))?;
            writeln!(out, "    {}", self.stack(stood.stack))?;
        }
        if report.out_of_memory && !self.sees_refusals() {
            let words = match report.oom_exception.is_empty() {
                true => "its words were not looked for",
                false => "the job was done with its error before it could be read",
            };
            writeln!(
                out,
                "  These are samples: the failing line is one of them, or ran between them. How much it asked for is not \
                 known: {words} (record --exact tells)."
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

    /// `inner (a.py:3) ← outer (a.py:9) ← …`.
    fn stack(&self, stack: StackId) -> String {
        let mut frames = self.profile.stacks().frames(stack);
        let shown: Vec<String> =
            frames.by_ref().take(CALLERS + 1).map(|f| self.labels.frame(f, true)).collect();
        let more = if frames.next().is_some() { " ← …" } else { "" };
        format!("{}{more}", shown.join(" ← "))
    }

    /// When something was, seen from the moment.
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
            Some(usage) => {
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
                )?;
            }
            None => writeln!(out, "  what is in use on the device is unknown: NVML told nothing")?,
        }
        if let Some(counters) = &device.counters {
            let size = |value: i64| bytes(value.max(0) as u64);
            writeln!(
                out,
                "  PyTorch: reserved {}, of it allocated {}; peaks {} and {}; {} out-of-memory errors, {} retries",
                size(counters.reserved()),
                size(counters.allocated()),
                size(counters.max_reserved()),
                size(counters.max_allocated()),
                counters.num_ooms,
                counters.num_alloc_retries
            )?;
        }
        match &device.cache {
            Some(cache) => self.cache(out, cache)?,
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
                "    {:>12} in {} free blocks {range}",
                bytes(class.bytes),
                count(class.blocks)
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
        writeln!(
            out,
            "  torch.cuda.empty_cache() could return {} (wholly free segments{parts})",
            bytes(cache.cut.releasable)
        )
    }

    fn live(
        &self,
        out: &mut dyn Write,
        live: &FoldedProfile,
        counted: Option<u64>,
    ) -> io::Result<()> {
        let when = self.before(live.snapshot.time);
        let same = match counted == Some(live.total + live.left_out) {
            true => "; the counters say the same at the moment",
            false => "",
        };
        writeln!(
            out,
            "  live: {} by who made it ({when}{same})",
            bytes(live.total + live.left_out)
        )?;
        let mut by_text: BTreeMap<String, u64> = BTreeMap::new();
        for stack in &live.stacks {
            *by_text.entry(self.path(&stack.path)).or_default() += stack.bytes;
        }
        if live.left_out > 0 {
            by_text.insert("[before recording]".to_owned(), live.left_out);
        }
        let mut listed: Vec<(String, u64)> = by_text.into_iter().collect();
        listed.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let whole = live.total + live.left_out;
        for (text, size) in listed.iter().take(LISTED) {
            writeln!(out, "    {:>12} {:>5.1} %  {text}", bytes(*size), percent(*size, whole))?;
        }
        let rest: u64 = listed.iter().skip(LISTED).map(|(_, bytes)| bytes).sum();
        if rest > 0 {
            let stacks = listed.len() - LISTED;
            let share = percent(rest, whole);
            writeln!(out, "    {:>12} {share:>5.1} %  in {stacks} more stacks", bytes(rest))?;
        }
        Ok(())
    }

    /// A folded stack from its innermost frame outwards.
    fn path(&self, path: &[StackLabel]) -> String {
        let text = |label: &StackLabel| match *label {
            StackLabel::Thread(thread) => self.labels.thread(thread),
            StackLabel::Frame(frame) => self.labels.frame(frame, true),
            StackLabel::Pseudo(mark) => mark.text().to_owned(),
            StackLabel::Node(site) | StackLabel::NodeOfUnknownLine(site) => self.labels.node(site),
        };
        let shown: Vec<String> = path.iter().rev().take(CALLERS + 1).map(text).collect();
        let more = if path.len() > CALLERS + 1 { " ← …" } else { "" };
        format!("{}{more}", shown.join(" ← "))
    }

    fn owners(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(OwnershipBreakdown { time, devices, .. }) = &self.report.owners else {
            return Ok(());
        };
        for held in devices {
            let when = self.before(*time);
            writeln!(out, "\nWho held the memory of GPU {} ({when})", held.device.0)?;
            categories(out, held)?;
            let groups = recorded_owner_groups(held);
            let groups: Vec<_> = groups.iter().collect();
            writeln!(out)?;
            write_rows(out, &group_rows(&groups, &outside_recorded(held), LISTED), held.allocated)?;
        }
        Ok(())
    }

    /// Whether an allocation that the driver refuses would show.
    fn sees_refusals(&self) -> bool {
        let probed = |exact: &ExactProfile| {
            exact.exact().probes.iter().any(|probe| probe.starts_with("cuMemAlloc"))
        };
        self.profile.exact().is_some_and(probed)
    }

    /// What follows from the figures.
    fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if !self.report.out_of_memory {
            return reasons;
        }
        let refused = self.report.refused.iter().map(|asked| asked.size).max();
        let words = || self.errors().filter_map(|error| requested_bytes(&error.text)).max();
        let asked = refused.or_else(words);
        for device in &self.report.devices {
            let on = format!("GPU {}", device.device.0);
            if let Some(usage) = &device.usage
                && let ProcessUsage::Bytes(own) = usage.process
                && usage.used.saturating_sub(own) > usage.total / 20
            {
                let others = bytes(usage.used - own);
                reasons.push(format!("{on}: other processes use {others} of the device."));
            }
            let Some(cache) = &device.cache else { continue };
            match asked {
                Some(asked) if cache.cut.all.free >= asked && cache.cut.largest_free < asked => {
                    reasons.push(format!(
                        "{on}: {} were free in the cache, but no block had {}: the cache is fragmented \
                         (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True often helps).",
                        bytes(cache.cut.all.free),
                        bytes(asked)
                    ));
                }
                Some(asked) if cache.cut.all.free < asked => reasons.push(format!(
                    "{on}: the cache had {} free in all, less than the {} asked for: the memory is held.",
                    bytes(cache.cut.all.free),
                    bytes(asked)
                )),
                _ => {}
            }
            if let Some(usage) = &device.usage
                && self.report.refused.is_empty()
                && usage.free > usage.total / 20
            {
                let why = match self.sees_refusals() {
                    true => "and the driver refused nothing",
                    false => "as last seen",
                };
                reasons.push(format!(
                    "{on}: the device had {} free, {why}: a limit of the job's own \
                     (torch.cuda.set_per_process_memory_fraction) or a request larger than that.",
                    bytes(usage.free)
                ));
            }
        }
        reasons
    }
}

fn categories(out: &mut dyn Write, held: &OwnedOnDevice) -> io::Result<()> {
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
