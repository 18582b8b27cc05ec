//! Ctrl-C and its kin: work ends in order, a second time at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};

/// What signals ask of memspy; the second one ends it at once.
pub(super) struct Signals {
    /// SIGINT, SIGTERM, SIGHUP: the recording is to end.
    pub(super) stop: Arc<AtomicBool>,
    /// SIGTERM, SIGHUP, which a program that memspy started has not received as Ctrl-C is: memspy is
    /// to end without waiting for it.
    pub(super) leave: Arc<AtomicBool>,
}

impl Signals {
    /// Watches for them from now on.
    pub(super) fn watch() -> Result<Signals> {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        use signal_hook::flag::{register, register_conditional_default};
        let signals = Signals { stop: Arc::default(), leave: Arc::default() };
        let watch = || -> io::Result<()> {
            for signal in [SIGINT, SIGTERM, SIGHUP] {
                register_conditional_default(signal, Arc::clone(&signals.stop))?;
                register(signal, Arc::clone(&signals.stop))?;
            }
            for signal in [SIGTERM, SIGHUP] {
                register(signal, Arc::clone(&signals.leave))?;
            }
            Ok(())
        };
        watch().context("cannot watch for Ctrl-C")?;
        Ok(signals)
    }
}
