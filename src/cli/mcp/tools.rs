//! Tools of `memspy mcp`: read-only commands with typed arguments.

use std::time::Duration;

use clap::ValueEnum;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::protocol::RpcError;
use crate::cli::args::CompareArg;
use crate::model::parse_time;

/// The part of a call's time not spent observing the job.
const TIME_BESIDES: Duration = Duration::from_secs(60);

type CommandWords = Vec<String>;

pub(super) struct McpTool {
    pub(super) name: &'static str,
    description: &'static str,
    arguments: &'static [Argument],
    words: fn(Value) -> Result<CommandWords, RpcError>,
    pub(super) is_json: bool,
}

/// Name, JSON type, whether required, description.
type Argument = (&'static str, &'static str, bool, &'static str);

const PID: Argument = ("pid", "integer", true, "Process id of the job");
const RANKS: Argument = (
    "subprocesses",
    "boolean",
    false,
    "Every process of the job that uses CUDA: it and its descendants",
);
const NO_STOP: Argument = (
    "no_stop",
    "boolean",
    false,
    "Do not stop the job to read its tensors; what it changes meanwhile may be inconsistent",
);
const TRACE: Argument = ("trace", "string", true, "Path of a trace that 'memspy record' wrote");
const FOR: Argument =
    ("duration", "string", false, "How long to observe the job: 5s, 2min; at most 240 seconds");
const DIFF_BY: Argument = (
    "by",
    "string",
    false,
    "What a row is: a line of the program, a function, a whole stack, or an owner (traces recorded with --owners) [default: line]",
);
const GPU: Argument = ("gpu", "integer", false, "Only this GPU, as the job numbers it");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobArguments {
    pid: u32,
    #[serde(default)]
    subprocesses: bool,
    #[serde(default)]
    no_stop: bool,
    duration: Option<String>,
    gpu: Option<u32>,
    tensor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceArguments {
    #[serde(default)]
    pids: Vec<u32>,
    #[serde(default)]
    subprocesses: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TraceArguments {
    trace: String,
    gpu: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiffArguments {
    before: String,
    after: Option<String>,
    by: Option<String>,
    at: Option<String>,
    from: Option<String>,
    to: Option<String>,
    gpu: Option<u32>,
}

pub(super) const TOOLS: &[McpTool] = &[
    McpTool {
        name: "summary",
        description: "Where a job's GPU memory is, what owns it, what grew, which lines allocated it, and findings. Begin here",
        arguments: &[PID, RANKS, NO_STOP, FOR],
        words: |given| job("summary", given),
        is_json: true,
    },
    McpTool {
        name: "growth",
        description: "Leaks: owners and lines whose live bytes keep growing while the job is observed, and what keeps them alive",
        arguments: &[PID, NO_STOP, FOR],
        words: |given| job("growth", given),
        is_json: true,
    },
    McpTool {
        name: "dump",
        description: "One moment of a job: the stacks of its threads, and where its GPU memory is",
        arguments: &[PID, RANKS, NO_STOP, GPU],
        words: |given| job("dump", given),
        is_json: true,
    },
    McpTool {
        name: "tensors",
        description: "Every tensor of a job with name, shape, bytes, what it is for and who shares its memory. Long for large jobs: 'summary' has the groups",
        arguments: &[PID, RANKS, NO_STOP],
        words: |given| job("tensors", given),
        is_json: true,
    },
    McpTool {
        name: "why",
        description: "Why one tensor is still there: the way that keeps it, what each step would free, and what refers to it",
        arguments: &[
            PID,
            NO_STOP,
            ("tensor", "string", true, "Its name as 'summary' or 'tensors' has it, or an address"),
        ],
        words: |given| job("why", given),
        is_json: true,
    },
    McpTool {
        name: "graph",
        description: "What the autograd graph of a job keeps for the backward pass, by class of node",
        arguments: &[PID, RANKS, NO_STOP],
        words: |given| job("graph", given),
        is_json: true,
    },
    McpTool {
        name: "devices",
        description: "The GPUs of this machine, the processes on them, and what the jobs given have there",
        arguments: &[("pids", "array", false, "Process ids of jobs to look into"), RANKS],
        words: devices,
        is_json: true,
    },
    McpTool {
        name: "doctor",
        description: "What memspy can and cannot do with a job, and why",
        arguments: &[PID],
        words: |given| job("doctor", given),
        is_json: true,
    },
    McpTool {
        name: "lines",
        description: "The peak memory of every line, out of a trace",
        arguments: &[TRACE, GPU],
        words: |given| trace(&["lines", "--json"], given),
        is_json: true,
    },
    McpTool {
        name: "stacks",
        description: "What was live at the peak of a trace, by Python stack",
        arguments: &[TRACE, GPU],
        words: |given| trace(&["export", "--format=json", "--output=-"], given),
        is_json: true,
    },
    McpTool {
        name: "iterations",
        description: "The training iterations of a trace: peaks, gradients, owners of the memory",
        arguments: &[TRACE, GPU],
        words: |given| trace(&["iterations", "--json"], given),
        is_json: true,
    },
    McpTool {
        name: "diff",
        description: "Two traces, or two moments of one, compared: what holds more, and what less. The answer is text",
        arguments: &[
            (
                "before",
                "string",
                true,
                "Path of the first trace; alone, with 'from': two of its moments are compared",
            ),
            ("after", "string", false, "Path of the second trace"),
            DIFF_BY,
            ("at", "string", false, "With two traces: the moment, peak or end [default: peak]"),
            (
                "from",
                "string",
                false,
                "With one trace: the first moment: 12.5s since it began, peak, end or oom",
            ),
            ("to", "string", false, "With one trace: the second moment [default: end]"),
            GPU,
        ],
        words: diff,
        is_json: false,
    },
];

impl McpTool {
    pub(super) fn find(name: &str) -> Option<&'static McpTool> {
        TOOLS.iter().find(|tool| tool.name == name)
    }

    pub(super) fn words(&self, arguments: Value, no_stop: bool) -> Result<CommandWords, RpcError> {
        let mut given = if arguments.is_null() { json!({}) } else { arguments };
        let Some(object) = given.as_object_mut() else {
            return Err(RpcError::invalid_params("arguments are an object"));
        };
        if let Some(unknown) =
            object.keys().find(|key| self.arguments.iter().all(|argument| argument.0 != **key))
        {
            return Err(RpcError::invalid_params(format!(
                "{} has no argument {unknown}",
                self.name
            )));
        }
        if let Some(missing) =
            self.arguments.iter().find(|argument| argument.2 && !object.contains_key(argument.0))
        {
            return Err(RpcError::invalid_params(format!("{} needs {}", self.name, missing.0)));
        }
        if no_stop && self.arguments.iter().any(|argument| argument.0 == NO_STOP.0) {
            object.insert(NO_STOP.0.to_owned(), Value::Bool(true));
        }
        (self.words)(given)
    }

    fn schema(&self) -> Value {
        let mut properties = serde_json::Map::new();
        for (name, kind, _, meaning) in self.arguments {
            let mut property = json!({"type": kind, "description": meaning});
            match *kind {
                "array" => property["items"] = json!({"type": "integer", "minimum": 1}),
                "integer" => property["minimum"] = json!(u32::from(*name == PID.0)),
                _ => {}
            }
            if *name == DIFF_BY.0 {
                let values = CompareArg::value_variants().iter();
                let words = values.filter_map(|value| value.to_possible_value());
                let words: Vec<String> = words.map(|word| word.get_name().to_owned()).collect();
                property["enum"] = json!(words);
            }
            properties.insert((*name).to_owned(), property);
        }
        let required: Vec<&str> = self
            .arguments
            .iter()
            .filter(|argument| argument.2)
            .map(|argument| argument.0)
            .collect();
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            },
            "annotations": {"readOnlyHint": true, "destructiveHint": false, "openWorldHint": false},
        })
    }
}

pub(super) fn list() -> Value {
    json!({"tools": TOOLS.iter().map(McpTool::schema).collect::<Vec<_>>()})
}

fn read<T: DeserializeOwned>(given: Value) -> Result<T, RpcError> {
    serde_json::from_value(given).map_err(|error| RpcError::invalid_params(error.to_string()))
}

/// Client values follow `=` or `--`, so they are never options.
fn job(command: &str, given: Value) -> Result<CommandWords, RpcError> {
    let given: JobArguments = read(given)?;
    let mut words = vec![command.to_owned(), "--json".to_owned(), format!("--pid={}", given.pid)];
    words.extend(given.subprocesses.then(|| "--subprocesses".to_owned()));
    words.extend(given.no_stop.then(|| "--no-stop".to_owned()));
    if let Some(time) = given.duration {
        check_duration(&time).map_err(RpcError::invalid_params)?;
        words.push(format!("--for={time}"));
    }
    words.extend(given.gpu.map(|gpu| format!("--gpu={gpu}")));
    words.extend(given.tensor.into_iter().flat_map(|tensor| ["--".to_owned(), tensor]));
    Ok(words)
}

/// Whether a call has time to observe a job this long.
fn check_duration(text: &str) -> Result<(), String> {
    let most = super::TIMEOUT - TIME_BESIDES;
    let time = parse_time(text).map_err(|error| format!("duration: {error}"))?;
    match time <= most {
        true => Ok(()),
        false => Err(format!("duration: at most {} seconds", most.as_secs())),
    }
}

fn devices(given: Value) -> Result<CommandWords, RpcError> {
    let given: DeviceArguments = read(given)?;
    let mut words = vec!["devices".to_owned(), "--json".to_owned()];
    words.extend(given.pids.iter().map(|pid| format!("--pid={pid}")));
    words.extend(given.subprocesses.then(|| "--subprocesses".to_owned()));
    Ok(words)
}

fn trace(command: &[&str], given: Value) -> Result<CommandWords, RpcError> {
    let given: TraceArguments = read(given)?;
    let mut words: CommandWords = command.iter().map(|word| (*word).to_owned()).collect();
    words.extend(given.gpu.map(|gpu| format!("--gpu={gpu}")));
    words.extend(["--".to_owned(), given.trace]);
    Ok(words)
}

fn diff(given: Value) -> Result<CommandWords, RpcError> {
    let given: DiffArguments = read(given)?;
    let mut words = vec!["diff".to_owned()];
    let options = [("by", given.by), ("at", given.at), ("from", given.from), ("to", given.to)];
    for (option, value) in options {
        words.extend(value.map(|value| format!("--{option}={value}")));
    }
    words.extend(given.gpu.map(|gpu| format!("--gpu={gpu}")));
    words.extend(["--".to_owned(), given.before]);
    words.extend(given.after);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{CliArgs, Command};

    fn words(name: &str, given: Value) -> CommandWords {
        McpTool::find(name).unwrap().words(given, false).unwrap()
    }

    fn parsed(words: CommandWords) -> Command {
        let words = std::iter::once("memspy".to_owned()).chain(words);
        CliArgs::from_words(words).unwrap().command
    }

    #[test]
    fn every_tool_is_a_read_only_command_with_valid_arguments() {
        for tool in TOOLS {
            let mut given = serde_json::Map::new();
            for (name, kind, _, _) in tool.arguments {
                let value = match (*name, *kind) {
                    ("duration", _) => json!("5s"),
                    ("by", _) => json!("stack"),
                    // The moments of one trace exclude options for two traces.
                    ("at", _) => continue,
                    ("from" | "to", _) => json!("end"),
                    (_, "integer") => json!(7),
                    (_, "boolean") => json!(true),
                    (_, "array") => json!([7, 8]),
                    _ => json!("x"),
                };
                given.insert((*name).to_owned(), value);
            }
            match parsed(words(tool.name, given.into())) {
                Command::Summary(_)
                | Command::Growth(_)
                | Command::Dump(_)
                | Command::Tensors(_)
                | Command::Why(_)
                | Command::Graph(_)
                | Command::Devices(_)
                | Command::Doctor(_)
                | Command::Lines(_)
                | Command::Iterations(_)
                | Command::Diff(_) => {}
                Command::Export(export) => assert_eq!(export.output.unwrap().to_str(), Some("-")),
                other => panic!("{}: {other:?}", tool.name),
            }
        }
    }

    #[test]
    fn a_client_can_compare_by_any_key_and_two_moments() {
        let schema = McpTool::find("diff").unwrap().schema();
        let by = &schema["inputSchema"]["properties"]["by"]["enum"];
        assert_eq!(*by, json!(["line", "function", "stack", "owner"]));
        assert_eq!(schema["inputSchema"]["required"], json!(["before"]));
        let parsed = |given: Value| {
            let Command::Diff(diff) = parsed(words("diff", given)) else { panic!() };
            diff
        };
        let two = parsed(json!({"before": "a", "after": "b", "by": "function", "at": "end"}));
        assert_eq!((two.by, two.at), (CompareArg::Function, crate::cli::args::MomentArg::End));
        assert_eq!(two.after.unwrap().to_str(), Some("b"));
        let given = json!({"before": "a", "from": "10s", "to": "peak", "by": "owner", "gpu": 1});
        let one = parsed(given);
        assert_eq!((one.by, one.gpu, one.after), (CompareArg::Owner, Some(1), None));
        assert!(one.from.is_some() && one.to.is_some());
        let wrong = words("diff", json!({"before": "a", "after": "b", "by": "colour"}));
        let wrong = CliArgs::from_words([vec!["memspy".to_owned()], wrong].concat());
        assert!(wrong.is_err());
    }

    #[test]
    fn an_argument_cannot_become_an_option() {
        let hostile = "--output=/tmp/x";
        let Command::Lines(lines) = parsed(words("lines", json!({"trace": hostile}))) else {
            panic!()
        };
        assert_eq!((lines.traces[0].to_str(), lines.table.output), (Some(hostile), None));
        let given = json!({"pid": 1, "tensor": hostile});
        let Command::Why(it) = parsed(words("why", given)) else { panic!() };
        assert_eq!(it.tensor.as_deref(), Some(hostile));
        let given = json!({"before": hostile, "after": hostile});
        let Command::Diff(diff) = parsed(words("diff", given)) else { panic!() };
        assert_eq!(diff.output, None);
    }

    #[test]
    fn a_no_stop_server_passes_it_to_every_snapshot() {
        for tool in TOOLS.iter().filter(|tool| tool.arguments.iter().any(|a| a.0 == "no_stop")) {
            let given = match tool.name {
                "why" => json!({"pid": 7, "no_stop": false, "tensor": "x"}),
                _ => json!({"pid": 7, "no_stop": false}),
            };
            let words = tool.words(given, true).unwrap();
            assert!(words.contains(&"--no-stop".to_owned()), "{words:?}");
            parsed(words);
        }
        // Commands without a snapshot need no such option.
        let snapshots = ["summary", "growth", "dump", "tensors", "why", "graph"];
        for tool in TOOLS {
            let has = tool.arguments.iter().any(|argument| argument.0 == "no_stop");
            assert_eq!(has, snapshots.contains(&tool.name), "{}", tool.name);
        }
    }

    #[test]
    fn wrong_missing_and_unknown_arguments_are_refused() {
        for (name, given) in [
            ("summary", json!({})),
            ("summary", json!({"pid": "7"})),
            ("summary", json!({"pid": 7, "force": true})),
            ("doctor", json!({"pid": 7, "tensor": "x"})),
            ("lines", json!([])),
            ("summary", json!({"pid": 1, "duration": "5s --json"})),
            ("growth", json!({"pid": 1, "duration": "9999h"})),
            ("growth", json!({"pid": 1, "duration": "241s"})),
        ] {
            assert!(
                McpTool::find(name).unwrap().words(given.clone(), false).is_err(),
                "{name} {given}"
            );
        }
    }
}
