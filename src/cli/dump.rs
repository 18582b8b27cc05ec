//! `memspy dump`: one look at a process.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Result;

use crate::analysis::Look;
use crate::model::CudaIndex;
use crate::render;
use crate::sampler::{Pausing, Recorder, Wanted, attach, look_at_holders};

use super::args::Dump as Words;
use super::flame::into_io;
use super::{hints, output};

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let mut readers = attach(words.pid, &AtomicBool::new(false))
        .map_err(|error| hints::attach(error, words.pid))?;
    let pausing = if words.no_pause { Pausing::Never } else { Pausing::Stop };
    let holders = match look_at_holders(&mut readers, pausing) {
        Ok(look) => Ok(look.map),
        Err(error) => Err(error.to_string()),
    };
    let mut look = Look::new();
    Recorder::new(readers, Wanted { rate: 1, duration: None, holders: None, forget_after: None })
        .look(output::host(), &mut look)?;
    let gpu = words.gpu.map(CudaIndex);
    output::write(Path::new("-"), false, |out| {
        match words.json {
            true => render::dump_json(out, &look, &holders, gpu),
            false => render::dump_text(out, &look, &holders, gpu, words.full_filenames),
        }
        .map_err(into_io)
    })
}
