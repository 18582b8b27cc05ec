//! The page of `memspy report`: every view of a moment has the same sum, hostile names stay text,
//! and `--redact` leaves out.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use serde_json::Value;

use crate::analysis_script::{MIB, Script};
use crate::exact_script::Probed;
use crate::trace_support;
use crate::trace_support::allocations::{Allocations, Likeness};
use memspy::model::*;

struct Report {
    page: String,
    figures: Value,
}

fn memspy(words: &[&str]) -> (i32, String, String) {
    let done = Command::new(cargo_bin("memspy")).args(words).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

/// A file's page.
fn report_of(trace: &str, words: &[&str]) -> Report {
    let (code, page, err) = memspy(&[&["report", trace, "-o", "-"], words].concat());
    assert_eq!(code, 0, "{err}");
    let packed = page.split("id=\"figures\">").nth(1).unwrap().split("</script>").next().unwrap();
    let mut json = String::new();
    let packed: String = packed.split_whitespace().collect();
    let packed = STANDARD.decode(packed).unwrap();
    GzDecoder::new(&packed[..]).read_to_string(&mut json).unwrap();
    Report { figures: serde_json::from_str(&json).unwrap(), page }
}

fn stored(records: &[Record]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.bin");
    std::fs::write(&trace, trace_support::write(records)).unwrap();
    (folder, trace)
}

fn report(records: &[Record], words: &[&str]) -> Report {
    let (_folder, trace) = stored(records);
    report_of(trace.to_str().unwrap(), words)
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
}

fn tracks(figures: &Value) -> Vec<&Value> {
    let recordings = figures["recordings"].as_array().unwrap();
    recordings.iter().flat_map(|recording| recording["tracks"].as_array().unwrap()).collect()
}

/// Each stack's bytes at a moment, summed as in the page.
fn live(track: &Value, moment: usize) -> Vec<u64> {
    let mut bytes = vec![0; track["stacks"].as_array().unwrap().len()];
    let column = |name: &str| numbers(&track["spans"][name]);
    let (stack, from, to, size) = (column("stack"), column("from"), column("to"), column("bytes"));
    for i in 0..stack.len() {
        if from[i] as usize <= moment && moment < to[i] as usize {
            bytes[stack[i] as usize] += size[i];
        }
    }
    let estimates = numbers(&track["estimates"]);
    let all: u128 = estimates.iter().map(|stack| u128::from(bytes[*stack as usize])).sum();
    let shared = u128::from(numbers(&track["moments"]["shared"])[moment]);
    let mut done = 0u128;
    for stack in estimates.iter().filter(|_| all > 0) {
        let part = &mut bytes[*stack as usize];
        let upto = done + u128::from(*part);
        *part = (shared * upto / all - shared * done / all) as u64;
        done = upto;
    }
    // Blocks whose free was lost exceed the allocator's level: they are scaled to fit.
    let (total, sum) = (numbers(&track["moments"]["total"])[moment], bytes.iter().sum::<u64>());
    if sum > total {
        let mut done = 0;
        for part in &mut bytes {
            let upto = done + *part;
            *part = total * upto / sum - total * done / sum;
            done = upto;
        }
    }
    bytes
}

/// By attributed frame: the innermost of the program, else the innermost.
fn by_line(figures: &Value, track: &Value, live: &[u64]) -> BTreeMap<String, u64> {
    let mut lines = BTreeMap::new();
    for (stack, bytes) in live.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
        let mut frames = Vec::new();
        let mut node = track["stacks"][stack].as_i64().unwrap();
        while node >= 0 {
            frames.push(track["nodes"][node as usize].as_u64().unwrap() as usize);
            let parent = track["parents"][node as usize].as_i64().unwrap();
            assert!(parent < node);
            node = parent;
        }
        let own = |frame: &&usize| {
            let file = figures["frames"][**frame][1].as_i64().unwrap();
            file >= 0 && figures["files"][file as usize]["library"] == false
        };
        let charged = frames.iter().find(own).or(frames.first()).unwrap();
        *lines.entry(figures["frames"][*charged].to_string()).or_default() += bytes;
    }
    lines
}

/// Checks every view of every moment; returns their number.
fn check_sums(report: &Report) -> usize {
    let mut moments = 0;
    for track in tracks(&report.figures) {
        let totals = numbers(&track["moments"]["total"]);
        for (moment, total) in totals.iter().enumerate() {
            let live = live(track, moment);
            assert_eq!(live.iter().sum::<u64>(), *total, "stacks, moment {moment}");
            let lines = by_line(&report.figures, track, &live);
            assert_eq!(lines.values().sum::<u64>(), *total, "lines, moment {moment}");
            moments += 1;
        }
        for snapshot in track["snapshots"].as_array().unwrap() {
            let of = |row: &Value| row[1].as_u64().unwrap();
            let sum: u64 = snapshot["categories"].as_array().unwrap().iter().map(of).sum();
            assert_eq!(sum, snapshot["allocated"].as_u64().unwrap(), "categories");
        }
        for map in track["maps"].as_array().unwrap() {
            for segment in map["segments"].as_array().unwrap() {
                let in_blocks: u64 = numbers(&segment[4]).iter().sum();
                assert!(in_blocks <= segment[0].as_u64().unwrap());
            }
        }
        let peak = track["moments"]["peak"].as_u64().unwrap() as usize;
        assert_eq!(Some(totals[peak]), totals.iter().copied().max());
    }
    moments
}

/// A job that allocates and frees at random under three lines, from before the recording.
fn random_exact(seed: u64) -> Probed {
    let mut roll = trace_support::Dice(seed);
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.malloc(0, 0, 30 * MIB);
    s.begin();
    let mut held = Vec::new();
    for step in 0..400u32 {
        s.line(0, 10 + (roll.roll(3) as u32));
        if roll.roll(5) < 3 || held.is_empty() {
            held.push(s.malloc(0, 0, (1 + roll.roll(200)) * 4096));
        } else {
            let gone = held.swap_remove(roll.roll(held.len() as u64) as usize);
            s.release(0, gone);
        }
        if step % 50 == 49 {
            s.poll();
        }
    }
    s
}

#[test]
fn every_view_of_every_moment_is_the_same_sum() {
    let mut moments = 0;
    for seed in 0..4 {
        let mut s = random_exact(seed);
        s.finish();
        moments += check_sums(&report(&s.records, &[]));
        moments += check_sums(&report(&trace_support::Loop::story(seed, 200), &[]));
        let story = Allocations::story(Likeness::Training, seed, 20, 256);
        moments += check_sums(&report(&story, &[]));
    }
    assert!(moments > 500, "{moments}");
    for golden in ["trace-v1-exact.memspy", "trace-v1.memspy"] {
        check_sums(&report_of(&format!("tests/data/{golden}"), &[]));
    }
}

#[test]
fn peak_and_end_have_the_stacks_that_allocated() {
    for seed in 0..4 {
        let mut s = random_exact(seed);
        let end = s.held();
        s.finish();
        let profile = s.profile();
        let report = report(&s.records, &[]);
        let track = tracks(&report.figures)[0];
        let peak = track["moments"]["peak"].as_u64().unwrap() as usize;
        let last = track["moments"]["time"].as_array().unwrap().len() - 1;
        for (moment, truth) in [(peak, &s.peak_truth), (last, &end)] {
            let truth: BTreeMap<u64, u64> = by_last_line(&profile, truth);
            let mut told: BTreeMap<u64, u64> = BTreeMap::new();
            let live = live(track, moment);
            for (line, bytes) in by_line(&report.figures, track, &live) {
                let frame: Value = serde_json::from_str(&line).unwrap();
                let small = frame[0].as_str().unwrap().starts_with("[small");
                assert!(!small, "four stacks are all to be seen");
                *told.entry(frame[2].as_u64().unwrap()).or_default() += bytes;
            }
            assert_eq!(told, truth, "seed {seed}, moment {moment}");
        }
    }
}

/// By line of the innermost frame; 0 for what is older than the recording.
fn by_last_line(
    profile: &memspy::analysis::Profile,
    held: &BTreeMap<Option<StackId>, u64>,
) -> BTreeMap<u64, u64> {
    let mut lines = BTreeMap::new();
    for (stack, bytes) in held {
        let line = stack.and_then(|stack| profile.stacks().frames(stack).next());
        *lines.entry(line.map_or(0, |frame| u64::from(frame.line))).or_default() += bytes;
    }
    lines
}

#[test]
fn what_was_allocated_is_live_leaked_or_churned() {
    for seed in 10..14 {
        let mut s = random_exact(seed);
        s.finish();
        let allocated: u64 = s.churn_truth.values().sum();
        let report = report(&s.records, &[]);
        let track = tracks(&report.figures)[0];
        let spans = &track["spans"];
        let in_spans: u64 = {
            let before = by_line(&report.figures, track, &live(track, 0));
            let older = before.iter().find(|(line, _)| line.contains("before recording"));
            let all: u64 = numbers(&spans["bytes"]).iter().sum();
            all - older.map_or(0, |(_, bytes)| *bytes)
        };
        let churned: u64 = numbers(&track["churned"]["bytes"]).iter().sum();
        assert_eq!(in_spans + churned, allocated, "seed {seed}");
    }
}

#[test]
fn a_sample_of_allocations_is_distributed_to_the_byte() {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.exact.stacks_every = 8 * MIB;
    s.begin();
    let mut held = Vec::new();
    for step in 0..60u32 {
        s.line(0, 10 + step % 3);
        let mut site = s.site(0);
        if step % 4 != 0 {
            (site.stack, site.source) = (None, StackSource::NotTaken);
        }
        held.push(s.malloc_at(0, 0, (1 + u64::from(step)) * 100_000, site));
        if step % 3 == 2 {
            let gone = held.remove(0);
            s.release(0, gone);
        }
    }
    s.finish();
    let report = report(&s.records, &[]);
    assert_eq!(report.figures["recordings"][0]["sharpness"], "estimated");
    let track = tracks(&report.figures)[0];
    assert!(!numbers(&track["estimates"]).is_empty());
    assert!(numbers(&track["moments"]["shared"]).iter().any(|bytes| *bytes > 0));
    assert!(check_sums(&report) > 10);
}

#[test]
fn memory_without_events_is_shown_and_is_no_leak() {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.begin();
    s.malloc(0, 0, 10 * MIB);
    s.malloc_unseen(0, 0, 40 * MIB);
    s.malloc(0, 0, 20 * MIB);
    s.flush();
    s.totals.exact = Some(EventTotals::default());
    s.end();
    let report = report(&s.records, &[]);
    let track = tracks(&report.figures)[0];
    let peak = track["moments"]["peak"].as_u64().unwrap() as usize;
    assert_eq!(numbers(&track["moments"]["total"])[peak], 70 * MIB);
    let lines = by_line(&report.figures, track, &live(track, peak));
    let unknown = lines.iter().find(|(line, _)| line.contains("[no event]")).unwrap();
    assert_eq!(*unknown.1, 40 * MIB);
    // The page leaves it out of windows: its allocation time is unknown.
    let remainders = numbers(&track["remainders"]);
    assert_eq!(remainders.len(), 1);
    assert_eq!(live(track, peak)[remainders[0] as usize], 40 * MIB);
    check_sums(&report);
}

#[test]
fn stacks_too_small_to_be_seen_are_merged() {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.begin();
    s.malloc(0, 0, 4000 * MIB);
    for line in 11..90 {
        s.line(0, line);
        s.malloc(0, 0, 1024);
    }
    s.finish();
    let report = report(&s.records, &[]);
    check_sums(&report);
    let track = tracks(&report.figures)[0];
    assert_eq!(track["stacks"].as_array().unwrap().len(), 2);
    let frames = report.figures["frames"].to_string();
    assert!(frames.contains("[small: 79 stacks]"), "{frames}");
}

/// Before the snapshot of owners, older memory was in the moments twice, with and without its
/// owner.
#[test]
fn older_memory_is_counted_once_if_its_owner_comes_later() {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    let weights = s.malloc(0, 0, 300 * MIB);
    s.begin();
    for round in 0..6 {
        s.now += 500_000_000;
        let block = s.malloc(0, 0, 64 * MIB);
        s.now += 500_000_000;
        s.release(0, block);
        s.poll();
        if round == 3 {
            s.now += 1_000_000;
            let time = Nanos(s.now);
            let held = OwnedStorages {
                category: TensorCategory::Parameter,
                owner: "weights".into(),
                bytes: 300 * MIB,
                count: 1,
            };
            s.records.push(Record::Ownership(OwnershipBreakdown {
                time,
                pause: None,
                age: Nanos(0),
                devices: vec![DeviceOwners {
                    device: CudaIndex(0),
                    allocated: 300 * MIB,
                    rounding: 0,
                    without_tensor: 0,
                    results: Some(0),
                    held: vec![held],
                }],
                retained: Vec::new(),
                unnamed_blocks: Vec::new(),
                blocks: vec![OwnedBlock {
                    device: 0,
                    address: weights,
                    size: 300 * MIB,
                    shares: vec![(0, 300 * MIB)],
                }],
            }));
        }
    }
    s.finish();
    let report = report(&s.records, &[]);
    check_sums(&report);
    let track = tracks(&report.figures)[0];
    let totals = numbers(&track["moments"]["total"]);
    assert!(totals.iter().all(|total| [300 * MIB, 364 * MIB].contains(total)), "{totals:?}");
    assert!(report.figures["frames"].to_string().contains("weights"), "the owner is told");
}

#[test]
fn of_equal_peaks_report_and_flame_show_the_same() {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.malloc(0, 0, 300 * MIB);
    s.begin();
    // The older blocks are not known yet here; in the next one they are.
    let _ = s.take_first_map();
    for _ in 0..2 {
        s.now += 500_000_000;
        let block = s.malloc(0, 0, 64 * MIB);
        s.release(0, block);
        s.poll();
    }
    s.finish();
    let peak = s.profile().exact().unwrap().peak(memspy::model::CudaIndex(0)).unwrap().0;
    let report = report(&s.records, &[]);
    let moments = &tracks(&report.figures)[0]["moments"];
    let totals = numbers(&moments["total"]);
    let highest = totals.iter().filter(|total| **total == 364 * MIB).count();
    assert!(highest > 1, "{totals:?}");
    let shown = moments["time"][moments["peak"].as_u64().unwrap() as usize].as_f64().unwrap();
    assert_eq!(shown, (peak.0 / 1000) as f64, "{totals:?}");
}

#[test]
fn names_of_a_hostile_job_stay_text() {
    let hostile = "</script><script>alert(1)</script><!-- \u{2028}\u{202e}\"'`${x}";
    let mut s = Probed::new();
    s.enter_in(0, hostile, &format!("/home/me/job/{hostile}.py"), 10);
    s.begin();
    s.malloc(0, 0, 10 * MIB);
    s.finish();
    if let Record::Start(start) = &mut s.records[0] {
        start.command = vec!["python".into(), hostile.into()];
        start.host = hostile.into();
    }
    for words in [&[][..], &["--title", hostile], &["--redact"]] {
        let report = report(&s.records, words);
        check_sums(&report);
        // Two elements end, and the names between them are no markup.
        assert_eq!(report.page.matches("</script").count(), 2, "{words:?}");
        assert_eq!(report.page.matches("<script").count(), 2, "{words:?}");
        assert!(!report.page.contains("alert(1)</"), "{words:?}");
        let frames = report.figures["frames"].to_string();
        assert!(frames.contains("alert(1)") && frames.contains("\\\\u{2028}"), "{frames}");
        assert!(!report.page.contains('\u{2028}') && !frames.contains('\u{202e}'));
    }
}

#[test]
fn a_redacted_report_has_no_paths_source_host_or_command() {
    let mut s = Probed::new();
    s.enter(0, "train", 10);
    s.enter_in(0, "step", "/secret/place/other/train.py", 20);
    s.begin();
    s.malloc(0, 0, 10 * MIB);
    s.finish();
    if let Record::Start(start) = &mut s.records[0] {
        start.host = "secret-host".into();
        start.command = vec!["python".into(), "/secret/run.py".into(), "--token=secret".into()];
    }
    let whole = report(&s.records, &[]);
    let text = whole.figures.to_string();
    assert!(text.contains("secret-host") && text.contains("--token=secret"));
    assert!(text.contains("/secret/place") && text.contains("\"pass\""));
    let redacted = report(&s.records, &["--redact"]);
    check_sums(&redacted);
    let text = redacted.figures.to_string() + &redacted.page;
    for forbidden in ["secret", "/home/me", "\"pass\"", "trace.bin"] {
        assert!(!text.contains(forbidden), "{forbidden}");
    }
    // Two files of one name are told apart.
    assert!(text.contains("\"train.py\"") && text.contains("\"train.py (2)\""));
}

#[test]
fn a_failed_report_says_why_in_one_line() {
    let mut s = Script::new(100);
    s.thread("MainThread", true);
    s.start();
    s.tick();
    s.end();
    let (_folder, trace) = stored(&s.records);
    let trace = trace.to_str().unwrap();
    let (code, out, err) = memspy(&["report", trace, "-o", "-"]);
    assert_eq!((code, out.len(), err.lines().count()), (1, 0, 1), "{err}");
    assert!(err.contains("no GPU memory of PyTorch"), "{err}");
    let (code, _, err) = memspy(&["report", "/nowhere/trace.bin", "-o", "-"]);
    assert_eq!((code, err.lines().count()), (1, 1), "{err}");
    let mut s = random_exact(1);
    s.finish();
    let (folder, trace) = stored(&s.records);
    let page = folder.path().join("trace.html");
    std::fs::write(&page, "mine").unwrap();
    let (code, _, err) = memspy(&["report", trace.to_str().unwrap()]);
    assert!(code == 1 && err.contains("--force"), "{err}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), "mine");
    let (code, _, err) = memspy(&["report", trace.to_str().unwrap(), "--force"]);
    assert!(code == 0 && std::fs::read_to_string(&page).unwrap().contains("<title>"), "{err}");
}

#[test]
fn an_abrupt_end_gives_a_warning_ranks_share_pages() {
    let mut s = random_exact(3);
    s.finish();
    let mut cut = s.records.clone();
    cut.retain(|record| !matches!(record, Record::End(_)));
    let report = report(&cut, &[]);
    check_sums(&report);
    assert!(report.figures["recordings"][0]["warnings"].to_string().contains("ended abruptly"));
    let (_folder, trace) = stored(&s.records);
    let trace = trace.to_str().unwrap();
    let both = report_of(trace, &[trace]);
    assert_eq!(both.figures["recordings"].as_array().unwrap().len(), 2);
    check_sums(&both);
}
