//! Where the records of `memspy record` go: a trace, what is kept of one, a profile, tables; and what they may set off.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::analysis::{Profile, Verdicts, Watch};
use crate::model::{End, EndReason, Nanos, Record, RecordSink, Triggered};
use crate::trace::Writer;

use super::args::ThenWord;
use super::flight::{Flight, Printer};
use super::say;

/// While a recording goes on, a condition that comes true so shortly after another one is only counted.
const REST: u64 = 2_000_000_000;
/// What an out-of-memory error said is waited for no longer than this.
const WORDS_COME: u64 = 1_000_000_000;

/// What becomes of the records themselves.
pub(super) enum To {
    /// Nothing: only what they tell is wanted.
    Nothing,
    /// All are written.
    Trace(Box<Writer<File>>),
    /// The last ones are kept.
    Flight(Box<Flight>),
}

/// What is known from the records.
pub(super) enum Reading {
    /// Nothing, for it is read from what was kept.
    Later,
    /// What reports are made of.
    Profile(Box<Profile>),
    /// That, and the moment at which a condition came true.
    Verdicts(Box<Verdicts>),
}

impl Reading {
    /// The profile of the recording so far.
    pub(super) fn profile(&self) -> Option<&Profile> {
        match self {
            Reading::Later => None,
            Reading::Profile(profile) => Some(profile),
            Reading::Verdicts(verdicts) => Some(verdicts.profile()),
        }
    }
}

/// What is waited for, and what is done then.
pub(super) struct Waiting {
    pub(super) watch: Watch,
    pub(super) then: ThenWord,
    /// Recordings after which it ends in any case.
    pub(super) most: u32,
    /// Ends the recording when set.
    pub(super) stop: Arc<AtomicBool>,
    pub(super) force: bool,
    fired: Option<String>,
    last: Option<Nanos>,
    uncounted: u64,
    /// Came true, and waits for the words of its error.
    held: Option<Triggered>,
    /// When the words of an error came last.
    words: Option<Nanos>,
}

impl Waiting {
    /// Waits for what `watch` does.
    pub(super) fn new(
        watch: Watch,
        then: ThenWord,
        most: u32,
        stop: Arc<AtomicBool>,
        force: bool,
    ) -> Waiting {
        Waiting {
            watch,
            then,
            most,
            stop,
            force,
            fired: None,
            last: None,
            uncounted: 0,
            held: None,
            words: None,
        }
    }
}

/// All of it.
pub(super) struct Sinks {
    pub(super) to: To,
    pub(super) reading: Reading,
    pub(super) waiting: Waiting,
    pub(super) printer: Option<Printer>,
}

impl Sinks {
    /// The last table, and what was left to say.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if self.waiting.uncounted > 0 {
            say(&format!(
                "conditions came true {} more times within 2 s of a recording that was written",
                self.waiting.uncounted
            ));
        }
        match &mut self.printer {
            Some(printer) => printer.finish(self.reading.profile()),
            None => Ok(()),
        }
    }

    fn pass(&mut self, record: &Record) -> io::Result<()> {
        match &mut self.to {
            To::Nothing => {}
            To::Trace(writer) => writer.record(record)?,
            To::Flight(flight) => flight.record(record)?,
        }
        match &mut self.reading {
            Reading::Later => Ok(()),
            Reading::Profile(profile) => profile.record(record),
            Reading::Verdicts(verdicts) => verdicts.record(record),
        }
    }

    fn print(&mut self, record: &Record) -> io::Result<()> {
        let Some(printer) = &mut self.printer else { return Ok(()) };
        match printer.take(record, self.reading.profile()) {
            // Nobody reads the tables any more; the recording goes on.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.printer = None;
                Ok(())
            }
            other => other,
        }
    }

    fn fire(&mut self, triggered: Triggered) -> io::Result<()> {
        let waiting = &mut self.waiting;
        if waiting.fired.is_some()
            || waiting.last.is_some_and(|last| triggered.time.0.saturating_sub(last.0) < REST)
        {
            waiting.uncounted += 1;
            return Ok(());
        }
        waiting.last = Some(triggered.time);
        // The moment is this one; only what is made of it waits.
        self.pass(&Record::Triggered(triggered.clone()))?;
        let told = |words: Nanos| triggered.time.0.saturating_sub(words.0) < WORDS_COME;
        if triggered.condition == "oom" && !self.waiting.words.is_some_and(told) {
            self.waiting.held = Some(triggered);
            return Ok(());
        }
        self.act(triggered)
    }

    /// Acts on what was held back, when the words of its error have come with `record` or will not.
    fn release(&mut self, record: &Record) -> io::Result<()> {
        if let Record::Thrown(thrown) = record {
            self.waiting.words = Some(thrown.time);
        }
        let is_due = |held: &mut Triggered| {
            let late = record.time().is_some_and(|now| now.0 >= held.time.0 + WORDS_COME);
            late || matches!(record, Record::Thrown(_))
        };
        self.waiting.held.take_if(is_due).map_or(Ok(()), |triggered| self.act(triggered))
    }

    /// Writes what is kept, or ends the recording.
    fn act(&mut self, triggered: Triggered) -> io::Result<()> {
        let going_on = self.waiting.then == ThenWord::Continue;
        let what = format!("'{}' came true: {}", triggered.condition, triggered.seen);
        if let (true, To::Flight(flight)) = (going_on, &mut self.to) {
            let last = flight.written() + 1 >= self.waiting.most;
            if !last {
                let other = |error: anyhow::Error| io::Error::other(format!("{error:#}"));
                let mut reported = flight.write(Some(&triggered)).map_err(other)?;
                let verdict = reported.write_verdict(self.waiting.force).map_err(other)?;
                say(&format!(
                    "{what}; wrote {} and {}",
                    reported.path.display(),
                    verdict.display()
                ));
                return Ok(());
            }
        }
        say(&what);
        self.waiting.fired = Some(triggered.condition);
        self.waiting.stop.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl RecordSink for Sinks {
    fn record(&mut self, record: &Record) -> io::Result<()> {
        self.print(record)?;
        let Record::End(end) = record else {
            self.pass(record)?;
            self.release(record)?;
            let fired = self.waiting.watch.take(record);
            return fired.map_or(Ok(()), |triggered| self.fire(triggered));
        };
        if let Some(held) = self.waiting.held.take() {
            say(&format!("'{}' came true: {}", held.condition, held.seen));
            self.waiting.fired = Some(held.condition);
        }
        // What the end itself makes true stands before it.
        if let Some(triggered) = self.waiting.watch.take(record)
            && self.waiting.fired.is_none()
        {
            say(&format!("'{}' came true: {}", triggered.condition, triggered.seen));
            self.pass(&Record::Triggered(triggered))?;
        }
        let reason = match (&self.waiting.fired, &end.reason) {
            (Some(what), EndReason::Interrupted) => EndReason::Condition(what.clone()),
            (_, reason) => reason.clone(),
        };
        self.pass(&Record::End(End { reason, ..end.clone() }))
    }

    fn sync(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Nothing => Ok(()),
            To::Trace(writer) => writer.sync(),
            To::Flight(flight) => flight.sync(),
        }
    }
}
