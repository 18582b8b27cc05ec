//! A gap in a joined recording is written as specified.

use crate::trace_support::by_hand::reads;
use memspy::model::{Nanos, Record, RecordingGap};

#[test]
fn a_file_made_by_hand_reads_as_its_prose_says() {
    let gap = |from, to| {
        Record::Gap(RecordingGap { from: Nanos(from), to: Nanos(to), why: "no".to_owned() })
    };
    let by_hand = [
        vec![0, 7, 0, 0, 0, 0, 0, 0, 0],
        // From 40 to 100 ns; up to 1 ns later from the beginning.
        b"\x1a\x05\xc8\x28\x02no".to_vec(),
        b"\x1a\x05\x02\x00\x02no".to_vec(),
    ];
    reads(&by_hand, &[gap(40, 100), gap(0, 101)]);
}
