//! The live profile: its rows add up, and days of recording fit into bounded memory.

use crate::analysis_script::MIB;
use crate::analysis_script::live_job::{GPU, job, live};
use memspy::analysis::{LiveStack, PseudoFrame, StackLabel};
use memspy::model::*;

#[test]
fn live_bytes_of_lines_and_stacks_add_up() {
    let live = live(&job());
    let library = |function| {
        let stacks = live.profile().stacks();
        stacks.get_function(function).is_some_and(|f| is_library(&f.file))
    };
    let counter = live.profile().counters(GPU).unwrap().allocated() as u64;
    for rows in [live.lines(GPU, None).unwrap(), live.lines(GPU, Some(&library)).unwrap()] {
        assert_eq!(rows.allocated, counter);
        assert_eq!(rows.rows.iter().map(|row| row.own).sum::<u64>(), counter);
        assert!(rows.consistent && rows.rows.iter().all(|row| row.own <= row.total));
    }
    let stacks = live.stacks(GPU).unwrap();
    assert_eq!(stacks.rows.iter().map(|row| row.bytes).sum::<u64>(), counter);
    assert_eq!(stacks.rows.iter().map(|row| row.at_peak).sum::<u64>(), 427 * MIB);
    let before = |row: &&LiveStack| row.path == [StackLabel::Pseudo(PseudoFrame::BeforeRecording)];
    assert_eq!(stacks.rows.iter().find(before).unwrap().bytes, 300 * MIB);
}

#[test]
fn functions_without_end_fill_it() {
    let mut script = job();
    let mut live = live(&script);
    let mut made = 0u64;
    while !live.is_full() {
        let seen = script.records.len();
        for _ in 0..10_000 {
            let function = script.function(&format!("made_up_{made}"), "<string>");
            let frame = script.table.frame(Frame { function, line: 1 });
            script.table.stack(None, frame);
            made += 1;
        }
        script.define();
        for record in &script.records[seen..] {
            live.record(record).unwrap();
        }
        script.records.truncate(seen);
        assert!(made < 1_000_000, "it grows without end");
    }
    assert!(made > 100_000, "{made} functions are not many");
    live.reset();
    assert!(!live.is_full());
}

#[test]
fn the_peak_of_allocated_is_never_above_that_of_reserved() {
    let mut script = job();
    for record in &mut script.records {
        // Reserved bytes come less often than allocated ones.
        if let Record::Counters { counters, .. } = record {
            counters.stats[Metric::ReservedBytes as usize][0] = Stat::default();
        }
    }
    let marks = live(&script).marks(GPU).unwrap();
    assert_eq!(marks.allocated, (427 * MIB) as i64);
    assert_eq!(marks.reserved, marks.allocated);
}
