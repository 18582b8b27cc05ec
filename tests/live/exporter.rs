//! `memspy exporter` beside real jobs: its figures against `torch.cuda.memory_stats()`, and a real
//! Prometheus.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::memspy::{command, run, wait_until};
use crate::support::sim;
use crate::support::target::Target;

/// A running exporter on a free port; killed when dropped.
struct Exporter {
    child: Child,
    errors: BufReader<ChildStderr>,
    said: String,
    address: String,
}

impl Exporter {
    fn start(pid: u32, words: &[&str]) -> Exporter {
        let mut command = command(Some(pid));
        command.args(["exporter", "-p", &pid.to_string(), "--listen", "127.0.0.1:0"]);
        let mut child = command.args(words).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (said, address) = (String::new(), String::new());
        let mut exporter = Exporter { child, errors, said, address };
        exporter.wait_for("serving http://");
        let (_, rest) = exporter.said.split_once("http://").unwrap();
        exporter.address = rest.split_once('/').unwrap().0.to_owned();
        exporter
    }

    fn wait_for(&mut self, text: &str) {
        while !self.said.contains(text) {
            let read = self.errors.read_line(&mut self.said).unwrap();
            assert!(read > 0, "the exporter ended without '{text}': {}", self.said);
        }
    }

    fn get(&self, accept: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn metrics(&self) -> String {
        self.get("application/openmetrics-text;version=1.0.0")
    }

    /// Waits for a page with these parts.
    fn metrics_with(&self, parts: &[&str]) -> String {
        let mut text = String::new();
        wait_until(&format!("a page with {parts:?}"), || {
            text = self.metrics();
            parts.iter().all(|part| text.contains(part))
        });
        text
    }

    fn wait(&mut self) -> (Option<i32>, String) {
        let mut said = std::mem::take(&mut self.said);
        self.errors.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The values of a family, with their labels.
fn series<'t>(text: &'t str, name: &str) -> Vec<(&'t str, f64)> {
    let one = |line: &'t str| {
        let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once("} ")?;
        Some((labels, value.parse().unwrap()))
    };
    text.lines().filter_map(one).collect()
}

/// The value on a GPU.
#[track_caller]
fn on_gpu(text: &str, name: &str, gpu: u64) -> f64 {
    let of = format!("gpu=\"{gpu}\"");
    let found: Vec<f64> =
        series(text, name).iter().filter(|(labels, _)| labels.contains(&of)).map(|s| s.1).collect();
    assert_eq!(found.len(), 1, "{name} of GPU {gpu} in:\n{text}");
    found[0]
}

fn truth(said: &[String]) -> Value {
    serde_json::from_str(said.last().unwrap()).unwrap()
}

/// Keys of `torch.cuda.memory_stats()` by the series that carry them.
const STATS: [(&str, &str); 7] = [
    ("memspy_allocated_bytes", "allocated_bytes.all.current"),
    ("memspy_reserved_bytes", "reserved_bytes.all.current"),
    ("memspy_allocated_peak_bytes", "allocated_bytes.all.peak"),
    ("memspy_reserved_peak_bytes", "reserved_bytes.all.peak"),
    ("memspy_inactive_split_bytes", "inactive_split_bytes.all.current"),
    ("memspy_alloc_retries_total", "num_alloc_retries"),
    ("memspy_ooms_total", "num_ooms"),
];

fn compare(text: &str, truth: &Value) {
    for device in truth["devices"].as_array().unwrap() {
        let gpu = device["device"].as_u64().unwrap();
        for (name, key) in STATS {
            assert_eq!(on_gpu(text, name, gpu), device["stats"][key].as_f64().unwrap(), "{key}");
        }
        assert_eq!(on_gpu(text, "memspy_device_free_bytes", gpu), device["free"].as_f64().unwrap());
        let free_blocks: Vec<f64> = device["snapshot"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|segment| segment["blocks"].as_array().unwrap())
            .filter(|block| block["state"] == "inactive")
            .map(|block| block["size"].as_f64().unwrap())
            .collect();
        let largest = free_blocks.iter().copied().fold(0.0, f64::max);
        let free: f64 = free_blocks.iter().sum();
        assert_eq!(on_gpu(text, "memspy_cached_free_bytes", gpu), free);
        assert_eq!(on_gpu(text, "memspy_largest_free_block_bytes", gpu), largest);
        assert_eq!(on_gpu(text, "memspy_fragmentation_ratio", gpu), 1.0 - largest / free);
        let lines: f64 = series(text, "memspy_line_bytes")
            .iter()
            .filter(|(labels, _)| labels.contains(&format!("gpu=\"{gpu}\"")))
            .map(|(_, bytes)| bytes)
            .sum();
        assert_eq!(lines, device["stats"]["allocated_bytes.all.current"].as_f64().unwrap());
    }
}

#[test]
fn figures_equal_memory_stats_and_follow_the_job() {
    let mut target = sim::start("allocator_truth.py", &["two_devices"]);
    let exporter = Exporter::start(target.pid(), &["--limit", "3"]);
    let parts = ["memspy_line_bytes{", "memspy_cached_free_bytes{", "memspy_device_free_bytes{"];
    compare(&exporter.metrics_with(&parts), &truth(&target.said));
    target.say("again");
    let after = truth(&target.read_until_ready());
    let allocated = &after["devices"][1]["stats"]["allocated_bytes.all.current"];
    let mut text = String::new();
    wait_until("the figures, the map and the driver's answer after a further round", || {
        text = exporter.metrics();
        // The driver is asked once a second, whatever the job does.
        let is_asked_since = after["devices"].as_array().unwrap().iter().all(|device| {
            let gpu = device["device"].as_u64().unwrap();
            on_gpu(&text, "memspy_device_free_bytes", gpu) == device["free"].as_f64().unwrap()
        });
        let lines: f64 = series(&text, "memspy_line_bytes")
            .iter()
            .filter(|(labels, _)| labels.contains("gpu=\"1\""))
            .map(|line| line.1)
            .sum();
        is_asked_since && lines == allocated.as_f64().unwrap()
    });
    compare(&text, &after);
    let lines = series(&text, "memspy_line_bytes");
    // Which line is an estimate; that it is a line of the program, or marked unknown, is certain.
    let unknown = ["[not seen]", "[before recording]", "[other]"];
    let is_known = |labels: &str| labels.contains("targets/");
    let said = |labels: &str| unknown.iter().any(|name| labels.contains(name));
    assert!(lines.iter().all(|(labels, _)| is_known(labels) || said(labels)), "{text}");
    wait_until("a round of which a line was seen", || {
        target.say("again");
        target.read_until_ready();
        let text = exporter.metrics();
        series(&text, "memspy_line_bytes").iter().any(|(labels, _)| is_known(labels))
    });
    for gpu in ["gpu=\"0\"", "gpu=\"1\""] {
        let count = lines.iter().filter(|(labels, _)| labels.contains(gpu)).count();
        assert!(count <= 4, "three lines and [other], not {count}:\n{text}");
    }
    assert!(text.contains("# HELP memspy_line_bytes ESTIMATE"), "{text}");
    assert!(!text.contains("memspy_owner"), "nobody asked for looks at owners:\n{text}");
    assert_eq!(series(&text, "memspy_process_info").len(), 1);
}

#[test]
fn the_exporter_ends_with_the_job_unless_it_should_wait() {
    let mut target = sim::start("allocator_truth.py", &["plain"]);
    let mut ending = Exporter::start(target.pid(), &[]);
    let waiting = Exporter::start(target.pid(), &["--wait"]);
    ending.metrics_with(&["memspy_allocated_bytes{"]);
    waiting.metrics_with(&["memspy_allocated_bytes{"]);
    target.kill();
    let (code, said) = ending.wait();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the job has ended; its series end"), "{said}");
    wait_until("the series to end", || waiting.metrics() == "# EOF\n");
    let pid = Pid::from_raw(waiting.child.id() as i32);
    kill(pid, Signal::SIGINT).unwrap();
}

#[test]
fn a_used_port_or_a_missing_job_gives_one_line() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let exporter = Exporter::start(target.pid(), &[]);
    let pid = target.pid().to_string();
    run(command(Some(target.pid())).args(["exporter", "-p", &pid, "--listen", &exporter.address]))
        .refused(&["cannot listen on", &exporter.address, "--listen 127.0.0.1:PORT"]);
    run(command(None).args(["exporter", "-p", "2147483647"])).refused(&["2147483647"]);
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn owners_have_series_within_the_budget_of_stops() {
    let mut target = sim::start("holders_truth.py", &[]);
    target.say("train 1");
    target.line();
    let words = ["--owners=50", "--max-time", "10min", "--max-stop", "10min", "--limit", "100"];
    let exporter = Exporter::start(target.pid(), &words);
    let text =
        exporter.metrics_with(&["memspy_owner_bytes{", "memspy_owner_snapshot_stop_seconds{"]);
    let owners = series(&text, "memspy_owner_bytes");
    let parameters = "category=\"parameters\",owner=\"parameters\"";
    assert!(owners.iter().any(|(labels, _)| labels.contains(parameters)), "{text}");
    let sum: f64 = owners.iter().map(|owner| owner.1).sum();
    assert_eq!(sum, on_gpu(&text, "memspy_allocated_bytes", 0));
}

#[test]
#[ignore = "takes long: scripts/test.sh --all runs it"]
fn every_rank_has_series_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut launcher = Command::new("scripts/with-sim");
    launcher.env("SIM_CUDA_DEVICES", "2").env("SIM_CUDA_VALUES", "copy");
    launcher.args(["python", "tests/targets/ranks.py", "--launch", "ddp"]).arg(folder.path());
    let mut target = Target::start(launcher);
    let mut exporter = Exporter::start(target.pid(), &["-s"]);
    // The ranks start later than the exporter.
    target.say("go");
    let text = exporter.metrics_with(&[
        "rank=\"0\",gpu=\"0\"",
        "rank=\"1\",gpu=\"1\"",
        "memspy_reserved_bytes{",
    ]);
    let ranks = series(&text, "memspy_process_info");
    assert_eq!(ranks.len(), 2, "{text}");
    // The job ends when it sees this.
    std::fs::write(folder.path().join("seen"), "").unwrap();
    let (code, said) = exporter.wait();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("its series end").count(), 2, "{said}");
}

#[test]
#[ignore = "needs a Prometheus: scripts/test.sh --all installs one"]
fn prometheus_scrapes_the_figures_and_promtool_finds_nothing_wrong() {
    let target = sim::start("allocator_truth.py", &["plain"]);
    let exporter = Exporter::start(target.pid(), &[]);
    exporter.metrics_with(&["memspy_line_bytes{", "memspy_device_free_bytes{"]);

    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut check = check.stderr(Stdio::piped()).spawn().expect("promtool cannot be started");
    check.stdin.take().unwrap().write_all(exporter.get("text/plain").as_bytes()).unwrap();
    let checked = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("prometheus.yml");
    let scrape = format!(
        "scrape_configs:\n- job_name: memspy\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  static_configs:\n  - targets: ['{}']\n",
        exporter.address
    );
    std::fs::write(&config, scrape).unwrap();
    // A free port: taken for a moment, and given back.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("tsdb").display()))
        .arg(format!("--web.listen-address={port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus cannot be started");
    let ask = |query: &str| -> Value {
        let Ok(mut stream) = TcpStream::connect(port) else { return Value::Null };
        let asked =
            write!(stream, "GET /api/v1/query?query={query} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let mut answer = String::new();
        if asked.is_err() || stream.read_to_string(&mut answer).is_err() {
            return Value::Null;
        }
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_default()
    };
    let truth = truth(&target.said);
    for (name, key) in STATS {
        let mut answer = Value::Null;
        wait_until(&format!("{name} in Prometheus"), || {
            answer = ask(name);
            answer["data"]["result"][0]["value"][1].is_string()
        });
        let value: f64 = answer["data"]["result"][0]["value"][1].as_str().unwrap().parse().unwrap();
        assert_eq!(value, truth["devices"][0]["stats"][key].as_f64().unwrap(), "{answer}");
    }
    drop(target);
    wait_until("the series of an ended job to be stale", || {
        let answer = ask("memspy_allocated_bytes");
        answer["status"] == "success" && answer["data"]["result"].as_array().unwrap().is_empty()
    });
    let _ = prometheus.kill();
    let _ = prometheus.wait();
}
