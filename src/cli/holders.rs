//! `memspy tensors` and `memspy graph`: who holds the memory of a running job.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::analysis;
use crate::model::{Called, HolderMap, StackTable, called};
use crate::render::{self, RenderError, TensorsWanted};
use crate::sampler::{
    HolderError, HolderLook, LookOptions, Readers, attach, look_at_holders, look_at_referrers,
    watch_holders,
};

use super::args::{Graph, Like, Looking, Referrers, Tensors};
use super::flame::into_io;
use super::signals::Signals;
use super::{hints, output, say};

/// Runs `memspy tensors`.
pub(super) fn tensors(words: &Tensors) -> Result<()> {
    let wanted = TensorsWanted {
        gpu: words.gpu,
        all_devices: words.all_devices,
        most: if words.limit == 0 { usize::MAX } else { words.limit },
    };
    let mut readers = attached(&words.looking)?;
    if let Some(every) = words.every {
        return watch(&mut readers, words, Duration::from_secs_f64(every), wanted);
    }
    let map = look(&mut readers, &words.looking)?;
    show(&words.looking, &map, &|out, map| render::tensors_text(out, map, wanted))
}

/// Looks again and again: first all, then what changed; as JSON each look whole, in a line of its own.
fn watch(
    readers: &mut Readers,
    words: &Tensors,
    every: Duration,
    wanted: TensorsWanted,
) -> Result<()> {
    let stop = Signals::watch()?.stop;
    let pid = words.looking.pid;
    let mut before: Option<(HolderMap, TensorsWanted)> = None;
    let mut refusal = None;
    let mut take = |look: Result<HolderLook, HolderError>, stacks: &StackTable, samples: &[_]| {
        let map = match look {
            Ok(look) => look.map,
            // One that came at a bad moment is made up for by the next.
            Err(error) if error.is_traced() || error.is_transient() && before.is_some() => {
                say(&format!("a look was left out, the next one is tried again: {error}"));
                return Ok(());
            }
            Err(error) => {
                refusal = Some(error);
                stop.store(true, Ordering::Relaxed);
                return Ok(());
            }
        };
        let mut out = io::stdout().lock();
        let timestamp = chrono::Local::now().format("%Y/%m/%d %H:%M:%S%.3f").to_string();
        let place = render::place(stacks, samples);
        if !words.looking.json {
            writeln!(out, "{timestamp}  at {}", place.as_deref().unwrap_or("an unknown line"))?;
        }
        // What the first look lists, the later ones do: nothing is dropped midway.
        let wanted = before.as_ref().map_or_else(|| wanted.settled(&map), |(_, wanted)| *wanted);
        match (&before, words.looking.json) {
            (_, true) => render::holders_json_line(&mut out, &map, &timestamp, place.as_deref()),
            (None, false) => render::tensors_text(&mut out, &map, wanted),
            (Some((before, _)), false) => render::changes_text(&mut out, before, &map, wanted),
        }
        .map_err(into_io)?;
        out.flush()?;
        before = Some((map, wanted));
        Ok(())
    };
    let watched = watch_holders(readers, words.looking.options(), every, &stop, &mut take);
    match (watched, refusal) {
        // The job's end is what a watch ends with.
        (Ok(()), Some(error)) if before.is_none() || readers.process.is_alive() => {
            Err(refused(error, pid))
        }
        (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Runs `memspy graph`.
pub(super) fn graph(words: &Graph) -> Result<()> {
    if words.loss.is_some() && words.like != Some(Like::Trumpy) {
        bail!("--loss picks a loss for --like trumpy: modelsize knows none");
    }
    let mut readers = attached(&words.looking)?;
    let map = look(&mut readers, &words.looking)?;
    let json = words.looking.json;
    let write: Text<'_> = match words.like {
        None => return show(&words.looking, &map, &|out, map| render::graph_text(out, map)),
        Some(Like::Modelsize) if json => &|out, map| render::like_modelsize_json(out, map),
        Some(Like::Modelsize) => &|out, map| render::like_modelsize_text(out, map),
        Some(Like::Trumpy) => {
            let losses = match &words.loss {
                Some(loss) => losses_called(&map, loss, words.looking.pid)?,
                None => analysis::losses(&map),
            };
            return output::write(Path::new("-"), false, |out| {
                match json {
                    true => render::like_trumpy_json(out, &map, &losses),
                    false => render::like_trumpy_text(out, &map, &losses),
                }
                .map_err(into_io)
            });
        }
    };
    output::write(Path::new("-"), false, |out| write(out, &map).map_err(into_io))
}

/// The tensors of that name, each of which has an autograd graph.
fn losses_called(map: &HolderMap, word: &str, pid: u32) -> Result<Vec<usize>> {
    let mut rows = meant(map, word, pid)?;
    rows.retain(|&row| map.tensors[row].tensor.grad_fn.is_some());
    if rows.is_empty() {
        bail!(
            "'{word}' of process {pid} has no autograd graph: it is no result of an operation, or detached"
        );
    }
    Ok(rows)
}

/// Runs `memspy referrers`.
pub(super) fn referrers(words: &Referrers) -> Result<()> {
    let pid = words.looking.pid;
    let mut readers = attached(&words.looking)?;
    let map = look_at_referrers(&mut readers, words.looking.options(), &words.tensor)
        .map_err(|error| refused(error, pid))?
        .map;
    let asked = meant(&map, &words.tensor, pid)?;
    if words.looking.json {
        tell(&map);
        return show(&words.looking, &map, &|_, _| Ok(()));
    }
    let mut text = Vec::new();
    render::referrers_text(&mut text, &map, &asked)?;
    output::write(Path::new("-"), false, |out| out.write_all(&text))
}

/// The tensors that a word means, of which there is one at least.
fn meant(map: &HolderMap, word: &str, pid: u32) -> Result<Vec<usize>> {
    match called(&map.tensors, word) {
        Called::Rows(rows) if rows.is_empty() => bail!(
            "process {pid} has no tensor called '{word}': 'memspy tensors -p {pid} --limit 0 --all-devices' lists their names"
        ),
        Called::Rows(rows) => Ok(rows),
        Called::Ambiguous(names) => {
            bail!(
                "'{word}' may be any of these in process {pid}, give one whole: '{}'",
                names.join("', '")
            )
        }
    }
}

impl Looking {
    fn options(&self) -> LookOptions {
        self.limits.options(self.no_pause)
    }
}

fn attached(words: &Looking) -> Result<Readers> {
    attach(words.pid, &AtomicBool::new(false)).map_err(|error| hints::attach(error, words.pid))
}

/// One look; how long it stopped the job goes to standard error when the output is for programs.
fn look(readers: &mut Readers, words: &Looking) -> Result<HolderMap> {
    let look =
        look_at_holders(readers, words.options()).map_err(|error| refused(error, words.pid))?;
    if words.json {
        tell(&look.map);
    }
    Ok(look.map)
}

/// What a program that reads the JSON need not look for.
fn tell(map: &HolderMap) {
    say(&render::pause(map));
    if let Some(incomplete) = render::incomplete(map) {
        say(&incomplete);
    }
}

fn refused(error: HolderError, pid: u32) -> anyhow::Error {
    let advice = match &error {
        HolderError::Pause(pause) => hints::pause(pause, pid),
        error if error.is_transient() => {
            "it changed during every attempt: try again, and leave --no-pause away".to_owned()
        }
        HolderError::Cut { limit, .. } => hints::limit(*limit),
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
