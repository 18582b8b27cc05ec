//! A recorder that resets its numbers from time to time loses no records.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{pythons, sim};
use memspy::analysis::ThreadChoice;
use memspy::files::FileCreation;
use memspy::flight::RingRecorder;
use memspy::model::{Definition, EventKind, Record, RecordSink, SinkResult};
use memspy::sampler::{
    CommonOptions, ExactOptions, ExactRecorder, RecordOptions, Recorder, TargetReaders, attach,
};
use memspy::trace::{Retention, TraceReader};

/// A longer recording has failed.
const LONGEST: Duration = Duration::from_secs(110);

/// Takes and counts the records.
struct Counted {
    flight: RingRecorder,
    anew: u32,
    threads: usize,
    sites: usize,
    /// Enough resets, threads and sites to stop: the time that takes depends on the machine.
    enough: (u32, usize, usize),
    stop: Arc<AtomicBool>,
}

fn threads(record: &Record) -> usize {
    match record {
        Record::Sample(sample) => sample.threads.len(),
        _ => 0,
    }
}

/// Allocations with a known site.
fn sites(record: &Record) -> usize {
    let Record::Events(batch) = record else { return 0 };
    let made = |e: &&memspy::model::Event| matches!(e.change, EventKind::Allocated { .. });
    batch.events.iter().filter(made).filter(|event| event.site.is_some()).count()
}

impl RecordSink for Counted {
    fn record(&mut self, record: &Record) -> SinkResult {
        self.anew += u32::from(matches!(record, Record::Definition(Definition::Reset)));
        self.threads += threads(record);
        self.sites += sites(record);
        let (anew, threads, sites) = self.enough;
        if self.anew >= anew && self.threads >= threads && self.sites >= sites {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.flight.record(record)
    }
}

fn counted(folder: &tempfile::TempDir, enough: (u32, usize, usize)) -> (Counted, PathBuf) {
    let path = folder.path().join("kept.bin");
    let keep = Retention::Time(Duration::from_secs(3600));
    let flight =
        RingRecorder::new(&path, keep, FileCreation::default(), ThreadChoice::default()).unwrap();
    let stop = Arc::default();
    (Counted { flight, anew: 0, threads: 0, sites: 0, enough, stop }, path)
}

fn read(mut sink: Counted, path: &PathBuf) -> (Counted, Vec<Record>) {
    sink.flight.write(None, &mut |_| {}).unwrap();
    let mut records = Vec::new();
    TraceReader::open(path).unwrap().replay(&mut records).unwrap();
    (sink, records)
}

#[test]
fn samples_keep_their_stacks() {
    let mut command = pythons::newest_here().target("busy_stacks.py");
    command.args(["--threads", "4"]);
    let target = crate::support::target::Target::start(command);
    let folder = tempfile::tempdir().unwrap();
    let (mut sink, path) = counted(&folder, (2, 1001, 0));
    let stop = Arc::clone(&sink.stop);
    let readers = attach(target.pid(), &stop).unwrap();
    let duration = Some(LONGEST);
    let also = CommonOptions { forget_after: Some(5), ..CommonOptions::default() };
    let wanted = RecordOptions { rate: 500, duration, follow: None, common: also };
    Recorder::new(readers, wanted).run("here".into(), &mut sink, &stop, &mut |_| {}).unwrap();
    let (sink, records) = read(sink, &path);
    assert!(sink.anew >= 2, "{}", sink.anew);
    assert!(sink.threads > 1000);
    assert_eq!(records.iter().map(threads).sum::<usize>(), sink.threads);
    target.finish();
}

#[test]
#[ignore = "takes long, and samples_keep_their_stacks sees numbers begin again: scripts/test.sh --all runs it"]
fn exact_events_keep_their_sites() {
    let mut target = sim::start("allocator_load.py", &[]);
    target.say("hold 1");
    target.read_until_ready();
    let folder = tempfile::tempdir().unwrap();
    let (mut sink, path) = counted(&folder, (1, 0, 1001));
    let stop = Arc::clone(&sink.stop);
    let readers = TargetReaders::attach_any(target.pid()).unwrap();
    let duration = Some(LONGEST);
    let also = CommonOptions { forget_after: Some(5), ..CommonOptions::default() };
    let wanted = ExactOptions { duration, common: also, ..ExactOptions::default() };
    let mut recorder = ExactRecorder::new(readers, wanted);
    recorder.attach_probes().unwrap();
    target.say("train 120");
    target.read_until_ready();
    recorder.run("here".into(), &mut sink, &stop, &mut |_| {}).unwrap();
    let (sink, records) = read(sink, &path);
    assert!(sink.anew >= 1, "{}", sink.anew);
    assert!(sink.sites > 1000, "{}", sink.sites);
    assert_eq!(records.iter().map(sites).sum::<usize>(), sink.sites);
    let mut table = memspy::model::StackTable::new();
    for record in &records {
        if let Record::Definition(definition) = record {
            assert!(table.define(definition.clone()));
        }
    }
    // Stacks that the kernel described before a reset are still known.
    let made = records.iter().rev().find(|record| sites(record) > 0).unwrap();
    let Record::Events(batch) = made else { unreachable!() };
    let site = batch.events.iter().rev().find_map(|event| event.site).unwrap();
    assert!(table.get_site(site).unwrap().stack.is_some());
    target.kill();
}
