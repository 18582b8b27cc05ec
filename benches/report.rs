//! A million exact events as a report: how long that takes, how large the page is, and how soon a
//! browser shows it.
//!
//! `cargo bench --bench report`; with `chromium` on the PATH it also opens the page.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/trace_support/mod.rs"]
mod trace_support;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use trace_support::allocations::{Allocations, Likeness, count};

/// Each of 512 events.
const BATCHES: usize = 2000;
const REPEATS: usize = 3;

fn main() {
    let folder = tempfile::tempdir().unwrap();
    for (name, likeness) in [
        ("training", Likeness::Training),
        ("varied", Likeness::Varied),
        ("random", Likeness::Random),
    ] {
        let records = Allocations::story(likeness, 1, BATCHES, 512);
        let trace = folder.path().join(format!("{name}.bin"));
        std::fs::write(&trace, trace_support::write(&records)).unwrap();
        let page = folder.path().join(format!("{name}.html"));
        let mut best = f64::MAX;
        for _ in 0..REPEATS {
            let began = Instant::now();
            let mut memspy = Command::new(env!("CARGO_BIN_EXE_memspy"));
            let done = memspy.arg("report").arg(&trace).arg("--force").arg("-o").arg(&page);
            let done = done.output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            best = best.min(began.elapsed().as_secs_f64());
        }
        let size = |path: &Path| std::fs::metadata(path).unwrap().len() as f64 / f64::from(1 << 20);
        println!(
            "{name}: {} events, trace {:.2} MiB: page in {best:.2} s, {:.2} MiB{}",
            count(&records),
            size(&trace),
            size(&page),
            opened(&page)
        );
    }
}

/// How soon a browser has drawn the page, by its own clock; it is asked again where it answers
/// before the page is drawn.
fn opened(page: &Path) -> String {
    (0..5)
        .find_map(|_| opened_once(page))
        .unwrap_or_else(|| " (chromium did not draw it)".to_owned())
}

/// `None` where the browser answered before.
fn opened_once(page: &Path) -> Option<String> {
    let mut chromium = Command::new("chromium");
    let options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"];
    let Ok(done) = chromium.args(options).arg(format!("file://{}", page.display())).output() else {
        return Some(" (no chromium here to open it)".to_owned());
    };
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let millis = text.split("data-ready=\"").nth(1)?.split('"').next()?;
    Some(format!(", drawn {millis} ms after it was opened"))
}
