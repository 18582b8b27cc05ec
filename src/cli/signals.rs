//! Signals: the first ends work in order, the second at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag::{register, register_conditional_default};

use crate::sampler::ignored_signals;

pub(super) struct StopSignals {
    /// SIGINT, SIGTERM, SIGHUP; a second one ends memspy at once.
    pub(super) stop: Arc<AtomicBool>,
}

/// Signals to pass on to a program that memspy starts.
pub(super) type ProgramSignals = signal_hook::iterator::Signals;

impl StopSignals {
    pub(super) fn watch() -> Result<StopSignals> {
        let signals = StopSignals { stop: Arc::default() };
        let watch = || -> io::Result<()> {
            for signal in not_ignored(&[SIGINT, SIGTERM, SIGHUP]) {
                register_conditional_default(signal, Arc::clone(&signals.stop))?;
                register(signal, Arc::clone(&signals.stop))?;
            }
            Ok(())
        };
        watch().context("cannot watch for Ctrl-C")?;
        Ok(signals)
    }

    /// For a memspy that starts a program: Ctrl-C reaches both, other signals are passed on,
    /// memspy lives as long as the program.
    pub(super) fn watch_for_program() -> Result<(StopSignals, ProgramSignals)> {
        let signals = StopSignals { stop: Arc::default() };
        let watch = || -> io::Result<ProgramSignals> {
            for signal in not_ignored(&[SIGINT]) {
                register_conditional_default(signal, Arc::clone(&signals.stop))?;
                register(signal, Arc::clone(&signals.stop))?;
            }
            for signal in not_ignored(&[SIGTERM, SIGHUP]) {
                register(signal, Arc::clone(&signals.stop))?;
            }
            ProgramSignals::new(not_ignored(&[SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]))
        };
        let passed_on = watch().context("cannot watch for signals")?;
        Ok((signals, passed_on))
    }
}

/// Ignored signals (`nohup`) reach neither memspy nor its program.
fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let ignored = ignored_signals();
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}
