//! A process of memspy's own that places its probes and takes them away, so that a memspy that is killed leaves none.
//!
//! A process that is killed just while the kernel places or removes a breakpoint for it cannot change the target's memory any
//! more: the breakpoint stays there ("failed to unregister, leaking uprobe" in the kernel's log). So another process asks the
//! kernel: it hands the descriptors to memspy and has copies of them, which it closes last, when memspy says so or has ended.
//! Without it (it cannot be started, it was killed) memspy does the same itself; the descriptors that it has stay good.

mod holding;
mod message;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

pub use holding::keep_probes;
use message::{MessageReader, ProbeRequest, send};

use super::placement::{Placement, ProbeLink};
use crate::target::proc_files;

/// The word that has memspy be a keeper of probes.
pub const KEEP_PROBES: &str = "keep-probes";
/// The kernel needs milliseconds for what is asked; a keeper that does not answer for so long is ended.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Whether this program is one that answers to [`KEEP_PROBES`].
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
/// The one keeper of this process, as long as something is kept.
static SHARED: Mutex<Weak<ProbeKeeper>> = Mutex::new(Weak::new());

/// Lets probes be kept from now on: said by the program that calls [`keep_probes`] when its first word is [`KEEP_PROBES`].
pub fn let_probes_be_kept() {
    IS_ALLOWED.store(true, Ordering::Relaxed);
}

/// Whether a keeper of probes can be started, and answers.
pub fn try_keeper() -> io::Result<()> {
    match IS_ALLOWED.load(Ordering::Relaxed) {
        true => ProbeKeeper::start()?.check(),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// A keeper, which ends when this is dropped, or with memspy.
pub(super) struct ProbeKeeper {
    requests: OwnedFd,
    child: Mutex<Child>,
    next: AtomicU32,
}

impl ProbeKeeper {
    /// The one of this process, started if there is none; `None` where that cannot be.
    pub(super) fn shared() -> Option<Arc<ProbeKeeper>> {
        if !IS_ALLOWED.load(Ordering::Relaxed) {
            return None;
        }
        let mut shared = SHARED.lock();
        if let Some(keeper) = shared.upgrade() {
            return Some(keeper);
        }
        let keeper = Arc::new(ProbeKeeper::start().ok()?);
        *shared = Arc::downgrade(&keeper);
        Some(keeper)
    }

    fn start() -> io::Result<ProbeKeeper> {
        let (requests, theirs) = pair()?;
        let name = std::env::args_os().next().unwrap_or_else(|| "memspy".into());
        // In a process group of its own, so that Ctrl-C does not end it before memspy. The pid is for whoever looks at 'ps'.
        let child = Command::new(proc_files::own_program())
            .arg0(name)
            .arg(KEEP_PROBES)
            .arg(std::process::id().to_string())
            .current_dir("/")
            .process_group(0)
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(ProbeKeeper { requests, child: Mutex::new(child), next: AtomicU32::new(0) })
    }

    /// Has it place probes; `None` if it cannot, and has not.
    pub(super) fn place(self: &Arc<Self>, placement: &Placement<'_>) -> Option<ProbeLink> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (bytes, descriptors) = ProbeRequest::place(number, placement)?;
        let own = self.ask(&bytes, &descriptors).ok()??;
        Some(ProbeLink::kept(own, KeptProbes { keeper: Arc::clone(self), number }))
    }

    fn check(&self) -> io::Result<()> {
        self.ask(&ProbeRequest::check(), &[])?
            .map(drop)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends a request with a socket of its own for the answer, so that answers need not be told apart. A keeper that does
    /// not give it in time is ended, so that nothing that it still does lasts. `None`: the socket has ended without an answer.
    fn ask(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Option<Vec<OwnedFd>>> {
        let (ours, theirs) = pair()?;
        let mut all = vec![theirs.as_fd()];
        all.extend(descriptors);
        let sent = send(&self.requests, bytes, &all);
        // Held here, it would be waited for when the keeper has gone.
        drop(theirs);
        let answer = sent.and_then(|()| MessageReader::new(ours.as_fd()).descriptors());
        if answer.is_err() {
            // It may have been killed already.
            let _ = self.child.lock().kill();
        }
        answer
    }
}

/// Two ends of which neither waits for the other for long.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (one, other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&one, timeout, Some(ANSWER_TIMEOUT))?;
    }
    Ok((one, other))
}

impl Drop for ProbeKeeper {
    fn drop(&mut self) {
        let _ = shutdown(&self.requests, Shutdown::Write);
        let mut child = self.child.lock();
        // It says nothing; its end is the end of the socket.
        if MessageReader::new(self.requests.as_fd()).next().is_err() {
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}

/// Probes that a keeper has descriptors of, too. Dropped, after memspy's own descriptors, they end; this returns when they have.
pub(super) struct KeptProbes {
    keeper: Arc<ProbeKeeper>,
    number: u32,
}

impl Drop for KeptProbes {
    fn drop(&mut self) {
        // Where it was killed, its descriptors have gone with it.
        let _ = self.keeper.ask(&ProbeRequest::end(self.number), &[]);
    }
}
