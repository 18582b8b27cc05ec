//! The command line.
//!
//! Turns arguments into calls, results into text, errors into one line and an exit code. May import
//! every room but the readers, and of `target` only facts and errors; alone knows clap, anyhow,
//! printing and exiting. Never reads a target or a trace. Start reading at [`args`] and [`run`].

pub mod args;
mod browser;
mod checkpoint;
mod device_choice;
mod devices;
mod diff;
mod doctor;
mod dry_run;
mod dump;
mod export;
mod exporter;
mod flame;
mod flight;
mod following;
mod hints;
mod history;
mod iterations;
mod job_choice;
mod launch;
mod lifetime;
mod lines;
mod live_screen;
mod man;
mod mcp;
mod members;
mod messages;
mod mode;
mod modules;
mod observe;
mod output;
mod owners;
mod privileges;
mod ranks;
mod record;
mod replay;
mod report;
mod signals;
mod simulated_device;
mod summary;
mod terminal_host;
mod top;
mod usage_error;
mod verbosity;
mod what_if;
mod why;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::CommandFactory;

use crate::analysis::{Profile, ThreadChoice};
use crate::sampler::{self, TargetReaders};

use args::{CliArgs, Command};
use messages::{eprint_detail, eprint_error, eprint_line, eprint_progress, set_line_prefix};

/// Runs the program.
///
/// Exit code 0: done; 1: not done, with one line why; 2: invalid arguments. `record -- PROGRAM`
/// passes on the program's code.
pub fn run() -> ExitCode {
    // Only memspy itself starts this.
    if std::env::args_os().nth(1).is_some_and(|word| sampler::is_probe_keeper(&word)) {
        return keep_probes();
    }
    sampler::allow_keeper();
    let Some(words) = job_choice::completed(std::env::args_os().collect()) else {
        return ExitCode::SUCCESS;
    };
    let args = match CliArgs::from_words(words) {
        Ok(args) => args,
        Err(answer) => return print_answer(&answer),
    };
    verbosity::set(&args.console);
    output::set_colors(args.console.color);
    eprint_detail(|| format!("memspy {}", env!("CARGO_PKG_VERSION")));
    if let Some(mode) = args.file_mode {
        output::set_mode(mode);
    }
    privileges::give_up(&args.command);
    // Afterwards: a change of rights may cancel it.
    if !lifetime::end_with_starter() {
        return ExitCode::FAILURE;
    }
    // With a handler, SIGXFSZ (file too large) is a write error, not the end.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    match run_command(&args.command) {
        Ok(code) => code,
        Err(error) => {
            eprint_error(&format!("error: {}", in_one_line(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Says what is wrong with the words, or gives the help or version asked for.
fn print_answer(answer: &clap::Error) -> ExitCode {
    if answer.use_stderr() {
        let words: Vec<_> = std::env::args_os().collect();
        match usage_error::line(answer, &CliArgs::command(), &words) {
            Some(line) => eprint_error(&line),
            None => answer.exit(),
        }
        return ExitCode::from(2);
    }
    // Failing to print it is an error.
    match answer.print() {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprint_error(&format!("error: cannot write to standard output: {error}"));
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn run_command(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Summary(args) => summary::summary(args).map(|()| ExitCode::SUCCESS),
        Command::Growth(args) => summary::growth(args).map(|()| ExitCode::SUCCESS),
        Command::Record(args) => record::run(args),
        Command::Flame(args) => flame::run(args).map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => diff::run(args).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => export::run(args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(args).map(|()| ExitCode::SUCCESS),
        Command::History(args) => history::run(args).map(|()| ExitCode::SUCCESS),
        Command::Lines(args) => lines::run(args).map(|()| ExitCode::SUCCESS),
        Command::Iterations(args) => iterations::run(args).map(|()| ExitCode::SUCCESS),
        Command::DryRun(args) => dry_run::run(args),
        Command::WhatIf(args) => what_if::run(args).map(|()| ExitCode::SUCCESS),
        Command::OomReport(args) => flight::oom_report(args).map(|()| ExitCode::SUCCESS),
        Command::Join(args) => flight::join(args).map(|()| ExitCode::SUCCESS),
        Command::Dump(args) => dump::run(args).map(|()| ExitCode::SUCCESS),
        Command::Exporter(args) => exporter::run(args).map(|()| ExitCode::SUCCESS),
        Command::Mcp(args) => mcp::run(args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => man::run(args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(args).map(|()| ExitCode::SUCCESS),
        Command::Tensors(args) => owners::tensors(args).map(|()| ExitCode::SUCCESS),
        Command::Why(args) => why::why(args).map(|()| ExitCode::SUCCESS),
        Command::Graph(args) => owners::graph(args).map(|()| ExitCode::SUCCESS),
        Command::Devices(args) => devices::run(args).map(|()| ExitCode::SUCCESS),
        Command::Pause(args) => checkpoint::pause(args).map(|()| ExitCode::SUCCESS),
        Command::Resume(args) => checkpoint::resume(args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::run(args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => completions(args).map(|()| ExitCode::SUCCESS),
    }
}

/// Keeps another memspy's probes, with only the rights for that.
fn keep_probes() -> ExitCode {
    privileges::give_up_for_keeper();
    match sampler::keep_probes() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint_error(&format!("error: memspy itself starts this, for its probes: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// In memory first: the generator exits if it cannot write.
fn completions(args: &args::CompletionsArgs) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut CliArgs::command(), "memspy", &mut text);
    output::write(Path::new("-"), false, |out| out.write_all(&text))
}

/// What memspy attached to, and how fast.
fn attached_to(readers: &TargetReaders) -> String {
    let python = readers.python_version();
    let python = python.map_or("no Python".to_owned(), |version| format!("Python {version}"));
    let torch = readers.torch_version().map_or(String::new(), |v| format!(", PyTorch {v}"));
    format!(
        "attached to process {} ({python}{torch}) in {:.0} ms",
        readers.pid(),
        readers.attach_time().as_secs_f64() * 1e3,
    )
}

fn filtered_profile(stacks: &args::StackArgs) -> Profile {
    Profile::with_filter(choice(stacks))
}

fn choice(stacks: &args::StackArgs) -> ThreadChoice {
    ThreadChoice { gil_only: stacks.gil, idle_too: stacks.idle }
}

/// Each cause appears once.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
