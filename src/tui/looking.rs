//! Looks at holders, on a thread of their own, when the user asks for one.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use super::picture::{Holders, Seen};
use crate::model::holdings::snapshot;
use crate::model::{HolderSnapshot, Incomplete, Nanos, Stops};
use crate::sampler::{LookOptions, Readers, look_at_holders};

/// A look, and how often it stopped the process.
type Looked = Result<(HolderSnapshot, Stops), String>;

/// Looks at one process.
pub(super) struct Looking {
    pid: u32,
    options: LookOptions,
    thread: Option<Thread>,
    is_looking: bool,
    last: Option<(Looked, Instant)>,
}

struct Thread {
    requests: Sender<()>,
    looks: Receiver<Looked>,
    handle: JoinHandle<()>,
}

impl Looking {
    pub(super) fn at(pid: u32, options: LookOptions) -> Looking {
        Looking { pid, options, thread: None, is_looking: false, last: None }
    }

    /// Asks for a look, unless one is under way.
    pub(super) fn ask(&mut self) {
        if self.is_looking {
            return;
        }
        if self.thread.is_none() {
            match start(self.pid, self.options) {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => {
                    self.last = Some((Err(error.to_string()), Instant::now()));
                    return;
                }
            }
        }
        if let Some(thread) = &self.thread {
            self.is_looking = thread.requests.send(()).is_ok();
        }
    }

    /// Takes a look that has come; whether there is news.
    pub(super) fn take(&mut self) -> bool {
        let Some(thread) = self.thread.as_ref().filter(|_| self.is_looking) else { return false };
        let look = match thread.looks.try_recv() {
            Ok(look) => look,
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => {
                self.thread = None;
                Err("the look ended unexpectedly".to_owned())
            }
        };
        self.is_looking = false;
        self.last = Some((look, Instant::now()));
        true
    }

    /// What is known.
    pub(super) fn holders(&self) -> Holders {
        let seen = |(look, at): &(Looked, Instant)| match look {
            Ok((snapshot, stops)) => {
                Ok(Seen { snapshot: snapshot.clone(), age: at.elapsed(), stops: *stops })
            }
            Err(why) => Err(why.clone()),
        };
        Holders { looking: self.is_looking, last: self.last.as_ref().map(seen) }
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(Thread { requests, looks, handle }) = self.thread.take() {
            drop((requests, looks)); // Ends the thread's loop.
            // Its only failure is a panic, which has been printed by then.
            let _ = handle.join();
        }
    }
}

fn start(pid: u32, options: LookOptions) -> std::io::Result<Thread> {
    let (requests, asked) = channel::<()>();
    let (results, looks) = channel();
    let handle =
        std::thread::Builder::new().name("memspy-holders".to_owned()).spawn(move || {
            let mut readers: Option<Readers> = None;
            for () in asked {
                if results.send(look(pid, options, &mut readers)).is_err() {
                    return;
                }
            }
        })?;
    Ok(Thread { requests, looks, handle })
}

fn look(pid: u32, options: LookOptions, readers: &mut Option<Readers>) -> Looked {
    let readers = match readers {
        Some(readers) => readers,
        none => none.insert(Readers::attach(pid).map_err(|error| error.to_string())?),
    };
    let look = look_at_holders(readers, options).map_err(|error| error.to_string())?;
    if let Some(Incomplete { limit, .. }) = &look.map.incomplete {
        return Err(format!("{limit} was reached before the look was complete"));
    }
    Ok((snapshot(&look.map, Nanos(0)), look.map.stops))
}
