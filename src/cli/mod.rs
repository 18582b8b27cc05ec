//! The command line: words typed become rooms called, errors become one clear line and an exit code.
//!
//! Turns arguments into calls and results into text on the terminal.
//! May import every room but the readers; alone knows clap, anyhow, printing and exiting.
//! Never reads a target or a trace by itself.
//! Start reading at [`args`] and [`run`].

pub mod args;
mod checkpoint;
mod devices;
mod doctor;
mod dump;
mod family;
mod flame;
pub mod flight;
mod hints;
mod holders;
mod iterations;
mod launch;
mod lines;
mod output;
mod privileges;
mod ranks;
mod record;
mod replay;
mod signals;
mod sinks;
mod top;

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{CommandFactory, Parser};

use crate::analysis::{Profile, ThreadChoice};
use crate::render::visible;

use args::{Command, Words};

/// Runs the program with the arguments it was given.
///
/// Exit code 0: done. 1: not done, and one line on standard error says why. 2: the words make no sense.
/// `record -- PROGRAM` passes on the program's own code.
pub fn run() -> ExitCode {
    let words = match Words::try_parse() {
        Ok(words) => words,
        Err(error) if error.use_stderr() => error.exit(),
        // The help or the version, which were asked for: not to get them is an error as any other.
        Err(asked) => {
            return match asked.print() {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    say(&format!("error: cannot write to standard output: {error}"));
                    ExitCode::FAILURE
                }
                _ => ExitCode::SUCCESS,
            };
        }
    };
    if let Some(mode) = words.mode {
        output::set_mode(mode);
    }
    privileges::give_up(&words.command);
    // A file that may not grow further is then an error of the write, which is told, and not the end.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let result = match &words.command {
        Command::Record(words) => record::run(words),
        Command::Flame(words) => flame::run(words).map(|()| ExitCode::SUCCESS),
        Command::Lines(words) => lines::run(words).map(|()| ExitCode::SUCCESS),
        Command::Iterations(words) => iterations::run(words).map(|()| ExitCode::SUCCESS),
        Command::Verdict(words) => flight::verdict(words).map(|()| ExitCode::SUCCESS),
        Command::Join(words) => flight::join(words).map(|()| ExitCode::SUCCESS),
        Command::Dump(words) => dump::run(words).map(|()| ExitCode::SUCCESS),
        Command::Top(words) => top::run(words).map(|()| ExitCode::SUCCESS),
        Command::Tensors(words) => holders::tensors(words).map(|()| ExitCode::SUCCESS),
        Command::Referrers(words) => holders::referrers(words).map(|()| ExitCode::SUCCESS),
        Command::Graph(words) => holders::graph(words).map(|()| ExitCode::SUCCESS),
        Command::Devices(words) => devices::run(words).map(|()| ExitCode::SUCCESS),
        Command::Pause(words) => checkpoint::pause(words).map(|()| ExitCode::SUCCESS),
        Command::Resume(words) => checkpoint::resume(words).map(|()| ExitCode::SUCCESS),
        Command::Doctor(words) => doctor::run(words).map(|()| ExitCode::SUCCESS),
        Command::Completions(words) => completions(words).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            say(&format!("error: {}", in_one_line(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Prints the completions of a shell. They are made in memory: the generator ends memspy where it cannot write.
fn completions(words: &args::Completions) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(words.shell, &mut Words::command(), "memspy", &mut text);
    output::write(Path::new("-"), false, |out| out.write_all(&text))
}

/// A profile that charges memory to the threads asked for.
fn charging(stacks: &args::Stacks) -> Profile {
    Profile::charging(choice(stacks))
}

/// The threads asked for.
fn choice(stacks: &args::Stacks) -> ThreadChoice {
    ThreadChoice { gil_only: stacks.gil, idle_too: stacks.idle }
}

/// An error with its causes; those that it names itself are not said twice.
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

thread_local! {
    /// What this thread of memspy speaks of.
    static SUBJECT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Lets all that this thread says begin with what it is about.
fn speak_as(subject: &str) {
    SUBJECT.with(|of| *of.borrow_mut() = format!("{subject}: "));
}

/// Prints one line to standard error, whatever stands in it. A closed standard error is nothing to fail for.
fn say(line: &str) {
    use io::Write;
    let subject = SUBJECT.with(|of| of.borrow().clone());
    let _ = writeln!(io::stderr(), "memspy: {}{}", visible(&subject), visible(line));
}
