//! Follows the allocator along a recording.

use std::io;

use super::address_windows::AddressWindows;
use super::assembler::{Assembler, TotaledChange};
use super::{FollowBudget, PollerHandle};
use crate::model::{
    AllocatorCounters, CudaIndex, FollowTotals, FollowedChange, FollowedChanges, JobCost, Metric,
    MissReason, Nanos, Pool, ReaderKind, Record, RecordSink, SinkResult, StackSample,
};
use crate::sampler::quiet_moment::LastChange;
use crate::sampler::readers::TorchState;
use crate::sampler::session::RecordingSession;

const MAX_CHANGES: usize = 1 << 14;

pub(in crate::sampler) struct Following {
    poller: PollerHandle,
    assembler: Assembler,
    later: Vec<TotaledChange>,
    addresses: AddressWindows,
    addressed: Option<CudaIndex>,
}

impl Following {
    /// `None` if the target's stacks cannot be polled.
    pub(in crate::sampler) fn start(
        session: &RecordingSession,
        budget: &FollowBudget,
        last_change: LastChange,
    ) -> io::Result<Option<Self>> {
        let process = &session.readers.process;
        let python = session.readers.python.as_ref();
        let Some((stacks, namer)) = python.and_then(|python| python.stack_poller(process)) else {
            return Ok(None);
        };
        let poller =
            PollerHandle::start(process, stacks, budget.join(), session.start, last_change)?;
        let assembler = Assembler::new(namer);
        Ok(Some(Following {
            poller,
            assembler,
            later: Vec::new(),
            addresses: AddressWindows::default(),
            addressed: None,
        }))
    }

    pub(in crate::sampler) fn plan(&mut self, session: &RecordingSession, sample: &StackSample) {
        let (Some(python), TorchState::Attached(torch)) =
            (&session.readers.python, &session.readers.torch)
        else {
            return;
        };
        if self.addressed.is_none()
            && self.poller.reads_addresses()
            // One set of tables has the addresses of all devices.
            && let Some(device) = self.assembler.only_device()
            && let Some(tables) = torch.address_tables(device)
        {
            self.poller.set_tables(Some(tables));
            self.addressed = Some(device);
        }
        if let Some(mut plan) = self.assembler.plan(python.poll_targets(), &sample.threads) {
            plan.working_locks = python.working_locks();
            plan.counters = torch.counter_poller().map(|mut poller| {
                poller.retain(|device| self.assembler.has(device));
                poller
            });
            self.poller.set(plan);
        }
    }

    pub(in crate::sampler) fn see_counters(&mut self, counters: &[(CudaIndex, AllocatorCounters)]) {
        for (device, counters) in counters {
            if counters.stat(Metric::Allocation, Pool::All).allocated > 0 {
                self.assembler.uses(*device);
            }
        }
    }

    pub(in crate::sampler) fn replan(&mut self) {
        if self.addressed.take().is_some() {
            self.poller.set_tables(None);
            self.addresses.forget();
        }
        self.assembler.replan();
    }

    pub(in crate::sampler) fn forget_numbers(&mut self) {
        self.assembler.forget_numbers();
        self.assembler.replan();
    }

    pub(in crate::sampler) fn record(
        &mut self,
        session: &mut RecordingSession,
        until: Nanos,
        sink: &mut dyn RecordSink,
    ) -> SinkResult {
        let batches = self.poller.take();
        self.addresses.add(self.poller.take_addresses());
        match self.assembler.changes(batches, &mut session.table) {
            Ok(changes) => self.later.extend(changes),
            Err(error) => {
                session.losses.add(ReaderKind::Stacks, MissReason::Failed(error.to_string()), 1)
            }
        }
        let split = self.later.partition_point(|(change, _)| change.after <= until);
        if split == 0 {
            return Ok(());
        }
        session.record_definitions(sink)?;
        let rest = self.later.split_off(split);
        let changes = std::mem::replace(&mut self.later, rest).into_iter();
        let mut changes: Vec<FollowedChange> = changes
            .map(|(mut change, totals)| {
                if self.addressed == Some(change.device) {
                    self.addresses.complete(&mut change, totals);
                }
                change
            })
            .collect();
        while !changes.is_empty() {
            let next = changes.split_off(changes.len().min(MAX_CHANGES));
            sink.record(&Record::Followed(FollowedChanges { changes }))?;
            changes = next;
        }
        Ok(())
    }

    pub(in crate::sampler) fn end(
        mut self,
        session: &mut RecordingSession,
        sink: &mut dyn RecordSink,
    ) -> SinkResult<(FollowTotals, Option<JobCost>)> {
        if let Some(error) = self.poller.end()
            && session.is_over().is_none()
        {
            session.losses.add(ReaderKind::Stacks, MissReason::Failed(error.to_string()), 1);
        }
        self.record(session, Nanos(u64::MAX), sink)?;
        Ok((self.assembler.complete(self.poller.totals()), self.poller.cost()))
    }
}
