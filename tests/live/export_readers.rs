//! Exported files, opened by DuckDB, pyarrow, Google's protobuf, a JSON schema and Perfetto; the
//! queries of docs/export.md over two ranks.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::analysis_script::MIB;
use crate::exact_script;
use crate::support::browser::Browser;
use crate::support::memspy::{Recording, memspy, run};
use crate::support::sim;
use crate::support::target::Target;
use memspy::model::RecordSink;
use memspy::trace::TraceWriter;
use serde_json::{Value, json};

/// The Python that scripts/setup-readers.sh sets up, or `MEMSPY_READERS`.
fn readers() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = std::env::var_os("MEMSPY_READERS")
        .map_or_else(|| root.join("target/envs/readers/bin/python"), PathBuf::from);
    assert!(python.exists(), "{} is missing: run scripts/setup-readers.sh", python.display());
    python
}

fn read(script: &str, arguments: &[&Path]) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(readers());
    let done = run(command.arg(root.join("tests/targets").join(script)).args(arguments)).ok();
    serde_json::from_str(done.out.lines().last().unwrap()).unwrap()
}

/// Lets the target do something and returns its truth.
fn ask(target: &mut Target, request: &str) -> Value {
    target.say(request);
    serde_json::from_str(&target.line()).unwrap()
}

/// A rank that keeps `keep` bytes and trains a little, recorded in `folder`; and its truth.
fn rank(folder: &Path, number: usize, keep: u64) -> Value {
    let mut command = sim::command("exact_torch.py", &[]);
    let mut target = Target::start(command_of_rank(&mut command, number));
    let mut recording = Recording::start_exact(target.pid(), &[]);
    ask(&mut target, &format!("keep {keep}"));
    let truth = ask(&mut target, "train 3");
    let _ = recording.interrupt();
    std::fs::copy(recording.trace(), folder.join(format!("rank-{number}.bin"))).unwrap();
    truth
}

fn command_of_rank(command: &mut Command, number: usize) -> Command {
    command.env("RANK", number.to_string());
    std::mem::replace(command, Command::new("true"))
}

/// Two lines of a small program: the peak is 396 MiB, 300 of them older than the recording.
fn two_lines(folder: &Path) -> PathBuf {
    let trace = folder.join("two-lines.bin");
    let mut writer = TraceWriter::create(&trace, false).unwrap();
    exact_script::two_lines().iter().for_each(|record| writer.record(record).unwrap());
    writer.finish().unwrap();
    trace
}

/// Exports `trace` in `format` into the file `name` beside it.
fn export(trace: &Path, format: &str, name: &str) -> PathBuf {
    let out = trace.with_file_name(name);
    let words = ["export", trace.to_str().unwrap(), "-f", format, "-o", out.to_str().unwrap()];
    memspy(&words).ok();
    out
}

#[test]
fn every_format_of_a_trace_opens_in_its_real_reader() {
    let folder = tempfile::tempdir().unwrap();
    let trace = two_lines(folder.path());
    for format in ["memory-viz", "speedscope", "pprof", "csv", "json"] {
        export(&trace, format, format);
    }
    export(&trace, "parquet", "tables");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let find =
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])";
    let torch = run(sim::python().args(["-c", find])).ok().out;
    let memory_viz = Path::new(torch.trim()).join("cuda/_memory_viz.py");
    let page = root.join("docs/export.md");
    let seen = read("open_exports.py", &[folder.path(), &memory_viz, &page]);
    let (peak, allocated) = (396 * MIB, 96 * MIB);
    let truth = json!({
        // Up to the peak, where both lines have allocated.
        "memory-viz": {"live": peak, "trace": 2, "is plotted": true},
        "speedscope": peak,
        "pprof": {"inuse_space": peak, "alloc_space": allocated, "alloc_objects": 2},
        "csv": [[peak, allocated, 2]],
        "json": [[peak, peak]],
        "parquet": {"blocks": 3, "events": 3, "frames": 4, "samples": 2, "stacks": 4},
        "queries": [1, 3, 3, 2, 1],
        "lines": [["[before recording]", 300 * MIB], ["forward", 64 * MIB], ["train", 32 * MIB]],
        "held": peak,
    });
    assert_eq!(seen, truth);
}

#[test]
#[ignore = "needs pyarrow (48 MB) beside DuckDB, and trains two ranks: run by scripts/test.sh --all, which installs it"]
fn the_queries_of_the_docs_answer_over_two_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let truths = [rank(folder, 0, 5_000_000), rank(folder, 1, 33_000_000)];
    let traces = [0, 1].map(|number| folder.join(format!("rank-{number}.bin")));
    let tables = folder.join("tables");
    let [first, second] = traces.each_ref().map(|trace| trace.to_str().unwrap());
    memspy(&["export", first, second, "-f", "parquet", "-o", tables.to_str().unwrap()]).ok();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/export.md");
    let seen = read("read_tables.py", &[folder, &page]);

    let queries = seen["queries"].as_array().unwrap();
    assert_eq!(queries.len(), 5, "the page has five queries");
    assert!(queries.iter().all(|rows| !rows.as_array().unwrap().is_empty()), "{seen}");
    // The rank that keeps more has the higher peak, to the byte.
    assert_eq!(queries[0][0], json!([1, 0, truths[1]["peak"]]));
    assert_eq!(queries[0][1], json!([0, 0, truths[0]["peak"]]));
    // Lines hold what both ranks have at their peaks.
    let held: u64 = queries[1].as_array().unwrap().iter().map(|r| r[3].as_u64().unwrap()).sum();
    let peaks: u64 = truths.iter().map(|truth| truth["peak"].as_u64().unwrap()).sum();
    assert!(held <= peaks && held > 38_000_000, "{held} of {peaks}");
    // The line that keeps is the difference.
    let apart = queries[2][0][2].as_u64().unwrap();
    assert!((27_000_000..30_000_000).contains(&apart), "{}", queries[2]);
    for table in ["events", "samples", "blocks", "stacks", "frames"] {
        assert!(seen["rows"][table].as_u64() > Some(0), "{table}");
        assert_eq!(seen["columns"][table][0], "rank");
    }
}

#[test]
#[ignore = "trains a job: run by scripts/test.sh --all; the small trace above is read always"]
fn pprof_and_speedscope_are_read_by_the_readers_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let truth = rank(folder.path(), 0, 5_000_000);
    let trace = folder.path().join("rank-0.bin");
    let export = |format: &str| {
        let out = folder.path().join(format);
        let words = ["export", trace.to_str().unwrap(), "-f", format, "-o", out.to_str().unwrap()];
        memspy(&words).ok();
        out
    };
    let seen = read("read_formats.py", &[&export("pprof"), &export("speedscope")]);
    assert_eq!(seen["pprof"]["inuse_space"], truth["peak"]);
    assert!(seen["pprof"]["alloc_objects"].as_u64() > Some(1), "{seen}");
    assert_eq!(seen["speedscope"], truth["peak"]);
}

/// Rows of names and numbers from Perfetto's own trace processor, in its page in the browser.
fn perfetto_says(browser: &mut Browser, sql: &str) -> Vec<Value> {
    // 'str' is Perfetto's name for a text column, 0 for a number column.
    let code = format!(
        "(async () => {{ const rows = []; \
         const it = (await app.trace.engine.query(`{sql}`)).iter({{ name: 'str', number: 0 }}); \
         for (; it.valid(); it.next()) rows.push([it.name, it.number]); return rows; }})()"
    );
    browser.value(&code).as_array().unwrap().clone()
}

/// Perfetto's page with the exported `file`, and its server; `None`, with a note, if there is no
/// browser.
fn perfetto(file: &Path) -> Option<(Target, Browser)> {
    let Some(mut browser) = Browser::start() else {
        let why = std::fs::read_to_string("target/no-browser");
        eprint!("{}", why.expect("chromium is missing: scripts/setup-tests.sh installs it"));
        return None;
    };
    let mut server = Command::new(readers());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    server.arg(root.join("tests/targets/serve_perfetto.py")).arg(file);
    let server = Target::start(server);
    let page = format!("http://127.0.0.1:{}/", server.said[0]);
    let url = format!("{page}#!/?url={page}trace.json");
    browser.call("Page.navigate", json!({"url": url}));
    browser.value(
        "new Promise((done) => { const look = () => globalThis.app?.trace?.engine \
         ? done(true) : setTimeout(look, 50); look(); })",
    );
    Some((server, browser))
}

#[test]
fn perfettos_own_trace_processor_reads_one_small_trace() {
    let folder = tempfile::tempdir().unwrap();
    let file = export(&two_lines(folder.path()), "perfetto", "perfetto.json");
    let Some((_server, mut browser)) = perfetto(&file) else { return };
    let sql = "select name, max(value) as number from counter join track on track.id = track_id \
               where name = 'GPU 0 allocated bytes' group by name";
    assert_eq!(perfetto_says(&mut browser, sql), [json!(["GPU 0 allocated bytes", 396 * MIB])]);
    // It understood the whole file.
    let sql = "select name, value as number from stats where severity != 'info' and value > 0";
    assert_eq!(perfetto_says(&mut browser, sql), Vec::<Value>::new());
}

#[test]
#[ignore = "trains for some time and loads Perfetto's page: run by scripts/test.sh --all; the small trace above is read always"]
fn perfetto_has_the_peaks_of_the_process_and_its_steps() {
    let mut target = sim::start("iterations_truth.py", &[]);
    let words = ["--iter-var", "epoch_of:step", "--epoch-var", "local:epoch"];
    let mut recording = Recording::start_exact(target.pid(), &words);
    target.say("local 2 50");
    let truth: Vec<(u64, u64, u64)> = serde_json::from_str(&target.line()).unwrap();
    let _ = recording.interrupt();
    let file = recording.trace().with_extension("json");
    let words = ["export", recording.trace().to_str().unwrap(), "-f", "perfetto", "-o"];
    memspy(&[&words[..], &[file.to_str().unwrap()]].concat()).ok();

    let Some((_server, mut browser)) = perfetto(&file) else { return };
    let peak = truth.iter().map(|step| step.2).max().unwrap();
    let sql = "select name, max(value) as number from counter join track on track.id = track_id \
               group by name order by name";
    let greatest = perfetto_says(&mut browser, sql);
    assert_eq!(greatest[0], json!(["GPU 0 allocated bytes", peak]));
    assert!(greatest[1][1].as_u64() >= Some(peak), "{greatest:?}");
    let sql = "select name, extract_arg(arg_set_id, 'args.GPU 0 peak_allocated') as number \
               from slice where dur > 0 order by ts";
    let steps = perfetto_says(&mut browser, sql);
    assert!(steps.len() >= 50, "{} of {}", steps.len(), truth.len());
    let expected: Vec<Value> = truth
        .iter()
        .map(|(epoch, step, peak)| json!([format!("epoch {epoch} step {step}"), peak]))
        .collect();
    let from = expected.iter().position(|step| *step == steps[1]).unwrap();
    // The first may be cut; the last extends beyond the loop.
    let whole = &steps[1..steps.len() - 1];
    assert_eq!(whole, &expected[from..from + whole.len()]);
    let sql = "select name, pid as number from process where pid > 0";
    let name = format!("process {}", target.pid());
    assert_eq!(perfetto_says(&mut browser, sql), [json!([name, target.pid()])]);
    // It understood the whole file.
    let sql = "select name, value as number from stats where severity != 'info' and value > 0";
    assert_eq!(perfetto_says(&mut browser, sql), Vec::<Value>::new());
}
