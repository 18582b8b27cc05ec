//! `memspy dump`: one look at a process.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Result;

use crate::analysis::Look;
use crate::model::CudaIndex;
use crate::render;
use crate::sampler::{Recorder, Wanted, attach};

use super::args::Dump as Words;
use super::flame::into_io;
use super::{hints, output};

/// Runs it.
pub(super) fn run(words: &Words) -> Result<()> {
    let readers = attach(words.pid, &AtomicBool::new(false))
        .map_err(|error| hints::attach(error, words.pid))?;
    let mut look = Look::new();
    Recorder::new(readers, Wanted { rate: 1, duration: None }).look(output::host(), &mut look)?;
    let gpu = words.gpu.map(CudaIndex);
    output::write(Path::new("-"), false, |out| {
        match words.json {
            true => render::dump_json(out, &look, gpu),
            false => render::dump_text(out, &look, gpu, words.full_filenames),
        }
        .map_err(into_io)
    })
}
