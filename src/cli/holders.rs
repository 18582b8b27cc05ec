//! `memspy tensors` and `memspy graph`: who holds the memory of a running job.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Result, anyhow};

use crate::model::HolderMap;
use crate::render::{self, RenderError, TensorsWanted};
use crate::sampler::{HolderError, Pausing, Readers, attach, look_at_holders};

use super::args::{Graph, Looking, Tensors};
use super::flame::into_io;
use super::{hints, output, say};

/// Runs `memspy tensors`.
pub(super) fn tensors(words: &Tensors) -> Result<()> {
    let wanted = TensorsWanted {
        gpu: words.gpu,
        all_devices: words.all_devices,
        most: if words.limit == 0 { usize::MAX } else { words.limit },
    };
    let mut readers = attached(&words.looking)?;
    let map = look(&mut readers, &words.looking)?;
    show(&words.looking, &map, &|out, map| render::tensors_text(out, map, wanted))
}

/// Runs `memspy graph`.
pub(super) fn graph(words: &Graph) -> Result<()> {
    let mut readers = attached(&words.looking)?;
    let map = look(&mut readers, &words.looking)?;
    show(&words.looking, &map, &|out, map| render::graph_text(out, map))
}

fn attached(words: &Looking) -> Result<Readers> {
    attach(words.pid, &AtomicBool::new(false)).map_err(|error| hints::attach(error, words.pid))
}

/// One look; how long it stopped the job goes to standard error when the output is for programs.
fn look(readers: &mut Readers, words: &Looking) -> Result<HolderMap> {
    let pausing = if words.no_pause { Pausing::Never } else { Pausing::Stop };
    let look = look_at_holders(readers, pausing).map_err(|error| refused(error, words.pid))?;
    if words.json {
        say(&render::pause(&look.map));
    }
    Ok(look.map)
}

fn refused(error: HolderError, pid: u32) -> anyhow::Error {
    let advice = match &error {
        HolderError::Pause(pause) => hints::pause(pause, pid),
        error if error.is_transient() => {
            "it changed during every attempt: try again, and leave --no-pause away".to_owned()
        }
        HolderError::NoTorch => "attach again once it has imported torch".to_owned(),
        _ => "'memspy doctor' says more about this process".to_owned(),
    };
    anyhow!("cannot look at the tensors of process {pid}: {error}; {advice}")
}

type Text<'a> = &'a dyn Fn(&mut dyn Write, &HolderMap) -> Result<(), RenderError>;

fn show(words: &Looking, map: &HolderMap, text: Text<'_>) -> Result<()> {
    output::write(Path::new("-"), false, |out| -> io::Result<()> {
        match words.json {
            true => render::holders_json(out, map),
            false => text(out, map),
        }
        .map_err(into_io)
    })
}
