//! A second memspy process that keeps probes: killing memspy leaves none behind.
//!
//! A process killed while the kernel changes its breakpoint leaves it in the target ("failed to
//! unregister, leaking uprobe" in the kernel's log). The keeper closes its copies of the
//! descriptors last; if it is killed, memspy's stay valid. Without a keeper, memspy places probes
//! itself.

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

use super::placement::{Attachment, Placement};
use crate::target::proc_files;

/// The argument that makes memspy a keeper.
pub const KEEP_PROBES: &str = "keep-probes";
/// The kernel needs milliseconds; a slower keeper is killed.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
static SHARED: Mutex<Weak<ProbeKeeper>> = Mutex::new(Weak::new());

/// Allows keepers in programs that call [`keep_probes`] if their first argument is [`KEEP_PROBES`].
pub fn allow_keeper() {
    IS_ALLOWED.store(true, Ordering::Relaxed);
}

/// Whether a keeper starts and answers.
pub fn try_keeper() -> io::Result<()> {
    match IS_ALLOWED.load(Ordering::Relaxed) {
        true => ProbeKeeper::start()?.check(),
        false => Err(io::ErrorKind::Unsupported.into()),
    }
}

pub(super) struct ProbeKeeper {
    requests: OwnedFd,
    child: Mutex<Child>,
    next: AtomicU32,
}

impl ProbeKeeper {
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
        // In its own process group, so that Ctrl-C does not end it before memspy. 'ps' shows the
        // pid.
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

    /// `None` if the keeper placed no probes.
    pub(super) fn place(self: &Arc<Self>, placement: &Placement<'_>) -> Option<Attachment> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (bytes, descriptors) = ProbeRequest::place(number, placement)?;
        let own = self.ask(&bytes, &descriptors).ok()??;
        Some(Attachment::kept(own, KeptProbes { keeper: Arc::clone(self), number }))
    }

    fn check(&self) -> io::Result<()> {
        self.ask(&ProbeRequest::check(), &[])?
            .map(drop)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// A socket per request keeps answers apart. A late keeper is killed: nothing it does then
    /// lasts.
    fn ask(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Option<Vec<OwnedFd>>> {
        let (ours, theirs) = pair()?;
        let mut all = vec![theirs.as_fd()];
        all.extend(descriptors);
        let sent = send(&self.requests, bytes, &all);
        // Kept open, it would wait for a dead keeper.
        drop(theirs);
        let answer = sent.and_then(|()| MessageReader::new(ours.as_fd()).descriptors());
        if answer.is_err() {
            let _ = self.child.lock().kill();
        }
        answer
    }
}

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
        if MessageReader::new(self.requests.as_fd()).next().is_err() {
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}

/// Drop it after memspy's own descriptors: that ends the probes and waits until they have ended.
pub(super) struct KeptProbes {
    keeper: Arc<ProbeKeeper>,
    number: u32,
}

impl Drop for KeptProbes {
    fn drop(&mut self) {
        // If the keeper was killed, its descriptors were closed.
        let _ = self.keeper.ask(&ProbeRequest::end(self.number), &[]);
    }
}
