//! Exact recordings give pytorch_memlab's line peaks on the example of its README, run at full speed.

#![allow(unreachable_pub, reason = "support is a module of each test binary")]

mod support;

use serde_json::Value;
use support::memspy::{Recording, lines, row};
use support::sim;

/// The table in pytorch_memlab's README: outer 40.00K, 80.00K, 120.00K, inner 120.00K; 2.00M reserved.
#[test]
fn memlabs_example_gives_memlabs_table() {
    // Without pauses: far too fast for samples.
    let target = sim::start("memlab_outer_inner.py", &["--pause", "0"]);
    let known: Value = serde_json::from_str(&target.said[0]).unwrap();
    let mut recording = Recording::start_exact(target.pid(), &["--frees", "stacks", "-d", "2"]);
    recording.wait().ok();
    target.finish();

    let (active, reserved) = ("active_bytes.all.peak", "reserved_bytes.all.peak");
    let report = lines(recording.trace(), &["--columns", &format!("{active},{reserved}")]);
    let mut exact = 0;
    for (function, line, truth) in [
        ("outer", "outer.linear", 40 << 10),
        ("outer", "outer.linear2", 80 << 10),
        ("outer", "outer.inner", 120 << 10),
        ("inner", "inner.linear", 120 << 10),
    ] {
        let row = row(&report, function, known["lines"][line].as_u64().unwrap())
            .unwrap_or_else(|| panic!("{line} is not listed"));
        for (column, truth) in [(active, truth), (reserved, 2 << 20)] {
            let cell = &row["columns"][column];
            assert_eq!(cell["value"], truth, "{line} {column}: {row}");
            assert!(cell["upper"].as_i64().is_none_or(|u| u >= truth), "{line} {column}: {row}");
            exact += usize::from(cell["exact"] == true);
        }
    }
    // Of the line that memspy came into the midst of, and its caller, it is not known how they began.
    assert!(exact > 0, "{report}");
}
