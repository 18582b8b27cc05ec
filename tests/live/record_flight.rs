//! A flight recorder beside a job on the simulated card: triggers, what it keeps, its report.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::support::memspy::{
    self, Recording, collapsed, following, lines, row, total, wait_until,
};
use crate::support::oom::{self, ask, says, verdict_of};
use crate::support::sim;
use crate::support::target::Target;
use ::memspy::model::Record;
use ::memspy::trace;
use nix::sys::signal::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn beside(trace: &Path, extension: &str) -> PathBuf {
    trace.with_extension(extension)
}

/// `function (…/oom.py:LINE)` of a known line.
fn place(known: &Value, name: &str) -> String {
    format!("{} ", oom::place(known, name))
}

#[test]
fn a_survived_error_has_its_line_and_live_memory() {
    let (mut target, known) = oom::start(&["--observer"]);
    let words = ["--keep", "5s", "--until", "oom", "--owners"];
    let mut recording = Recording::start(target.pid(), &words);
    recording.wait_for_segment();
    ask(&mut target, "grow 100 8");
    // Snapshots come every 50 ms: one has all of it by then.
    std::thread::sleep(std::time::Duration::from_millis(500));
    ask(&mut target, "caught 3000");
    let done = recording.wait().ok();
    says(&done.err, &["'oom' was met", "ran out of memory on GPU 0 (error number 1)"]);
    let verdict = verdict_of(recording.trace());
    let asked = place(&known, "asked");
    says(&verdict, &["'oom' was met at ", &asked, "4.00 GiB of memory"]);
    // A handler that does nothing usually ends before its error can be read.
    let found = verdict.contains("asked for 2.93 GiB");
    let unknown =
        verdict.contains("These are samples") && verdict.contains("had handled its error");
    assert!(found != unknown, "{verdict}");
    says(
        &verdict,
        &["1 out-of-memory errors, 1 retries", "live: 1.16 GiB", "the counters say the same"],
    );
    // Owners of what is older than the recording.
    says(&verdict, &["256.00 MiB", "main: weights \u{2190}", "[before recording]"]);
    says(&verdict, &["main: weights[*]", "of it 2.00 MiB was in wholly free segments"]);
    // The trace has all of it and can be read again.
    let trace = recording.trace().to_str().unwrap();
    let stacks = collapsed(recording.trace(), &["--at", "end"]);
    let held = known["held_bytes"].as_u64().unwrap();
    assert_eq!(total(&stacks), held + 800 * MIB);
    let grown: u64 = stacks.iter().filter(|s| s.0.contains(";grow (")).map(|s| s.1).sum();
    assert_eq!(grown, 800 * MIB, "{stacks:?}");
    let again = memspy::memspy(&["oom-report", trace]).ok();
    assert_eq!(again.out, verdict);
    let other = memspy::memspy(&["oom-report", trace, "--until", "allocated>1000M"]).ok();
    says(&other.out, &["'allocated>1000M' was met", " of 4.00 GiB allocated by PyTorch on GPU 0"]);
    assert!(!beside(recording.trace(), "ring").exists());
    // It continues.
    ask(&mut target, "drop");
    target.finish();
}

#[test]
fn a_fatal_error_is_reported_after_the_jobs_death() {
    let (mut target, known) = oom::start(&["--observer"]);
    let mut recording =
        Recording::start(target.pid(), &["--keep", "5s", "--until", "oom", "--until", "exit"]);
    recording.wait_for_segment();
    ask(&mut target, "grow 100 8");
    target.say("fatal 3000");
    assert_eq!(target.wait().code(), Some(1));
    let done = recording.wait().ok();
    says(&done.err, &["'oom' was met"]);
    let verdict = verdict_of(recording.trace());
    says(&verdict, &["'oom' was met", &place(&known, "asked"), "live: 1.16 GiB"]);
}

/// The report on the error: size, stack, words.
#[track_caller]
fn words_of(verdict: &str) -> [&str; 3] {
    let mut lines = verdict.lines().skip_while(|line| *line != "What PyTorch's error says").skip(1);
    let mut next = || lines.next().unwrap_or_else(|| panic!("no words in:\n{verdict}")).trim();
    [next(), next(), next()]
}

#[test]
#[ignore = "a_survived_error_has_its_line_and_live_memory sees errors at one sampling rate: scripts/test.sh --all runs it"]
fn an_error_has_size_and_site_at_any_sampling_rate() {
    for (request, rate, callers) in [
        ("handled 5000", "100", "handled ("),
        ("handled 5000", "1000", "handled ("),
        ("chained 5000", "100", "ask_or_explain ("),
        ("threaded 5000", "100", "handled ("),
        ("fatal 5000", "100", "main ("),
    ] {
        let (mut target, known) = oom::start(&[]);
        let words = ["--keep", "5s", "--until", "oom", "-r", rate];
        let mut recording = Recording::start(target.pid(), &words);
        recording.wait_for_segment();
        target.say(request);
        recording.wait().ok();
        let verdict = format!("{request} at {rate} Hz\n{}", verdict_of(recording.trace()));
        let [asked, stack, text] = words_of(&verdict);
        says(asked, &["asked for 4.88 GiB (as PyTorch says: rounded"]);
        let (innermost, others) = stack.split_once(" ← ").unwrap();
        says(innermost, &["ask (", &oom::place(&known, "asked")]);
        assert!(others.starts_with(callers), "{request}: {stack}");
        says(text, &["CUDA out of memory. Tried to allocate 4.88 GiB. GPU 0 has a total"]);
        assert!(!verdict.contains("These are samples"), "{verdict}");
        says(&verdict, &["less than the 4.88 GiB asked for: the memory is in use"]);
        let again = memspy::memspy(&["oom-report", recording.trace().to_str().unwrap()]).ok();
        assert!(verdict.ends_with(&again.out), "{}", again.out);
        match request.starts_with("fatal") {
            true => assert_eq!(target.wait().code(), Some(1)),
            false => drop(target.read_until_ready()),
        }
    }
}

#[test]
fn an_error_in_a_library_also_names_the_programs_line() {
    let (mut target, known) = oom::start(&[]);
    let mut recording = Recording::start(target.pid(), &["--until", "oom"]);
    recording.wait_for_block();
    ask(&mut target, "module 5000");
    recording.wait().ok();
    let verdict = verdict_of(recording.trace());
    let [_, stack, own] = words_of(&verdict);
    assert!(stack.contains("torch/nn/modules/linear.py"), "{stack}");
    says(own, &["called by the program's line ask_module (", &oom::place(&known, "module")]);
    target.finish();
}

#[test]
fn every_continued_recording_has_its_own_errors_words() {
    let (mut target, known) = oom::start(&[]);
    let words =
        ["--keep", "4s", "--until", "oom", "--on-trigger", "continue", "--max-reports", "2"];
    let mut recording = Recording::start(target.pid(), &words);
    recording.wait_for_segment();
    ask(&mut target, "handled 5000");
    wait_until("the first report", || beside(recording.trace(), "oom-report.txt").exists());
    ask(&mut target, "settle 2.2");
    ask(&mut target, "threaded 6000");
    recording.wait().ok();
    let second = recording.trace().with_file_name("trace-2.bin");
    for (path, size, thread) in
        [(recording.trace(), "4.88", "main"), (&second, "5.86", "_bootstrap")]
    {
        let verdict = verdict_of(path);
        let [asked, stack, _] = words_of(&verdict);
        says(asked, &[&format!("asked for {size} GiB")]);
        says(stack, &[&oom::place(&known, "asked"), thread]);
    }
    target.finish();
}

#[test]
#[ignore = "limits are seen in exact_flight: scripts/test.sh --all runs it"]
fn the_jobs_own_limit_is_told_from_a_full_device() {
    let (mut target, known) = oom::start(&["--observer", "--fraction", "0.2"]);
    let mut recording = Recording::start(target.pid(), &["--until", "oom"]);
    recording.wait_for_block();
    ask(&mut target, "caught 500");
    let done = recording.wait().ok();
    says(&done.err, &["'oom' was met", "wrote the report to"]);
    let verdict = verdict_of(recording.trace());
    says(&verdict, &[&place(&known, "asked"), "set_per_process_memory_fraction"]);
    target.finish();
}

#[test]
fn each_condition_comes_true_in_its_time_and_not_before() {
    let (mut target, _) = oom::start(&[]);
    // 384 MiB are allocated, 0.9 GiB in use; then 1.16 and 1.7 GiB.
    let conditions = [
        "allocated>1000M",
        "reserved>25%",
        "used>1500M",
        "used>40%",
        "growth>500M/s",
        "exit",
        "oom",
        "retry",
    ];
    let mut recordings: Vec<Recording> = conditions
        .iter()
        .map(|condition| {
            let words = ["--keep", "10s", "--until", condition, "-r", "50"];
            Recording::start(target.pid(), &words)
        })
        .collect();
    ask(&mut target, "grow 20 5");
    ask(&mut target, "settle 1.5");
    for (recording, condition) in recordings.iter().zip(conditions) {
        assert!(
            !beside(recording.trace(), "oom-report.txt").exists(),
            "{condition} came too early"
        );
    }
    ask(&mut target, "grow 100 8");
    ask(&mut target, "settle 1.5");
    let end = |recording: &mut Recording, condition: &str| {
        let done = recording.wait().ok();
        says(&done.err, &[&format!("'{condition}' was met")]);
        says(&verdict_of(recording.trace()), &[&format!("'{condition}' was met")]);
    };
    for (recording, condition) in recordings.iter_mut().zip(conditions).take(5) {
        end(recording, condition);
    }
    assert!(!beside(recordings[6].trace(), "oom-report.txt").exists());
    ask(&mut target, "caught 3000");
    end(&mut recordings[6], "oom");
    end(&mut recordings[7], "retry");
    assert!(!beside(recordings[5].trace(), "oom-report.txt").exists());
    target.finish();
    end(&mut recordings[5], "exit");
    says(&verdict_of(recordings[5].trace()), &["the job ended"]);
}

#[test]
#[ignore = "one that goes on is seen in every_continued_recording_has_its_own_errors_words: scripts/test.sh --all runs it"]
fn a_recording_that_goes_on_writes_one_after_the_other() {
    let (mut target, _) = oom::start(&[]);
    let words =
        ["--keep", "4s", "--until", "oom", "--on-trigger", "continue", "--max-reports", "3"];
    let mut recording = Recording::start(target.pid(), &words);
    recording.wait_for_segment();
    let trace = recording.trace().to_owned();
    let second = trace.with_file_name("trace-2.bin");
    // A name in use is skipped.
    std::fs::write(trace.with_file_name("trace-3.bin"), "mine").unwrap();
    let third = trace.with_file_name("trace-4.bin");
    // An error so shortly after another is only counted.
    target.say("caught 6000");
    target.say("caught 6000");
    target.read_until_ready();
    target.read_until_ready();
    wait_until("the first recording", || beside(&trace, "oom-report.txt").exists());
    ask(&mut target, "settle 2.2");
    ask(&mut target, "grow 100 2");
    ask(&mut target, "caught 6000");
    wait_until("the second recording", || beside(&second, "oom-report.txt").exists());
    ask(&mut target, "settle 2.2");
    ask(&mut target, "caught 6000");
    let done = recording.wait().ok();
    says(&done.err, &["were met 1 more times", "trace-2.bin", "trace-4.bin"]);
    for (path, number) in [(&trace, 1), (&second, 3), (&third, 4)] {
        says(&verdict_of(path), &[&format!("error number {number})")]);
        let stacks = collapsed(path, &["--at", "end"]);
        assert_eq!(total(&stacks), if number == 1 { 384 } else { 584 } * MIB);
        let read = memspy::memspy(&["oom-report", path.to_str().unwrap()]).ok();
        assert_eq!(read.out, verdict_of(path));
    }
    target.finish();
}

#[test]
fn what_a_killed_recorder_kept_is_readable() {
    // Long enough on each line for a sample, even on a busy machine.
    let target = sim::start("known_lines.py", &["--pause", "30"]);
    let known: Value = serde_json::from_str(&target.said[0]).unwrap();
    let mut recording = Recording::start(target.pid(), &["--keep", "2s", "-r", "500"]);
    let ring = beside(recording.trace(), "ring");
    wait_until("the first segments being dropped", || {
        !ring.join("00000001.memspy").exists() && ring.join("00000012.memspy").exists()
    });
    recording.signal(Signal::SIGKILL);
    recording.wait();
    assert!(!recording.trace().exists(), "nothing was to be written yet");
    let paths = std::fs::read_dir(&ring).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> = paths.collect();
    segments.sort();
    // The last one may have just begun, without a sample.
    segments.pop();
    for path in &segments {
        let report = lines(path, &[]);
        assert_eq!(report["peak_allocated"]["bytes"], known["peak_bytes"], "{path:?}");
    }
    assert!(segments.len() >= 2, "{segments:?}");
    let (ring, trace) = (ring.to_str().unwrap(), recording.trace().to_str().unwrap());
    let verdict = memspy::memspy(&["oom-report", ring]).ok();
    says(&verdict.out, &["No condition was met", "the recording ended abruptly", "the last "]);
    memspy::memspy(&["flame", ring]).refused(&["folder of segments", "memspy join"]);
    // The next one does not overwrite it unless told to.
    let words = ["record", "--cpu", "10", "--keep", "2s", "-d", "1", "-o", trace];
    memspy::memspy_at(target.pid(), &words[..]).refused_last(&[
        "exists already",
        "memspy join",
        "--force",
    ]);
    memspy::memspy(&["join", ring, "-o", trace]).ok();
    let report = lines(recording.trace(), &[]);
    for (name, live) in [("scratch", 128), ("gradients", 32), ("activations", 64)] {
        let line = &known["lines"][name];
        let row = row(&report, line["function"].as_str().unwrap(), line["line"].as_u64().unwrap());
        assert_eq!(row.unwrap()["live_at_peak"], live * MIB, "{name}");
    }
    let again = [&words[..], &["--force"]].concat();
    memspy::memspy_at(target.pid(), &again).ok();
    assert!(!Path::new(ring).exists());
    target.finish();
}

/// Makes 60 blocks that stay, and churns while `words` keep the last part. Returns the most bytes
/// on disk, the bytes that the job says are allocated, and memspy's output.
fn churned(words: &[&str], at_least: &str) -> (Recording, u64, u64, String) {
    let mut target = sim::start("allocator_load.py", &[]);
    ask(&mut target, "hold 1");
    let mut recording = Recording::start(target.pid(), words);
    if words.contains(&"--exact") {
        recording.wait_for("probes are in place");
    }
    let ring = beside(recording.trace(), "ring");
    recording.wait_for_segment();
    ask(&mut target, "hold 60");
    target.say("churn 6 40");
    target.read_until_ready();
    let mut most = 0;
    wait_until("many segments", || {
        let files = std::fs::read_dir(&ring).into_iter().flatten().flatten();
        // One may be removed meanwhile.
        let sizes = files.flat_map(|e| e.metadata());
        most = most.max(sizes.map(|m| m.len()).sum());
        ring.join(at_least).exists()
    });
    target.read_until_ready();
    target.say("truth");
    let truth: Value = serde_json::from_str(&target.read_until_ready()[0]).unwrap();
    let allocated = truth["devices"][0]["stats"]["allocated_bytes.all.current"].as_u64().unwrap();
    wait_until("a map after the last change", || last_allocated(&ring) == Some(allocated));
    let done = recording.interrupt();
    assert!(!done.err.contains("lost") || done.err.contains(" 0 lost"), "{}", done.err);
    target.finish();
    (recording, most, allocated, done.err)
}

/// The sum of the blocks in the last kept snapshot.
fn last_allocated(ring: &Path) -> Option<u64> {
    let segments = trace::segments(ring).unwrap_or_default();
    // Each is a trace; one may be removed meanwhile.
    segments.iter().rev().take(3).find_map(|segment| {
        let mut records: Vec<Record> = Vec::new();
        let _ = trace::TraceReader::open(segment).ok()?.replay(&mut records);
        records.into_iter().rev().find_map(|record| match record {
            Record::Snapshot(map) => Some(map.allocated()),
            _ => None,
        })
    })
}

#[test]
#[ignore = "the size of a ring is seen in an_exact_ring_never_exceeds_its_size_or_loses_stacks: scripts/test.sh --all runs it"]
fn a_ring_of_a_given_size_never_takes_more() {
    let words = ["--keep", "64K", "-r", "500"];
    let (recording, most, allocated, said) = churned(&words, "00000010.memspy");
    assert!(!said.contains("bounds"), "{said}");
    assert!(most > 32_000 && most < 90_000, "{most} bytes");
    assert!(std::fs::metadata(recording.trace()).unwrap().len() < 100_000);
    let report = lines(recording.trace(), &[]);
    assert!(report["kept_from_seconds"].as_f64().unwrap() > 1.0, "{}", report["kept_from_seconds"]);
    let stacks = collapsed(recording.trace(), &["--at", "end"]);
    assert_eq!(total(&stacks), allocated);
    // An old block was freed and one like it allocated: sampling cannot see that.
    let before = stacks.iter().filter(|s| s.0 == "[before recording]").map(|s| s.1).sum::<u64>();
    assert!(before <= 1024, "{stacks:?}");
}

#[test]
#[ignore = "conditions are seen to come true in each_condition_comes_true_in_its_time_and_not_before: scripts/test.sh --all runs it"]
fn a_time_bound_may_have_a_size_bound_too() {
    let words = ["--keep", "10min", "--keep", "64K", "-r", "500"];
    let (recording, most, allocated, said) = churned(&words, "00000010.memspy");
    assert!(most > 32_000 && most < 90_000, "{most} bytes");
    says(&said, &["the size was reached first: less than the time is kept"]);
    assert_eq!(total(&collapsed(recording.trace(), &["--at", "end"])), allocated);
    let words = ["--keep", "500M", "--keep", "1s", "-r", "500"];
    let (_, _, _, said) = churned(&words, "00000010.memspy");
    says(&said, &["the time was reached first"]);
}

#[test]
fn an_exact_ring_never_exceeds_its_size_or_loses_stacks() {
    let (recording, most, allocated, _) =
        churned(&["--exact", "--keep", "200K"], "00000012.memspy");
    assert!(most > 100_000 && most < 260_000, "{most} bytes");
    let report = lines(recording.trace(), &[]);
    assert!(report["kept_from_seconds"].as_f64().unwrap() > 1.0, "{}", report["kept_from_seconds"]);
    let stacks = collapsed(recording.trace(), &["--at", "end"]);
    assert_eq!(total(&stacks), allocated);
    assert!(stacks.iter().all(|s| s.0.contains(";hold (")), "{stacks:?}");
}

/// Records with tables printed into a file; returns the text.
fn printed(target: &Target, words: &[&str]) -> (Recording, String) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.txt");
    let mut command = memspy::command(Some(target.pid()));
    command.args(["record", "-p", &target.pid().to_string()]).args(words).args(following(words));
    command.stdout(File::create(&out).unwrap());
    let mut recording = Recording::run(command);
    recording.wait().ok();
    (recording, std::fs::read_to_string(out).unwrap())
}

#[test]
#[ignore = "takes long, and tables_beside_a_ring_cover_the_time_since_the_last sees tables: scripts/test.sh --all runs it"]
fn the_last_table_printed_is_that_of_the_trace() {
    let target = sim::start("known_lines.py", &["--pause", "10"]);
    for words in [
        &["-d", "3.5", "--print-every", "1s"][..],
        &["--exact", "-d", "2.5", "--print-every", "1s"],
    ] {
        let (recording, text) = printed(&target, words);
        let tables: Vec<&str> = text.split("=== memspy: ").skip(1).collect();
        assert!((3..=5).contains(&tables.len()), "{}", tables.len());
        assert!(!text.contains('\x1b') && !text.contains('\r'));
        for (number, table) in tables.iter().enumerate() {
            says(table, &["the recording so far"]);
            // The first table may come before the first counters.
            let has_counters = number > 0 || table.contains("GPU 0");
            assert!(!has_counters || table.contains("known_lines.py:"), "{table}");
        }
        let whole = memspy::memspy(&["lines", recording.trace().to_str().unwrap()]).ok();
        let (head, last) = tables.last().unwrap().split_once('\n').unwrap();
        assert!(head.contains(" UTC, after "), "{head}");
        // A trace that was followed is read twice, and says more.
        if words.contains(&"--exact") {
            assert_eq!(last.trim_end(), whole.out.trim_end());
        }
    }
    target.finish();
}

#[test]
fn tables_beside_a_ring_cover_the_time_since_the_last() {
    let target = sim::start("known_lines.py", &["--pause", "10"]);
    let (_recording, text) =
        printed(&target, &["-d", "5.2", "--keep", "2s", "--print-every", "2s"]);
    let tables: Vec<&str> = text.split("=== memspy: ").skip(1).collect();
    assert_eq!(tables.len(), 3);
    for (table, length) in tables.iter().zip(["2.0 s", "2.0 s", "1."]) {
        let head = table.lines().next().unwrap();
        assert!(head.contains(&format!("the last {length}")), "{head}");
        // The interval's own peak: the same memory is allocated again and again.
        says(table, &["peak allocated 256.00 MiB (reached", "known_lines.py:"]);
    }
    target.finish();
}

#[test]
fn words_that_make_no_sense_together_are_refused() {
    let target = sim::start("known_lines.py", &[]);
    let refused = |words: &[&str], parts: &[&str]| {
        memspy::memspy_at(target.pid(), &[&["record"], words].concat()).refused(parts);
    };
    refused(&["--keep", "2s", "-f", "flamegraph"], &["--keep writes traces"]);
    refused(&["--print-every", "1s", "-f", "collapsed", "-o", "-"], &["standard output"]);
    refused(&["--print-every", "step:2"], &["step:2 counts calls by exact stacks", "add --exact"]);
    for (words, part) in [
        (&["--until", "full"][..], "growth>N/min"),
        (&["--keep", "2"], "expected a time"),
        (&["--keep", "1K"], "64K"),
        (&["--until", "oom", "--on-trigger", "continue"], "--keep"),
        (&["--print-every", "0s"], "from 1 ms"),
        (&["--print-every", "step:0"], "train_step:20"),
    ] {
        let done = memspy::memspy_at(target.pid(), &[&["record"], words].concat());
        assert_eq!(done.status.code(), Some(2), "{words:?}: {}", done.err);
        assert!(done.err.contains(part), "no '{part}' in {}", done.err);
    }
    // Without a job's simulated driver there is no NVML.
    let mut alone = std::process::Command::new(env!("CARGO_BIN_EXE_memspy"));
    alone.args(["record", "-p", &target.pid().to_string(), "--until", "used>90%"]);
    if std::env::var_os("LD_LIBRARY_PATH").is_none() && !Path::new("/dev/nvidiactl").exists() {
        memspy::run(&mut alone).refused_last(&["cannot wait for 'used>90%': NVML", "allocated>"]);
    }
    memspy::memspy(&["join", "tests"]).refused(&["no segments"]);
    memspy::memspy(&["join", "nowhere"]).refused(&["cannot open nowhere"]);
    memspy::memspy(&["oom-report", "nowhere"]).refused(&["cannot open nowhere"]);
    target.finish();
}
