//! Records for a view on its own thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use parking_lot::{Mutex, MutexGuard};

use crate::analysis::{LiveProfile, SharedProfile, ThreadChoice};
use crate::model::{EndReason, RecordingEnd, SinkResult};
use crate::render;
use crate::sampler::{AttachedRecorder, BackgroundSink, RecordingProgress, Worker};

use super::app::BoxError;

/// Attaches; called again when a recording restarts.
pub type AttachFn = Box<dyn FnMut() -> Result<AttachedRecorder, BoxError> + Send>;

/// A live profile, filled by a thread.
pub struct LiveRecording {
    live: SharedProfile,
    ended: Arc<Mutex<Option<String>>>,
    quit: Arc<AtomicBool>,
    /// Ends or restarts the recorder.
    stop: Arc<AtomicBool>,
    thread: Worker,
}

impl LiveRecording {
    /// Returns once attached, or why that failed.
    pub fn start(
        attach: AttachFn,
        choice: ThreadChoice,
        host: String,
    ) -> Result<LiveRecording, BoxError> {
        let live = SharedProfile::with_filter(choice);
        let (ended, quit, stop) = (Arc::default(), Arc::default(), Arc::default());
        let mut keeper = RecordingThread {
            live: live.clone(),
            quit: Arc::clone(&quit),
            stop: Arc::clone(&stop),
            host,
            attach,
        };
        let (attached, is_attached) = channel();
        let how: Arc<Mutex<Option<String>>> = Arc::clone(&ended);
        // Attaches on the reading thread: probes and interpreters stay on one thread.
        let thread = Worker::spawn("top", move |_| {
            let first = match (keeper.attach)() {
                Ok(recorder) => {
                    let _ = attached.send(Ok(()));
                    recorder
                }
                Err(error) => {
                    let _ = attached.send(Err(error));
                    return;
                }
            };
            let end = keeper.keep_recording(first);
            *how.lock() = end;
        })?;
        let started = LiveRecording { live, ended, quit, stop, thread };
        started.wait(&is_attached).map(|()| started)
    }

    fn wait(&self, attached: &Receiver<Result<(), BoxError>>) -> Result<(), BoxError> {
        attached.recv().unwrap_or_else(|_| Err("the recording thread ended unexpectedly".into()))
    }

    /// Locks the profile.
    pub fn live(&self) -> MutexGuard<'_, LiveProfile> {
        self.live.lock()
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<String> {
        let ended = self.ended.lock().clone();
        let gone = self.thread.is_finished();
        ended.or_else(|| gone.then(|| "the recording ended unexpectedly".to_owned()))
    }
}

impl Drop for LiveRecording {
    fn drop(&mut self) {
        self.quit.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct RecordingThread {
    live: SharedProfile,
    quit: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    host: String,
    attach: AttachFn,
}

/// In one line, as the reason may quote the target.
fn describe(what: &str, why: &dyn std::fmt::Display) -> String {
    render::one_line(&format!("{what}: {why}"))
}

impl RecordingThread {
    /// Records until the job ends or the view closes; returns how it ended.
    fn keep_recording(&mut self, mut recorder: AttachedRecorder) -> Option<String> {
        loop {
            let renew = AtomicBool::new(false);
            let recorded = self.record(recorder, &renew);
            if self.quit.load(Ordering::Relaxed) {
                return None;
            }
            let reason = match recorded {
                Ok(end) => end.reason,
                Err(error) => return Some(describe("the recording failed", &error)),
            };
            match reason {
                EndReason::Interrupted if renew.load(Ordering::Relaxed) => {}
                EndReason::TargetExited => return Some("the job has ended".to_owned()),
                EndReason::TargetExecuted => {
                    return Some("the job has become another program".to_owned());
                }
                EndReason::Failed(why) => return Some(describe("the recording failed", &why)),
                EndReason::Duration
                | EndReason::Interrupted
                | EndReason::Condition(_)
                | EndReason::OtherProcess { .. } => return None,
            }
            self.stop.store(false, Ordering::Relaxed);
            recorder = match (self.attach)() {
                Ok(recorder) => recorder,
                Err(error) => return Some(describe("the recording could not go on", &error)),
            };
            self.live.lock().reset();
        }
    }

    fn record(&self, recorder: AttachedRecorder, renew: &AtomicBool) -> SinkResult<RecordingEnd> {
        // Pictures are made under the lock; sampling must not wait for it.
        let mut background = BackgroundSink::new(self.live.clone())?;
        let mut observe = |_: &RecordingProgress| {
            if self.live.lock().is_full() {
                renew.store(true, Ordering::Relaxed);
                self.stop.store(true, Ordering::Relaxed);
            }
        };
        let (host, stop) = (self.host.clone(), &*self.stop);
        let end = recorder.run(host, &mut background, stop, &mut observe);
        let (_, written) = background.finish();
        written.and(end)
    }
}
