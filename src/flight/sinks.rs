//! The sinks of a recording, and the conditions on its records.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::analysis::{OomBuilder, Profile, TriggerWatch};
use crate::model::{
    EndReason, Nanos, Record, RecordSink, RecordingEnd, SinkError, SinkResult, TriggerFired,
};
use crate::trace::TraceWriter;

use super::print::TablePrinter;
use super::recorder::RingRecorder;
use super::report::oom_report_path;

/// Nanoseconds. A condition met sooner after another one is only counted.
const MIN_TRIGGER_INTERVAL: u64 = 2_000_000_000;
/// Nanoseconds to wait for the error's text.
const ERROR_TEXT_TIMEOUT: u64 = 1_000_000_000;

/// What to do when a condition is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTrigger {
    /// End the recording.
    End,
    /// Write the kept part and go on.
    Continue,
}

/// Events for the host of a recording.
#[derive(Debug)]
#[non_exhaustive]
pub enum HostEvent {
    /// A problem with the kept segments.
    Warning(String),
    /// A condition was met.
    Triggered(TriggerFired),
    /// A condition was met; the kept part is written and the recording goes on.
    RecordingWritten {
        /// The condition.
        triggered: TriggerFired,
        /// The trace.
        recording: PathBuf,
        /// The report on it.
        report: PathBuf,
    },
    /// Conditions met too soon after another one.
    TriggersIgnored(u64),
}

/// Gets a recording's events and writes its report.
#[allow(missing_docs)]
pub trait RecordingHost: Send {
    fn tell(&mut self, event: HostEvent);

    fn write_oom_report(&mut self, reports: &mut OomBuilder, path: &Path) -> SinkResult;
}

/// The destination of records.
pub enum RecordOutput {
    /// Nowhere: only the aggregation is wanted.
    Nothing,
    /// All records.
    Trace(Box<TraceWriter<File>>),
    /// The last records.
    Flight(Box<RingRecorder>),
}

/// What is aggregated.
pub enum Aggregation {
    /// Nothing: it is read from the kept part.
    Later,
    /// A profile for reports.
    Profile(Box<Profile>),
    /// A profile, and the moment of a condition.
    OomReport(Box<OomBuilder>),
}

impl Aggregation {
    /// The profile of the recording so far.
    pub fn profile(&self) -> Option<&Profile> {
        match self {
            Aggregation::Later => None,
            Aggregation::Profile(profile) => Some(profile),
            Aggregation::OomReport(reports) => Some(reports.profile()),
        }
    }
}

/// One of a job's recordings; one condition ends all.
#[derive(Clone, Default)]
pub struct RankContext {
    /// Prefix of messages: `rank 1 (process 1234)`; `None`: the only recording.
    pub label: Option<String>,
    /// The first condition and its recording's label.
    pub ended_by: Arc<OnceLock<(String, String)>>,
}

impl RankContext {
    /// Another recording of the same job.
    pub fn with_label(&self, label: String) -> RankContext {
        RankContext { label: Some(label), ended_by: Arc::clone(&self.ended_by) }
    }

    fn ended_by_other(&self) -> Option<EndReason> {
        let (condition, process) = self.ended_by.get()?;
        let is_own = self.label.as_ref() == Some(process);
        (!is_own).then(|| EndReason::OtherProcess {
            condition: condition.clone(),
            process: process.clone(),
        })
    }
}

/// Conditions, and what to do then.
pub struct TriggerState {
    watch: TriggerWatch,
    then: OnTrigger,
    max_reports: u32,
    stop: Arc<AtomicBool>,
    fired: Option<String>,
    last: Option<Nanos>,
    uncounted: u64,
    held: Option<TriggerFired>,
    message_time: Option<Nanos>,
}

impl TriggerState {
    /// Waits for the conditions of `watch`.
    pub fn new(
        watch: TriggerWatch,
        then: OnTrigger,
        most: u32,
        stop: Arc<AtomicBool>,
    ) -> TriggerState {
        TriggerState {
            watch,
            then,
            max_reports: most,
            stop,
            fired: None,
            last: None,
            uncounted: 0,
            held: None,
            message_time: None,
        }
    }
}

/// All sinks of a recording.
#[allow(missing_docs)]
pub struct SinkChain {
    pub output: RecordOutput,
    pub reading: Aggregation,
    pub waiting: TriggerState,
    pub printer: Option<TablePrinter>,
    pub rank: RankContext,
    pub host: Box<dyn RecordingHost>,
}

impl SinkChain {
    /// Prints the last table and delivers events.
    pub fn finish(&mut self) -> SinkResult {
        if self.waiting.uncounted > 0 {
            self.host.tell(HostEvent::TriggersIgnored(self.waiting.uncounted));
        }
        match &mut self.printer {
            Some(printer) => printer.finish(self.reading.profile()),
            None => Ok(()),
        }
    }

    fn pass(&mut self, record: &Record) -> SinkResult {
        match &mut self.output {
            RecordOutput::Nothing => {}
            RecordOutput::Trace(writer) => writer.record(record)?,
            RecordOutput::Flight(flight) => flight.record(record)?,
        }
        match &mut self.reading {
            Aggregation::Later => Ok(()),
            Aggregation::Profile(profile) => profile.record(record),
            Aggregation::OomReport(reports) => reports.record(record),
        }
    }

    fn print(&mut self, record: &Record) -> SinkResult {
        let Some(printer) = &mut self.printer else { return Ok(()) };
        match printer.on_record(record, self.reading.profile()) {
            Err(error) if error.is_broken_pipe() => {
                self.printer = None;
                Ok(())
            }
            other => other,
        }
    }

    fn fire(&mut self, triggered: TriggerFired) -> SinkResult {
        let waiting = &mut self.waiting;
        if waiting.fired.is_some()
            || waiting
                .last
                .is_some_and(|last| triggered.time.0.saturating_sub(last.0) < MIN_TRIGGER_INTERVAL)
        {
            waiting.uncounted += 1;
            return Ok(());
        }
        waiting.last = Some(triggered.time);
        // Record the moment now; only its effect waits.
        self.pass(&Record::TriggerFired(triggered.clone()))?;
        let is_recent =
            |words: Nanos| triggered.time.0.saturating_sub(words.0) < ERROR_TEXT_TIMEOUT;
        if triggered.condition == "oom" && !self.waiting.message_time.is_some_and(is_recent) {
            self.waiting.held = Some(triggered);
            return Ok(());
        }
        self.act(triggered)
    }

    /// Acts once the error's text is there, or none can come.
    fn release(&mut self, record: &Record) -> SinkResult {
        if let Record::OomException(oom_exception) = record {
            self.waiting.message_time = Some(oom_exception.time);
        }
        let is_due = |held: &mut TriggerFired| {
            let late = record.time().is_some_and(|now| now.0 >= held.time.0 + ERROR_TEXT_TIMEOUT);
            late || matches!(record, Record::OomException(_))
        };
        self.waiting.held.take_if(is_due).map_or(Ok(()), |triggered| self.act(triggered))
    }

    fn act(&mut self, triggered: TriggerFired) -> SinkResult {
        let going_on = self.waiting.then == OnTrigger::Continue;
        if let (true, RecordOutput::Flight(flight)) = (going_on, &mut self.output) {
            let last = flight.written() + 1 >= self.waiting.max_reports;
            if !last {
                let host = &mut self.host;
                let mut warn = |warning| host.tell(HostEvent::Warning(warning));
                let mut reported =
                    flight.write(Some(&triggered), &mut warn).map_err(SinkError::failed)?;
                let (recording, report) = (reported.path.clone(), oom_report_path(&reported.path));
                host.write_oom_report(&mut reported.reports, &report)?;
                host.tell(HostEvent::RecordingWritten { triggered, recording, report });
                return Ok(());
            }
        }
        self.host.tell(HostEvent::Triggered(triggered.clone()));
        if let Some(label) = &self.rank.label {
            // Before the others are stopped: they look for the reason.
            let _ = self.rank.ended_by.set((triggered.condition.clone(), label.clone()));
        }
        self.waiting.fired = Some(triggered.condition);
        self.waiting.stop.store(true, Ordering::Release);
        Ok(())
    }
}

impl RecordSink for SinkChain {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.print(record)?;
        let Record::End(end) = record else {
            self.pass(record)?;
            self.release(record)?;
            let fired = self.waiting.watch.on_record(record);
            return fired.map_or(Ok(()), |triggered| self.fire(triggered));
        };
        if let Some(held) = self.waiting.held.take() {
            self.waiting.fired = Some(held.condition.clone());
            self.host.tell(HostEvent::Triggered(held));
        }
        // A condition met by the end is recorded before it.
        if let Some(triggered) = self.waiting.watch.on_record(record)
            && self.waiting.fired.is_none()
        {
            self.host.tell(HostEvent::Triggered(triggered.clone()));
            self.pass(&Record::TriggerFired(triggered))?;
        }
        let reason = match (&self.waiting.fired, &end.reason) {
            (Some(what), EndReason::Interrupted) => EndReason::Condition(what.clone()),
            (None, EndReason::Interrupted) => {
                self.rank.ended_by_other().unwrap_or(EndReason::Interrupted)
            }
            (_, reason) => reason.clone(),
        };
        self.pass(&Record::End(RecordingEnd { reason, ..end.clone() }))
    }

    fn sync(&mut self) -> SinkResult {
        match &mut self.output {
            RecordOutput::Nothing => Ok(()),
            RecordOutput::Trace(writer) => writer.sync(),
            RecordOutput::Flight(flight) => flight.sync(),
        }
    }
}
