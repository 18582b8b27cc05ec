//! Runs one case after another, each from a seed of its own, and collects what went wrong.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The most time of a processor that a case may take, in a build without optimization.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Different failures after which a test ends at once.
const MAX_FAILURES: usize = 20;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Counts the bytes that each thread has allocated.
struct Counting;

impl Counting {
    fn add(bytes: isize) {
        let live = LIVE.get() + bytes;
        LIVE.set(live);
        PEAK.set(PEAK.get().max(live));
    }
}

// SAFETY: all is passed on to the system's allocator; the counters are thread-local and never
// allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::add(layout.size() as isize);
        // SAFETY: as asked.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::add(layout.size() as isize);
        // SAFETY: as asked.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Counting::add(-(layout.size() as isize));
        // SAFETY: as asked.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::add(size as isize - layout.size() as isize);
        // SAFETY: as asked.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Numbers that look random and are the same for the same seed (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 when that is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.word() % limit.max(1) as u64) as usize
    }

    /// From 1 to `most`, small numbers more often.
    pub fn few(&mut self, most: usize) -> usize {
        let bits = self.below(most.max(1).ilog2() as usize + 1);
        1 + self.below((1 << bits).min(most))
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A number that tends to be where mistakes are: small, at a power of two, or all ones.
    pub fn edge(&mut self) -> u64 {
        match self.below(5) {
            0 => self.word() % 300,
            1 => (1u64 << self.below(64)).wrapping_add(self.word() % 5).wrapping_sub(2),
            2 => u64::MAX >> self.below(64),
            3 => (u64::MAX >> self.below(64)).wrapping_neg(),
            _ => self.word(),
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Whether this goes on for longer than a test of every day.
pub fn is_long() -> bool {
    number("MEMSPY_FUZZ_SECONDS").is_some()
}

/// Where a case may leave its input, to be looked at later.
pub fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Keeps what a panic of this thread says for [`run`], which prints it with its seed.
fn catch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if PANIC.with_borrow(|said| said.is_some()) {
                PANIC.set(Some(info.to_string()));
            } else {
                before(info);
            }
        }));
    });
}

/// Runs `case` with one random sequence after another: `cases` of them, or as the environment says.
/// A case answers how much memory it may take beyond what it began with, besides 256 MiB, or what
/// is wrong. All failures are printed, each kind once; then this panics.
pub fn run(name: &str, cases: u64, case: &mut dyn FnMut(&mut Random) -> Result<usize, String>) {
    let first = number("MEMSPY_FUZZ_SEED").unwrap_or(0);
    let until = number("MEMSPY_FUZZ_SECONDS").map(|s| Instant::now() + Duration::from_secs(s));
    let cases = match until {
        Some(_) => number("MEMSPY_FUZZ_CASES").unwrap_or(u64::MAX - first),
        None => number("MEMSPY_FUZZ_CASES").unwrap_or(cases),
    };
    run_seeds(name, first..first + cases, until, case);
}

/// The same with one case that is always the same, whatever the environment says: for a defect that
/// was found.
pub fn once(name: &str, case: &mut dyn FnMut() -> Result<usize, String>) {
    run_seeds(name, 0..1, None, &mut |_| case());
}

fn run_seeds(
    name: &str,
    seeds: Range<u64>,
    until: Option<Instant>,
    case: &mut dyn FnMut(&mut Random) -> Result<usize, String>,
) {
    catch_panics();
    let first = seeds.start;
    let running = folder().join(format!("{name}.running"));
    let mut failures: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let (mut done, mut slowest, mut largest) = (0, (Duration::ZERO, 0), (0, 0));
    for seed in seeds {
        if until.is_some_and(|until| Instant::now() > until) || failures.len() >= MAX_FAILURES {
            break;
        }
        // What kills the whole process, as a stack that overflows, leaves its seed here.
        std::fs::write(&running, format!("{seed}\n")).unwrap();
        let before = LIVE.get();
        PEAK.set(before);
        PANIC.set(Some(String::new()));
        let begun = processor_time();
        let result = catch_unwind(AssertUnwindSafe(|| case(&mut Random(seed))));
        let took = processor_time() - begun;
        let bytes = (PEAK.get() - before) as usize;
        let panicked = PANIC.take().unwrap_or_default();
        slowest = slowest.max((took, seed));
        largest = largest.max((bytes, seed));
        done += 1;
        let failure = match result {
            Err(_) => Some((panicked.lines().next().unwrap_or_default().to_owned(), panicked)),
            Ok(Err(said)) => Some((said.lines().next().unwrap_or_default().to_owned(), said)),
            Ok(Ok(_)) if took > MAX_TIME => Some(("too slow".into(), format!("{took:?}"))),
            Ok(Ok(allowed)) if bytes > (256 << 20) + allowed => {
                Some(("too much memory".into(), format!("{} MiB", bytes >> 20)))
            }
            Ok(Ok(_)) => None,
        };
        if let Some((kind, said)) = failure
            && !failures.contains_key(&kind)
        {
            eprintln!("{name}: MEMSPY_FUZZ_SEED={seed}: {said}");
            failures.insert(kind, (seed, said));
        }
    }
    std::fs::remove_file(&running).unwrap();
    eprintln!(
        "{name}: {done} cases from seed {first}; slowest {:?} (seed {}), most memory {} MiB (seed {})",
        slowest.0,
        slowest.1,
        largest.0 >> 20,
        largest.1
    );
    let said: Vec<String> = failures
        .values()
        .map(|(seed, said)| format!("MEMSPY_FUZZ_SEED={seed} MEMSPY_FUZZ_CASES=1: {said}"))
        .collect();
    assert!(said.is_empty(), "{name}: {} failures:\n{}", said.len(), said.join("\n"));
}
