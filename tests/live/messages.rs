//! What `--quiet` and `--verbose` keep and add on standard error.

use crate::support::memspy::{memspy, memspy_at};
use crate::support::sim;

#[test]
fn quiet_keeps_results_and_errors() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("a.bin");
    let trace = trace.to_str().unwrap();
    let words = ["record", "-d", "300ms", "-o", trace];
    let usual = memspy_at(target.pid(), &words).ok();
    assert!(usual.err.contains("attached to process") && usual.err.contains("Recorded to"));
    let quiet = memspy_at(target.pid(), &[&words[..], &["-q", "--force"]].concat()).ok();
    assert_eq!((quiet.out.as_str(), quiet.err.as_str()), ("", ""));
    assert!(memspy(&["--quiet", "lines", trace]).ok().out.contains("MiB"), "a result is printed");
    memspy(&["lines", "-q", "/nonexistent/trace.bin"]).refused(&["there is no such trace"]);
}

#[test]
fn verbose_tells_what_memspy_does() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let told = memspy_at(target.pid(), &["tensors", "-v"]).ok();
    let usual = memspy_at(target.pid(), &["tensors"]).ok();
    assert!(told.err.contains("attached to process"), "{}", told.err);
    assert!(!usual.err.contains("attached to process"), "{}", usual.err);
    let told = memspy_at(target.pid(), &["summary", "--for", "300ms", "--verbose"]).ok();
    assert!(told.err.contains("reading owners, after "), "{}", told.err);
    assert!(told.out.starts_with("Process "), "{}", told.out);
}
