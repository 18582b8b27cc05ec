//! The built-in reader over missing or damaged memory.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::model::ThreadActivity;
use crate::python::layouts::interpreter;
use crate::target::{AddressRange, MemoryImage, RecordingMemory};

struct FlakyMemory<M> {
    inner: Arc<M>,
    reads: Arc<AtomicU64>,
    /// Each read whose number is a multiple of this fails; 0 for never.
    fails_every: u64,
}

impl<M> FlakyMemory<M> {
    fn new(inner: M, fails_every: u64) -> Self {
        FlakyMemory { inner: Arc::new(inner), reads: Arc::default(), fails_every }
    }
}

impl<M> Clone for FlakyMemory<M> {
    fn clone(&self) -> Self {
        FlakyMemory {
            inner: self.inner.clone(),
            reads: self.reads.clone(),
            fails_every: self.fails_every,
        }
    }
}

impl<M: Memory> Memory for FlakyMemory<M> {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        if self.fails_every != 0 && number.is_multiple_of(self.fails_every) {
            let index = number as usize % spans.len();
            return Err(MemoryError::Fault { span: spans[index], index });
        }
        self.inner.read_spans(spans, out)
    }
}

struct CapturedProcess {
    interpreter: Interpreter,
    image: MemoryImage,
}

const SCRIPT: &str = "
import sys, threading, time
def deep(n):
    if n: deep(n - 1)
    else: time.sleep(60)
def numbers():
    yield deep(12)
for _ in range(3):
    threading.Thread(target=lambda: list(numbers()), daemon=True).start()
time.sleep(0.1)
print('READY', flush=True)
sys.stdin.read()
";

/// `None` without `python3`.
fn capture() -> Option<CapturedProcess> {
    let mut child: Child = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .inspect_err(|e| eprintln!("nothing is captured: no python3: {e}"))
        .ok()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "READY\n");
    let process = Process::open(child.id()).unwrap();
    let found = interpreter::find(&process, &process.memory()).unwrap();
    let memory = FlakyMemory::new(RecordingMemory::new(process.memory()), 0);
    let kept = memory.clone();
    let mut reader = StackSampler::new(child.id(), None, Box::new(memory), found.clone());
    let (mut table, mut out) = (StackTable::new(), Vec::new());
    for _ in 0..3 {
        reader.sample(&mut table, &mut out).unwrap();
    }
    assert_eq!(out.len(), 4);
    child.kill().unwrap();
    child.wait().unwrap();
    Some(CapturedProcess { interpreter: found, image: kept.inner.image() })
}

fn reader_over(memory: impl Memory + 'static, interpreter: &Interpreter) -> StackSampler {
    StackSampler::new(1, None, Box::new(memory), interpreter.clone())
}

#[test]
fn captured_memory_gives_the_same_stacks() {
    let Some(CapturedProcess { interpreter, image }) = capture() else { return };
    let mut reader = reader_over(image, &interpreter);
    reader.verify().unwrap();
    let (mut table, mut out) = (StackTable::new(), Vec::new());
    let stats = reader.sample(&mut table, &mut out).unwrap();
    assert_eq!((stats.stacks, stats.torn), (4, 0));
    let depths: Vec<usize> = out.iter().map(|s| table.frames(s.stack).count()).collect();
    assert_eq!(depths.iter().filter(|&&depth| depth > 14).count(), 3, "{depths:?}");
    assert_eq!(reader.sample(&mut table, &mut out).unwrap().reads, 1);
}

const WAITS_THEN_WORKS: &str = "
import hashlib, sys, threading
lock = threading.Lock()
lock.acquire()
def work():
    lock.acquire()
    hashlib.pbkdf2_hmac('sha256', b'', b'', 1 << 30)
threading.Thread(target=work, daemon=True).start()
print('READY', flush=True)
sys.stdin.readline()
lock.release()
sys.stdin.read()
";

#[test]
fn working_in_c_after_a_sleep_is_not_idle() {
    let mut child = match Command::new("python3")
        .args(["-c", WAITS_THEN_WORKS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(error) => return eprintln!("nothing is sampled: no python3: {error}"),
    };
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let process = Process::open(child.id()).unwrap();
    let found = interpreter::find(&process, &process.memory()).unwrap();
    let memory = Box::new(process.memory());
    let mut reader = StackSampler::new(child.id(), Some(process), memory, found);
    let (mut table, mut out) = (StackTable::new(), Vec::new());
    let mut sample = || {
        reader.sample(&mut table, &mut out).unwrap();
        let is_main = |s: &ThreadSample| table.get_thread(s.thread).is_some_and(|t| t.main);
        out.iter().find(|sample| !is_main(sample)).copied()
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut asleep = sample();
    // It may be on its way to the lock.
    while asleep.is_none_or(|sample| sample.activity == ThreadActivity::Active) {
        assert!(Instant::now() < deadline, "{asleep:?}");
        asleep = sample();
    }
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    let mut works = sample();
    while works.is_none_or(|sample| Some(sample.stack) == asleep.map(|asleep| asleep.stack)) {
        assert!(Instant::now() < deadline, "{works:?}");
        works = sample();
    }
    for _ in 0..5 {
        let next = sample().unwrap();
        assert_eq!(
            (Some(next.stack), next.activity),
            (works.map(|w| w.stack), ThreadActivity::Active)
        );
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn failed_reads_omit_threads_or_return_an_error() {
    let Some(CapturedProcess { interpreter, image }) = capture() else { return };
    for fails_every in 1..60 {
        let memory = FlakyMemory::new(image.clone(), fails_every);
        let reads = memory.reads.clone();
        let mut reader = reader_over(memory, &interpreter);
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        for _ in 0..20 {
            let before = reads.load(Ordering::Relaxed);
            let sampled = reader.sample(&mut table, &mut out);
            let took = reads.load(Ordering::Relaxed) - before;
            assert!(took < 200_000, "{took} reads in one sample");
            if let Ok(stats) = sampled {
                assert_eq!(stats.stacks as usize, out.len());
            }
        }
    }
}

#[test]
fn damaged_memory_gives_errors_or_stacks_within_bounds() {
    let Some(CapturedProcess { interpreter, image }) = capture() else { return };
    let mut stored = Vec::new();
    image.write_to(&mut stored).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..300 {
        let mut damaged = image.clone();
        for _ in 0..1 + random() % 40 {
            let at = 16 + (random() as usize) % (stored.len() - 32);
            let addr = Addr(u64::from_le_bytes(stored[at..at + 8].try_into().unwrap()));
            let aim = Addr(addr.0 & !7);
            if damaged.read(aim, &mut [0; 8]).is_ok() {
                damaged.insert(aim, &random().to_le_bytes());
            }
            if let Ok(old) = (&damaged as &dyn Memory).u64(aim) {
                damaged.insert(aim, &(old ^ (random() & 0xff8)).to_le_bytes());
            }
        }
        let mut reader = reader_over(damaged, &interpreter);
        let (mut table, mut out) = (StackTable::new(), Vec::new());
        for _ in 0..2 {
            if let Ok(stats) = reader.sample(&mut table, &mut out) {
                assert!(stats.reads <= MAX_READS);
                for sample in &out {
                    assert!(table.frames(sample.stack).count() <= 4097);
                }
            }
        }
    }
}
