//! Ctrl-C and its kin: work ends in order, a second time at once; what is meant for a program that memspy started reaches it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag::{register, register_conditional_default};

use crate::sampler::ignored_signals;

/// What signals ask of memspy.
pub(super) struct StopSignals {
    /// SIGINT, SIGTERM, SIGHUP: the recording is to end. A second one ends memspy at once.
    pub(super) stop: Arc<AtomicBool>,
}

/// Signals to pass on to a program that memspy is about to start.
pub(super) type PassedOn = signal_hook::iterator::Signals;

impl StopSignals {
    /// Watches for them from now on.
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

    /// The same for a memspy that starts a program. Ctrl-C reaches the program by itself, as it does memspy. All others are sent to
    /// memspy in its place: it passes them on and lives as long as the program does.
    pub(super) fn watch_for_program() -> Result<(StopSignals, PassedOn)> {
        let signals = StopSignals { stop: Arc::default() };
        let watch = || -> io::Result<PassedOn> {
            for signal in not_ignored(&[SIGINT]) {
                register_conditional_default(signal, Arc::clone(&signals.stop))?;
                register(signal, Arc::clone(&signals.stop))?;
            }
            for signal in not_ignored(&[SIGTERM, SIGHUP]) {
                register(signal, Arc::clone(&signals.stop))?;
            }
            PassedOn::new(not_ignored(&[SIGTERM, SIGHUP, SIGUSR1, SIGUSR2]))
        };
        let passed_on = watch().context("cannot watch for signals")?;
        Ok((signals, passed_on))
    }
}

/// Those of `signals` that memspy was not started to ignore (`nohup`): then neither it nor what it starts is to notice them.
fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let ignored = ignored_signals();
    signals.iter().copied().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect()
}
