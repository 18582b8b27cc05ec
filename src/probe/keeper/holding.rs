//! The keeper's side.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};

use nix::sys::signal::SigSet;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::message::{MessageReader, ProbeRequest, RequestedAction, answer};
use crate::probe::perf_probes::raise_file_limit;
use crate::probe::placement::{Placement, ProbeAction};
use crate::probe::syscall;

/// The kernel waits some 30 ms at each probe's end.
const MAX_THREADS: usize = 64;

/// Descriptors of one request, in closing order within each group.
type PlacedProbes = Vec<Vec<OwnedFd>>;

/// Places and ends probes as the process at the other end of standard input, a socket, requests;
/// fails if that is no socket.
pub fn keep_probes() -> io::Result<()> {
    // Only memspy may end it.
    let _ = SigSet::all().thread_block();
    let _ = rustix::thread::set_name(c"memspy-probes");
    syscall::close_inherited();
    raise_file_limit();
    let input = io::stdin();
    let mut requests = MessageReader::new(input.as_fd());
    let mut held: FxHashMap<u32, PlacedProbes> = FxHashMap::default();
    let mut ending: Vec<JoinHandle<()>> = Vec::new();
    let ended = loop {
        let (request, mut descriptors) = match requests.next() {
            Ok(Some((bytes, descriptors))) => (ProbeRequest::read(bytes), descriptors.into_iter()),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        let Some(to) = descriptors.next() else { continue };
        match request {
            Some(ProbeRequest::Place { number, pid, points, action }) => {
                let Some(file) = descriptors.next() else { continue };
                let program = descriptors.next();
                let Some(action) = probe_action(&action, program.as_ref()) else { continue };
                let placement = Placement { file: file.as_fd(), points: &points, pid, action };
                // No answer is a refusal; memspy then asks the kernel for the reason.
                let Ok(placed) = placement.place() else { continue };
                let all: Vec<_> = placed.iter().flatten().map(AsFd::as_fd).collect();
                // Without the answer memspy places its own probes.
                match answer(&to, &all) {
                    Ok(()) => _ = held.insert(number, placed),
                    Err(_) => end_all(placed),
                }
            }
            Some(ProbeRequest::End { number }) => {
                let placed = held.remove(&number).unwrap_or_default();
                let end = move || {
                    end_all(placed);
                    drop(to);
                };
                ending.retain(|thread| !thread.is_finished());
                // If no thread starts, dropping the closure ends the probes.
                ending.extend(thread::Builder::new().spawn(end));
            }
            Some(ProbeRequest::Check) => {
                let _ = answer(&to, &[]);
            }
            None => {}
        }
    };
    end_all(held.into_values().flatten().collect());
    for thread in ending {
        // The process's end would kill the threads and leave their probes.
        let _ = thread.join();
    }
    ended
}

/// `None`: the request needs a BPF program, and none came with it.
fn probe_action<'a>(
    requested: &RequestedAction,
    program: Option<&'a OwnedFd>,
) -> Option<ProbeAction<'a>> {
    match (requested, program) {
        (RequestedAction::Run { way, at_return }, Some(program)) => {
            Some(ProbeAction::Run { way: *way, program: program.as_fd(), at_return: *at_return })
        }
        (RequestedAction::Sample(words), _) => Some(ProbeAction::Sample(*words)),
        (RequestedAction::Run { .. }, None) => None,
    }
}

fn end_all(placed: PlacedProbes) {
    let threads = placed.len().min(MAX_THREADS);
    if threads < 2 {
        return;
    }
    let left = Mutex::new(placed);
    let end = || {
        loop {
            let Some(next) = left.lock().pop() else { break };
            drop(next);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let _ = thread::Builder::new().spawn_scoped(scope, end);
        }
        end();
    });
}
