//! Takes records by tick, and attributes each tick.

use super::{CounterReading, Profile, UsagePeak};
use crate::analysis::attribution::StackFacts;
use crate::analysis::exact::ExactProfile;
use crate::analysis::followed::ProgramText;
use crate::analysis::profile::device::{DeviceProfile, SnapshotBlocks};
use crate::analysis::profile::timeline::TimelinePoint;
use crate::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, CudaIndex, Definition, DeviceUsage,
    Event, EventKind, ExactSettings, FollowedChange, MemoryKind, MissReason, Nanos,
    OwnershipBreakdown, ProcessUsage, ReaderKind, Record, RecordSink, RecordingGap, SinkResult,
    SourceText, StackSample, TargetRuntime, ThreadActivity,
};

/// Gaps listed individually.
const MAX_GAPS: usize = 5;

impl Profile {
    /// In nanoseconds: records further apart are different ticks.
    pub(super) fn half_period(&self) -> u64 {
        let rate = self.start.as_ref().map_or(0, |s| s.rate);
        500_000_000 / u64::from(if rate == 0 { 200 } else { rate })
    }

    /// `taken`: the open tick has such a record already.
    fn enter_tick(&mut self, time: Nanos, taken: bool) {
        self.last_time = self.last_time.max(time);
        if self.is_open {
            let apart = time.0.saturating_sub(self.open.time.0) >= self.half_period();
            if !taken && !apart {
                return;
            }
            self.close_tick();
        }
        self.is_open = true;
        self.open.time = time;
        self.open.sampled = false;
        self.open.threads.clear();
    }

    fn on_sample(&mut self, sample: &StackSample) {
        self.enter_tick(sample.time, self.open.sampled);
        self.samples += 1;
        self.stacks_read += sample.threads.len() as u64;
        self.gil_threads += sample.threads.iter().filter(|t| t.gil).count() as u64;
        self.open.sampled = true;
        for thread in sample.threads.iter().filter_map(|t| self.choice.filter(*t)) {
            let waits = thread.activity == ThreadActivity::Idle
                && !self.engine.is_waiting(&self.stacks, thread.stack);
            self.places.see(thread.thread, thread.stack, waits);
            self.open.threads.push(thread);
        }
    }

    fn define(&mut self, definition: &Definition) {
        if let Definition::Function(id, function) = definition {
            self.engine.observe(function);
            self.host_only.observe(*id, function);
        }
        self.memory.text += match definition {
            Definition::Function(_, function) => function.name.len() + function.file.len(),
            Definition::Thread(_, thread) => thread.name.as_ref().map_or(0, |name| name.len()),
            Definition::Site(_, site) => site.node.as_ref().map_or(0, |node| node.len()),
            _ => 0,
        } as u64;
        if !self.stacks.define(definition.clone()) {
            self.bad_definitions += 1;
            return;
        }
        if let Definition::Stack(_, node) = definition {
            let depth = node.parent.map_or(0, |p| self.depths[p.0 as usize] + 1);
            self.depths.push(depth);
            self.host_only.push(node, &self.stacks);
        }
    }

    pub(super) fn close_tick(&mut self) {
        self.is_open = false;
        self.ticks += 1;
        let had_counters = !self.open_counters.is_empty();
        let known = self.depths.len();
        if self.open.threads != self.previous.threads {
            self.open.threads.retain(|t| (t.stack.0 as usize) < known);
            let at_work = self.open.at_work(&self.stacks, &self.engine);
            self.at_work.clear();
            self.at_work.extend(at_work.copied());
            self.samples_of_stack.resize(known, 0);
            self.step_devices();
        } else if had_counters || self.profiles.values().any(|p| p.around.is_some()) {
            self.step_devices();
        }
        for thread in &self.at_work {
            if let Some(samples) = self.samples_of_stack.get_mut(thread.stack.0 as usize) {
                *samples += 1;
            }
        }
        if !self.open_snapshots.is_empty() {
            let seen = self.open.allocating(&self.open, self.stack_facts());
            let text = ProgramText { stacks: &self.stacks, sources: &self.sources };
            for (device, snapshot) in std::mem::take(&mut self.open_snapshots) {
                let profile = self.profiles.entry(device).or_default();
                let left = self.memory.work_left();
                profile.leave_out_waits(&self.places);
                let work = profile.on_snapshot(snapshot, self.open.time, &seen, left, text);
                if let Some(owned) = self.owned_before.remove(&device) {
                    profile.set_older_owners(&owned);
                }
                self.memory.add_work(work as usize);
            }
        }
        if self.open.sampled || had_counters {
            std::mem::swap(&mut self.open, &mut self.previous);
            self.previously_at_work.clone_from(&self.at_work);
        } else {
            // Snapshots have no threads: keep the last ones.
            self.at_work.clone_from(&self.previously_at_work);
        }
        self.open.sampled = false;
    }

    pub(super) fn stack_facts(&self) -> StackFacts<'_> {
        StackFacts {
            stacks: &self.stacks,
            engine: &self.engine,
            host_only: &self.host_only,
            places: &self.places,
            depths: &self.depths,
        }
    }

    fn on_counters(&mut self, time: Nanos, device: CudaIndex, counters: &AllocatorCounters) {
        if let Some(exact) = &mut self.exact {
            exact.on_counters(device, counters, &self.stacks);
            self.on_level(time, device, counters.allocated(), Some(counters.reserved()));
        }
        self.iterations.on_counters(time, device, counters);
        self.iterations.on_step(self.clock.on_counters(time, device, counters));
        self.add_to_tick(time, device, counters);
    }

    fn add_to_tick(&mut self, time: Nanos, device: CudaIndex, counters: &AllocatorCounters) {
        let known = self.open_counters.iter().position(|l| l.device == device);
        let counters = Box::new(*counters);
        if let Some(reading) = known.map(|i| &mut self.open_counters[i])
            && reading.after.is_none()
            && time > self.open.time
            && self.open.sampled
        {
            reading.after = Some((time, counters));
            return;
        }
        self.enter_tick(time, known.is_some());
        self.open_counters.push(CounterReading { device, first: counters, after: None });
    }

    fn on_usage(&mut self, usage: &DeviceUsage) {
        let peak = self.usage.entry(usage.nvml_index).or_insert_with(|| UsagePeak {
            total: usage.total,
            used: usage.used,
            process: usage.process.clone(),
            last: usage.clone(),
        });
        peak.total = usage.total;
        peak.used = peak.used.max(usage.used);
        peak.process = match (&peak.process, &usage.process) {
            (ProcessUsage::Bytes(a), ProcessUsage::Bytes(b)) => ProcessUsage::Bytes(*a.max(b)),
            (known @ ProcessUsage::Bytes(_), ProcessUsage::Unknown(_)) => known.clone(),
            (ProcessUsage::Unknown(_), new) => new.clone(),
        };
        peak.last = usage.clone();
    }

    fn on_exact_settings(&mut self, exact: &ExactSettings) {
        self.iterations.on_exact_settings(exact);
        match &mut self.exact {
            Some(profile) => profile.on_settings(exact.clone()),
            None => {
                let gathers_lines = self.gathers_lines();
                let profile = ExactProfile::new(exact.clone(), self.min_lifetime, gathers_lines);
                self.exact = Some(Box::new(profile));
            }
        }
    }

    fn on_followed(&mut self, changes: &[FollowedChange]) {
        for change in changes {
            let profile = self.profiles.entry(change.device).or_default();
            profile.follow_level(change);
            if !change.counters_torn {
                let level = change.live[0].saturating_add(change.live[1]);
                self.iterations.on_followed(change.after, change.device, level);
            }
        }
        // Polls do not see the GIL.
        let changes = if self.choice.gil_only { &[] } else { changes };
        self.followed_changes += changes.len() as u64;
        let text = ProgramText { stacks: &self.stacks, sources: &self.sources };
        for change in changes {
            let profile = self.profiles.entry(change.device).or_default();
            profile.follow(change, text, &self.engine, &self.host_only);
        }
    }

    fn on_ownership(&mut self, snapshot: &OwnershipBreakdown) {
        if let Some(exact) = &self.exact {
            self.memory.add_work(exact.memory() as usize / 16);
        }
        let stood_still = Nanos(snapshot.time.0.saturating_sub(snapshot.age.0));
        let allocation_sources = match (&self.exact, snapshot.unnamed_blocks.is_empty()) {
            (Some(exact), false) => exact.accounts_by_block(stood_still),
            _ => Default::default(),
        };
        let allocation_source =
            |device, address| allocation_sources.get(&device)?.get(&address).copied();
        self.owners.on_ownership(snapshot, &allocation_source);
        self.on_owned_blocks(snapshot, stood_still);
        self.iterations.on_ownership(snapshot);
    }

    fn on_snapshot(&mut self, snapshot: &AllocatorSnapshot) {
        let Some(exact) = &mut self.exact else {
            let taken = self.open_snapshots.iter().any(|(d, _)| *d == snapshot.device);
            self.enter_tick(snapshot.time, taken);
            self.open_snapshots.push((snapshot.device, SnapshotBlocks::new(snapshot)));
            return;
        };
        // It is compared with all live blocks.
        self.memory.add_work(exact.memory() as usize / 64);
        exact.on_snapshot(snapshot);
        if let Some(owned) = self.owned_before.remove(&snapshot.device) {
            exact.set_older_owners(snapshot.device, &owned, snapshot.time);
        }
    }

    fn on_source(&mut self, source: &SourceText) {
        let before = self.sources.insert(source.function, source.clone());
        let before = before.map_or(0, |before| before.text.len() as u64);
        self.memory.text = (self.memory.text + source.text.len() as u64).saturating_sub(before);
    }

    fn on_runtime(&mut self, runtime: &TargetRuntime) {
        let is_absent = matches!(
            runtime.allocator,
            AllocatorBackend::NotLoaded | AllocatorBackend::NotInitialized
        );
        if is_absent && self.profiles.is_empty() {
            self.empty_at = Some(runtime.time);
        }
        self.runtime = Some(runtime.clone());
    }

    /// Across a gap nothing is attributed, and no line stays.
    fn on_gap(&mut self, gap: &RecordingGap) {
        self.finish();
        self.gap_count += 1;
        if self.gaps.len() < MAX_GAPS {
            self.gaps.push(gap.clone());
        }
        // A gap at the beginning has no earlier state.
        self.after_gap = gap.from > Nanos(0);
        for threads in [&mut self.previous.threads, &mut self.at_work, &mut self.previously_at_work]
        {
            threads.clear();
        }
        self.profiles.values_mut().for_each(DeviceProfile::interrupt);
        if let Some(exact) = &mut self.exact {
            exact.interrupt();
        }
        self.iterations.lose_since(gap.from);
    }

    fn on_event(&mut self, event: &Event) {
        self.iterations.on_step(self.clock.on_event(event, &self.stacks));
        self.iterations.on_backward_event(event, &self.stacks);
        let Some(exact) = &mut self.exact else { return };
        let freed_on = exact.on_event(event, &self.stacks);
        if let Some(device) = freed_on
            && let Some(level) = exact.allocated_now(device)
        {
            self.iterations.on_freed(event.time, device, level);
            self.on_level(event.time, device, level, None);
        }
        if let EventKind::Allocated {
            memory_kind: MemoryKind::Torch(device),
            levels: Some(levels),
            ..
        } = event.change
        {
            self.iterations.on_counter_snapshot(event.time, device, levels);
            self.on_level(event.time, device, levels.allocated, Some(levels.reserved));
        }
    }

    fn on_level(&mut self, time: Nanos, device: CudaIndex, allocated: i64, reserved: Option<i64>) {
        let Some(timelines) = &mut self.event_timelines else { return };
        let timeline = timelines.entry(device).or_default();
        let last = timeline.points().last();
        if last.is_some_and(|last| last.time > time) {
            return;
        }
        let reserved = reserved.or(last.map(|last| last.reserved));
        // Before the first allocation, reserved bytes are unknown.
        if let Some(reserved) = reserved {
            timeline.add(TimelinePoint { time, allocated, reserved });
        }
    }
}

impl RecordSink for Profile {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.check_limits(record)?;
        match record {
            Record::Sample(sample) => {
                self.iterations.on_step(self.clock.on_sample(sample, &self.stacks));
                if self.clock.settles() {
                    self.iterations.on_sample_window(sample.time);
                }
                self.on_sample(sample);
            }
            Record::Counters { time, device, counters } => {
                self.on_counters(*time, *device, counters);
            }
            Record::ExactSettings(exact) => self.on_exact_settings(exact),
            Record::Events(batch) => {
                // An event can cause much work.
                for events in batch.events.chunks(64) {
                    self.check_work()?;
                    events.iter().for_each(|event| self.on_event(event));
                }
            }
            Record::Followed(batch) => self.on_followed(&batch.changes),
            Record::CounterCheck(counter_check) => {
                if let Some(exact) = &mut self.exact {
                    exact.on_counter_check(counter_check);
                }
            }
            Record::Ownership(snapshot) => self.on_ownership(snapshot),
            Record::Step(step) => self.iterations.on_step(self.clock.on_step(*step)),
            Record::Snapshot(snapshot) => self.on_snapshot(snapshot),
            Record::Definition(definition) => self.define(definition),
            Record::Source(source) => self.on_source(source),
            Record::Start(start) => self.start = Some(start.clone()),
            Record::Runtime(runtime) => self.on_runtime(runtime),
            Record::Device(device) => device.merge_into(&mut self.devices),
            Record::Usage(usage) => self.on_usage(usage),
            Record::Missed(missed) => {
                self.losses.add(missed);
                if (missed.reader, &missed.why) == (ReaderKind::Events, &MissReason::Late) {
                    self.iterations.on_lost_events(missed.time);
                }
            }
            Record::Keyframe(inherited) => self.on_keyframe(inherited),
            Record::TriggerFired(_) | Record::OomException(_) => {}
            Record::Gap(gap) => self.on_gap(gap),
            Record::End(end) => {
                self.finish();
                self.end = Some(end.clone());
            }
        }
        self.last_time = self.last_time.max(record.time().unwrap_or_default());
        Ok(())
    }
}
