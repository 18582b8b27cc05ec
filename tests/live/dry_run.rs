//! `memspy dry-run`: its figures are PyTorch's own, its exit codes and lines those of the program.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::memspy::{Done, run};
use crate::support::sim;
use memspy::model::bytes;

fn script() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/targets/dry_run.py").to_string_lossy().into_owned()
}

fn python() -> String {
    sim::python().get_program().to_string_lossy().into_owned()
}

fn command(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memspy"));
    command.arg("dry-run").args(options).env("XDG_CACHE_HOME", sim::cache()).stdin(Stdio::null());
    command
}

/// `memspy dry-run OPTIONS -- python dry_run.py ARGUMENTS`
fn dry_run(options: &[&str], arguments: &[&str]) -> Done {
    run(command(options).args(["--", &python(), &script()]).args(arguments))
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no '{part}' in:\n{text}");
    }
}

/// The line of the target that has this text.
fn line_of(text: &str) -> String {
    let source = std::fs::read_to_string(script()).unwrap();
    let at = source.lines().position(|line| line.contains(text)).unwrap() + 1;
    format!("dry_run.py:{at}")
}

#[test]
fn the_figures_are_those_of_pytorch() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.bin");
    let options = ["--card", "h200", "--until-step", "0", "-o", trace.to_str().unwrap()];
    let done = dry_run(&options, &["--batch", "8192"]).ok();
    let truth = done.out.lines().find(|line| line.starts_with("truth")).unwrap();
    let truth: Vec<u64> = truth.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
    let figure = |name: &str| {
        let line = done.out.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" ")
    };
    assert_eq!([figure("allocated"), figure("reserved")], [bytes(truth[0]), bytes(truth[1])]);
    has(
        &done.out,
        &["FITS", "±1 %", "NVIDIA H200", "4 optimizer steps", "parameters", "optimizer state"],
    );
    // The peak is in the backward pass, and what holds it was made by the forward pass.
    let activations = line_of("# the activations");
    has(&done.out, &["backward at", &line_of("loss.backward()"), &activations, "memspy flame"]);

    let mut lines = Command::new(env!("CARGO_BIN_EXE_memspy"));
    let lines = run(lines.arg("lines").arg(&trace)).ok();
    has(&lines.out, &[&activations]);
    let mut drawn = Command::new(env!("CARGO_BIN_EXE_memspy"));
    let svg = folder.path().join("flame.svg");
    run(drawn.arg("flame").arg(&trace).arg("-o").arg(&svg)).ok();
    has(&std::fs::read_to_string(svg).unwrap(), &[&activations]);
}

#[test]
fn what_does_not_fit_is_told_with_its_line() {
    let done = dry_run(&["--card", "1GiB"], &["--batch", "8192"]);
    assert_eq!(done.status.code(), Some(3), "{}{}", done.out, done.err);
    let activations = line_of("# the activations");
    has(
        &done.out,
        &["DOES NOT FIT: it needs", "Out of memory in step 1", "forward", "more asked for at"],
    );
    let first = done.out.lines().find(|line| line.contains("Out of memory")).unwrap();
    has(first, &[&activations]);
    has(&done.out, &["it fits t4"]);
}

#[test]
fn a_peak_above_the_limit_is_an_exit_code() {
    let done = dry_run(&["--max-peak", "300MiB"], &[]);
    assert_eq!(done.status.code(), Some(3), "{}{}", done.out, done.err);
    has(&done.out, &["ABOVE THE LIMIT", "ended after step 3"]);
    let done =
        dry_run(&["--max-peak", "2GiB", "--pass-exit", "--until-step", "0"], &["--exit", "7"]);
    assert_eq!(done.status.code(), Some(7), "{}{}", done.out, done.err);
}

#[test]
fn values_that_decide_sizes_and_other_failures_are_told() {
    let done = dry_run(&["--until-step", "0"], &["--sized-by-values", "--fail"]);
    assert_eq!(done.status.code(), Some(1), "{}{}", done.out, done.err);
    let place = format!("{} (nonzero)", line_of("as many rows"));
    has(&done.out, &["NO ANSWER", "ValueError: something else", &place, "values"]);
}

#[test]
fn the_largest_batch_that_fits_is_found() {
    let program = [python(), script()];
    // Progress is for a terminal, unless one asks.
    let options = ["-v", "--card", "2GiB", "--fit", "n=10..18", "--"];
    let done = run(command(&options).args(&program).args(["--scale", "{n}"])).ok();
    let first = done.out.lines().next().unwrap();
    has(first, &["is the largest that fits"]);
    let largest: u64 = first.split(' ').nth(2).unwrap().parse().unwrap();
    assert!((11..18).contains(&largest), "{first}");
    // Both were run.
    let verdicts = [format!("n = {largest} fits"), format!("n = {} does not fit", largest + 1)];
    has(&done.err, &verdicts.each_ref().map(String::as_str));
}

#[test]
fn every_process_of_a_launcher_is_seen() {
    let torchrun = Path::new(&python()).with_file_name("torchrun");
    let mut command = command(&["--card", "24GiB", "--gpus", "2", "--"]);
    let launched = ["--standalone", "--nproc-per-node", "2"];
    let done = run(command.arg(torchrun).args(launched).arg(script())).ok();
    has(&done.out, &["FITS", "2 × card", "allocated by process: rank 1", "rank 0"]);
}

#[test]
fn what_is_missing_is_told() {
    let empty = tempfile::tempdir().unwrap();
    let mut without_compiler = command(&["--"]);
    without_compiler.env("XDG_CACHE_HOME", empty.path()).env("CC", "no-such-compiler");
    let done = run(without_compiler.args([python(), script()]));
    done.refused_last(&["cannot build the simulated CUDA libraries", "no C compiler", "gcc"]);
    let done = run(&mut command(&["--", "no-such-program"]));
    done.refused(&["no-such-program", "spelled right"]);
    let done = run(command(&["--"]).args([&python(), "-c", "import torch"]));
    done.refused(&["no GPU memory of PyTorch"]);
}

#[test]
fn the_end_of_a_program_is_named() {
    let kill = "import os, torch; torch.zeros(9, device='cuda'); os.kill(os.getpid(), 9)";
    let done = run(command(&["--"]).args([&python(), "-c", kill]));
    done.refused(&["the program was ended by SIGKILL (signal 9), before"]);
}

#[test]
fn wrong_words_are_one_line() {
    let done = run(command(&["--fit", "n=1..9", "--"]).args([python(), script()]));
    assert_eq!(done.status.code(), Some(2), "{}", done.err);
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    has(&done.err, &["no {n} to put numbers in"]);
    let options = ["--module", "torch.nn:NoSuchModule", "--input", "3x3", "--", &python()];
    run(&mut command(&options)).refused(&["torch.nn:NoSuchModule", "AttributeError"]);
}

#[test]
fn a_tensor_larger_than_any_card_has_no_odd_figures() {
    let tensor = "import torch; torch.empty(1 << 50, dtype=torch.uint8, device='cuda')";
    let done = run(command(&["--card", "24GiB", "--"]).args([&python(), "-c", tensor]));
    assert_eq!(done.status.code(), Some(3), "{}{}", done.out, done.err);
    has(&done.out, &["it needs more than 1024.00 TiB, the card has 24.00 GiB", "Until it ran out"]);
    assert!(!done.out.contains("0 B are"), "{}", done.out);
}

#[test]
fn a_module_needs_no_program_and_json_has_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let net = folder.path().join("net.py");
    let source =
        "from torch import nn\ndef Net(): return nn.Sequential(nn.Linear(1024, 2048), nn.ReLU())\n";
    std::fs::write(&net, source).unwrap();
    let module = format!("{}:Net", net.display());
    let options = ["--module", &module, "--input", "65536x1024", "--json"];
    let done = run(command(&options).args(["--", &python()])).ok();
    let answer: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(answer["format"], "memspy-dry-run");
    assert_eq!(answer["answer"], "fits");
    // Weights and bias, the input, the outputs of Linear and ReLU.
    let weights = 4 * 2048 * 1025;
    let (input, output) = (4 * 65536 * 1024, 4 * 65536 * 2048);
    let peak = answer["peaks"]["allocated"].as_u64().unwrap();
    assert!(peak >= weights + input + 2 * output, "{answer:#}");
    assert!(answer["margin_percent"]["allocated"].is_u64());
    let holders = answer["moment"]["holders"].as_array().unwrap();
    let sum: u64 = holders.iter().map(|holder| holder["bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, answer["moment"]["allocated"].as_u64().unwrap());
    // The program's own words.
    has(&done.err, &["parameters and buffers  8.01 MiB", "kept for backward       512.00 MiB"]);
}

/// Peaks of an H200 (benches/dry_run.md).
#[test]
fn two_models_have_the_peaks_of_a_gpu() {
    let jobs = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/dry_run/jobs");
    let ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"];
    for (job, launcher, real) in [
        ("gpt.py", &[][..], [6_962_499_072, 7_310_671_872, 8_090_812_416]),
        ("fsdp.py", &ranks[..], [4_955_731_456, 6_387_924_992, 8_063_549_440_u64]),
    ] {
        let mut dry_run = command(&["--card", "h200", "--gpus", "2", "--json", "--", &python()]);
        let done = run(dry_run.args(launcher).arg(jobs.join(job))).ok();
        let answer: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        for (figure, real) in ["allocated", "reserved", "process"].into_iter().zip(real) {
            let here = answer["peaks"][figure].as_u64().unwrap();
            let margin = answer["margin_percent"][figure].as_u64().unwrap();
            assert!(
                here.abs_diff(real) * 100 <= real * margin,
                "{job}: {figure} {here} for {real}"
            );
        }
    }
}
