//! How a recording polls counters.

use anyhow::{Result, bail};

use crate::model::{AllocatorBackend, FollowTotals};
use crate::sampler::{FollowBudget, TargetReaders, processors};

use super::args::{ModeArg, RecordArgs, RecordFormat, TopArgs};

/// Samples per second, with or without polls of the counters.
pub(super) const RECORD_RATE: u32 = 200;
const TOP_RATE: u32 = 100;

#[derive(Debug, Clone)]
pub(super) struct FollowChoice {
    pub(super) rate: u32,
    /// Budget of all polls; `None`: no polls.
    pub(super) budget: Option<FollowBudget>,
    /// It is an error if counters cannot be polled.
    pub(super) is_required: bool,
    pub(super) is_shared: bool,
}

impl FollowChoice {
    pub(super) fn automatic(budget: Option<FollowBudget>) -> FollowChoice {
        FollowChoice { rate: RECORD_RATE, budget, is_required: false, is_shared: false }
    }

    pub(super) fn for_record(args: &RecordArgs, follows: bool) -> Result<FollowChoice> {
        let is_shared = args.records_several();
        if let (Some(percent), false) = (args.cpu, is_shared)
            && percent > 100.0 * FollowBudget::MOST
        {
            bail!(
                "--cpu {percent} is more than two processors, and following one process uses two at most, one to poll and one to \
                 read addresses: more than 200 is for -s and --match, where all processes share it"
            );
        }
        // A poll does not show which thread holds the GIL.
        let by_gil = args.stacks.gil && args.format != RecordFormat::Trace;
        Ok(FollowChoice {
            rate: args.rate.unwrap_or(RECORD_RATE),
            budget: (follows && !by_gil).then(|| budget(args.cpu)),
            is_required: follows && (args.follow || args.mode == Some(ModeArg::Follow)),
            is_shared,
        })
    }

    pub(super) fn for_top(args: &TopArgs) -> FollowChoice {
        let samples_only = args.exact || args.rate.is_some() || args.gil;
        FollowChoice {
            rate: args.rate.unwrap_or(TOP_RATE),
            budget: (!samples_only).then(|| budget(args.cpu)),
            is_required: false,
            is_shared: args.subprocesses,
        }
    }

    /// The first message; fails if required polls are impossible.
    pub(super) fn opening(&self, readers: &TargetReaders) -> Result<Option<String>> {
        let (refusal, limit) = (readers.follow_refusal(), readers.allocator_refusal());
        if let (true, Some(why)) = (self.is_required, &refusal) {
            bail!(
                "process {} cannot be followed: {why}; without --follow it is recorded in another mode",
                readers.pid()
            );
        }
        let waits = match readers.allocator() {
            AllocatorBackend::NotLoaded => Some("PyTorch's CUDA part is not loaded in it"),
            AllocatorBackend::NotInitialized => Some("PyTorch has not used CUDA in it yet"),
            _ => None,
        };
        let is_limited = waits.is_some() || limit.is_some();
        let mut parts = Vec::new();
        parts.extend(waits.map(|wait| format!("{wait}; waiting for it")));
        parts.extend(limit.clone());
        if is_limited {
            parts.push("recording stacks and the driver's totals".to_owned());
        }
        match (&self.budget, refusal) {
            (None, _) => {}
            (Some(_), Some(why)) => {
                let why = if limit.is_some() { String::new() } else { format!("{why}: ") };
                parts.push(format!("{why}not followed, but sampled {} times a second", self.rate));
            }
            (Some(budget), None) => {
                let then = if is_limited { "then " } else { "" };
                parts.push(format!("{then}following PyTorch's allocator {}", self.within(budget)));
            }
        }
        Ok((!parts.is_empty()).then(|| parts.join("; ")))
    }

    /// Why a recording has no polls although they were required.
    pub(super) fn unfollowed(&self, totals: Option<&FollowTotals>) -> Result<()> {
        if self.is_required && totals.is_none_or(|totals| totals.polls == 0) {
            bail!(
                "the allocator was not followed: the job used no memory of PyTorch's CUDA allocator while it was recorded; \
                 without --follow that is no error"
            );
        }
        Ok(())
    }

    pub(super) fn sharing(&self) -> Option<String> {
        let budget = self.budget.as_ref()?;
        Some(format!(
            "their allocators are followed with at most {:.0} % of a processor in all, shared evenly (--cpu)",
            100.0 * budget.processors()
        ))
    }

    fn within(&self, budget: &FollowBudget) -> String {
        let percent = 100.0 * budget.of_one_process();
        let shared = if self.is_shared { ", shared with the others" } else { "" };
        format!("with at most {percent:.0} % of a processor (--cpu{shared})")
    }
}

fn budget(percent: Option<f64>) -> FollowBudget {
    match percent {
        Some(percent) => FollowBudget::new(percent / 100.0),
        None => FollowBudget::for_machine(processors()),
    }
}
