//! Options of `record`: formats, threads, file names, rates.

use crate::support::memspy::{
    Done, Recording, command, following, lines, memspy, run, stacks_of, total,
};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::Record;
use memspy::trace::TraceReader;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Runs `memspy record` in a folder.
fn record(target: &Target, folder: &std::path::Path, words: &[&str]) -> Done {
    let mut command = command(Some(target.pid()));
    command
        .args(["record", "-p", &target.pid().to_string()])
        .args(words)
        .args(following(words))
        .current_dir(folder);
    run(&mut command)
}

/// The stacks of a recording that is long enough, on this machine, to see the job at work.
fn at_work(record: impl Fn(&str) -> String) -> Vec<(String, u64)> {
    for duration in ["1", "4s", "15s"] {
        let stacks = stacks_of(&record(duration));
        if stacks.iter().any(|stack| stack.0.contains("work (") && stack.1 >= MIB) {
            return stacks;
        }
    }
    stacks_of(&record("1min"))
}

#[test]
#[ignore = "takes long, and the fast tests see formats: scripts/test.sh --all runs it"]
fn formats_threads_and_names() {
    let target = sim::start("idle_thread.py", &[]);
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let pid = target.pid().to_string();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();

    // -f flamegraph, with the default name.
    let done = record(&target, folder.path(), &["-d", "1", "-f", "flamegraph"]).ok();
    let svg = read(&format!("memspy-{pid}.svg"));
    assert!(done.err.contains(&format!("wrote memspy-{pid}.svg")), "{}", done.err);
    assert!(svg.starts_with("<?xml") && svg.contains("[before recording]"));
    record(&target, folder.path(), &["-d", "1", "-f", "flamegraph"])
        .refused(&["exists already", "--force"]);

    // -f collapsed, %p and %h.
    let stacks = at_work(|duration| {
        let words = ["-d", duration, "-f", "collapsed", "--force", "-o", "%h-%p.txt"];
        record(&target, folder.path(), &words).ok();
        read(&format!("{host}-{pid}.txt"))
    });
    assert!(total(&stacks) > 64 * MIB && total(&stacks) <= 80 * MIB, "{stacks:?}");
    assert!(stacks.iter().any(|s| s.0.contains("work (") && s.1 >= MIB), "{stacks:?}");
    let before = stacks.iter().find(|s| s.0 == "[before recording]").unwrap().1;
    assert!((64 * MIB..total(&stacks)).contains(&before), "{stacks:?}");

    // -t, to standard output, with every other word of stacks.
    let threads = at_work(|duration| {
        let format = ["-d", duration, "-f", "collapsed", "-o", "-"];
        let words = [&format[..], &["-t", "-g", "-i", "--full-filenames"]].concat();
        record(&target, folder.path(), &words).ok().out
    });
    let of_work = threads.iter().filter(|s| s.0.contains("work (/"));
    assert!(of_work.clone().count() > 0, "whole file names: {threads:?}");
    assert!(of_work.clone().all(|s| s.0.contains("MainThread")), "{threads:?}");
    assert!(stacks.iter().all(|s| !s.0.contains("MainThread")), "only with -t: {stacks:?}");

    record(&target, folder.path(), &["-o", "-"]).refused(&["standard output", "-o"]);

    // -g and -i choose threads, on replay as well.
    let mut recording = Recording::start(target.pid(), &["-d", "1"]);
    recording.wait().ok();
    let samples = |words: &[&str], function: &str| -> u64 {
        let report = lines(recording.trace(), words);
        let functions = report["functions"].as_array().unwrap().iter();
        let rows = functions.filter(|f| f["function"] == function);
        rows.flat_map(|f| f["lines"].as_array().unwrap())
            .map(|r| r["samples"].as_u64().unwrap())
            .sum()
    };
    let all = lines(recording.trace(), &[])["samples"].as_u64().unwrap();
    // While every thread is idle, each counts.
    assert!(samples(&[], "idle") < all / 10, "{} of {all}", samples(&[], "idle"));
    assert_eq!(samples(&["-i"], "idle"), all);
    assert_eq!(samples(&["-i", "-g"], "idle"), 0);
    assert!(samples(&["-i", "-g"], "work") > all / 2);

    // Every format of lines has the same figures.
    let trace = recording.trace().to_str().unwrap();
    let csv = memspy(&["lines", trace, "--format", "csv", "--only", "work"]).ok().out;
    let text = memspy(&["lines", trace, "--source", "--only", "work"]).ok().out;
    assert!(csv.lines().count() > 1 && csv.contains("spin()"), "{csv}");
    assert!(text.contains("def work():") && text.contains("spin()"), "{text}");

    // -r 1, and no source.
    let words = ["-r", "1", "-d", "2.5", "--no-source", "-o", "slow.bin"];
    let done = record(&target, folder.path(), &words).ok();
    assert!(done.err.contains("of 1 wanted"), "{}", done.err);
    let mut records: Vec<Record> = Vec::new();
    TraceReader::open(folder.path().join("slow.bin")).unwrap().replay(&mut records).unwrap();
    let Some(Record::End(end)) = records.last() else { panic!("no end") };
    // Also where memspy came too late for one.
    assert_eq!(end.totals.ticks, 3, "{}", done.err);
    let report = lines(&folder.path().join("slow.bin"), &[]);
    let work = report["functions"].as_array().unwrap().iter().find(|f| f["function"] == "work");
    assert_eq!(work.unwrap()["lines"][0]["source"], Value::Null);
    target.finish();
}

#[test]
fn the_source_of_a_notebooks_cell_comes_from_memory() {
    let mut target = sim::start("notebook.py", &[]);
    let mut recording = Recording::start(target.pid(), &["-r", "1000"]);
    target.say("go");
    assert_eq!(target.line(), "DONE");
    recording.interrupt();
    let text = memspy(&["lines", "--source", recording.trace().to_str().unwrap()]).ok().out;
    assert!(text.contains("kept.append(torch.zeros"), "{text}");
    assert!(text.contains("2718281828.py"), "{text}");
}
