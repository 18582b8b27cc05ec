//! Tests of comparing events with counters.

use super::*;
use crate::model::Stat;

#[derive(Default)]
struct Job {
    blocks: i64,
    allocated: i64,
    freed: i64,
    requested: i64,
}

impl Job {
    fn counters(&self) -> Vec<(CudaIndex, AllocatorCounters)> {
        let mut counters = AllocatorCounters::default();
        counters.stats[Metric::Allocation as usize][0] = Stat {
            current: self.blocks,
            allocated: self.allocated,
            freed: self.freed,
            ..Stat::default()
        };
        counters.stats[Metric::RequestedBytes as usize][0] =
            Stat { allocated: self.requested, ..Stat::default() };
        vec![(CudaIndex(0), counters)]
    }

    fn allocate(&mut self, size: i64) {
        self.blocks += 1;
        self.allocated += 1;
        self.requested += size;
    }

    fn free(&mut self) {
        self.blocks -= 1;
        self.freed += 1;
    }

    /// `reset_accumulated_memory_stats`.
    fn reset(&mut self) {
        (self.allocated, self.freed, self.requested) = (0, 0, 0);
    }
}

fn allocated(size: u64) -> Event {
    let memory_kind = MemoryKind::Torch(CudaIndex(0));
    let change =
        EventKind::Allocated { memory_kind, address: 512, size, levels: None, block: None };
    Event { time: Nanos(1), change, site: None }
}

fn freed() -> Event {
    let change =
        EventKind::Freed { memory_kind: AddressSpace::Torch, address: 512, in_backward: false };
    Event { time: Nanos(2), change, site: None }
}

/// The allocator had a thousand blocks before the probes.
fn started() -> (CounterReconciler, Job) {
    let mut reconciler = CounterReconciler::new(true);
    let job = Job { blocks: 100, allocated: 1000, freed: 900, requested: 5000 };
    for _ in 0..MIN_READS {
        reconciler.on_counters(&job.counters());
    }
    assert!(reconciler.take_checks(Nanos(0)).is_empty(), "the beginning");
    (reconciler, job)
}

fn differs(reconciler: &mut CounterReconciler) -> Option<(i64, Option<i64>, i64)> {
    let found = reconciler.take_checks(Nanos(0));
    found.first().map(|check| (check.allocations, check.frees, check.requested))
}

const EQUAL: Option<(i64, Option<i64>, i64)> = Some((0, Some(0), 0));

#[test]
fn a_read_with_work_in_flight_is_not_compared() {
    let (mut reconciler, mut job) = started();
    job.allocate(64);
    assert!(!reconciler.on_counters(&job.counters()), "it is counted, its event comes later");
    reconciler.on_event(&allocated(64));
    reconciler.on_event(&freed());
    assert!(!reconciler.on_counters(&job.counters()), "its event came, it is not counted yet");
    assert_eq!(differs(&mut reconciler), None);
    job.free();
    assert!(reconciler.on_counters(&job.counters()));
    assert_eq!(differs(&mut reconciler), EQUAL);
}

#[test]
fn a_base_read_with_work_in_flight_is_replaced() {
    let mut reconciler = CounterReconciler::new(true);
    let mut job = Job { blocks: 100, allocated: 1000, freed: 900, requested: 5000 };
    job.allocate(64);
    for _ in 0..MIN_READS {
        reconciler.on_counters(&job.counters());
    }
    assert_eq!(differs(&mut reconciler), None);
    reconciler.on_event(&allocated(64));
    for _ in 0..=MIN_SIGHTINGS {
        reconciler.on_counters(&job.counters());
    }
    assert_eq!(differs(&mut reconciler), EQUAL);
}

#[test]
fn a_job_that_resets_counts_between_reads_is_compared() {
    let (mut reconciler, mut job) = started();
    for round in 0..20 {
        job.reset();
        for _ in 0..round {
            job.allocate(64);
            reconciler.on_event(&allocated(64));
        }
        if round % 2 == 0 {
            job.reset();
        }
        assert!(reconciler.on_counters(&job.counters()));
        assert_eq!(differs(&mut reconciler), EQUAL, "round {round}");
    }
    job.allocate(64);
    job.free();
    job.reset();
    assert!(reconciler.on_counters(&job.counters()), "what was missed before it cannot be known");
    job.allocate(64);
    assert_eq!(differs(&mut reconciler), EQUAL);
    for _ in 0..MAX_RESTLESS {
        assert!(!reconciler.on_counters(&job.counters()));
        let _ = reconciler.take_checks(Nanos(0));
    }
    assert!(!reconciler.on_counters(&job.counters()));
    assert_eq!(differs(&mut reconciler), Some((1, Some(0), 64)), "missing after the reset");
}

#[test]
fn an_empty_job_is_compared_from_its_first_allocation() {
    let mut reconciler = CounterReconciler::new(true);
    reconciler.start_empty();
    let mut job = Job::default();
    for _ in 0..2 {
        job.allocate(64);
        job.free();
    }
    job.allocate(64);
    reconciler.on_event(&allocated(64));
    assert!(reconciler.on_counters(&job.counters()));
    assert_eq!(differs(&mut reconciler), Some((2, Some(2), 128)));
}

#[test]
fn missing_events_stay_missing_across_a_reset() {
    let (mut reconciler, mut job) = started();
    job.allocate(200);
    job.free();
    assert!(reconciler.on_counters(&job.counters()));
    assert_eq!(differs(&mut reconciler), Some((1, Some(1), 200)));
    job.reset();
    reconciler.on_counters(&job.counters());
    reconciler.on_counters(&job.counters());
    assert_eq!(differs(&mut reconciler), Some((1, Some(1), 200)));
}

#[test]
fn a_lost_event_is_missing_in_a_busy_job() {
    let (mut reconciler, mut job) = started();
    job.allocate(200);
    for second in 0..3 {
        for _ in 0..5 {
            assert!(!reconciler.on_counters(&job.counters()));
        }
        let expected = (second + 1 >= MAX_RESTLESS).then_some((1, Some(0), 200));
        assert_eq!(differs(&mut reconciler), expected, "second {second}");
    }
    let (mut reconciler, mut job) = started();
    for _ in 0..CERTAIN_SIGHTINGS {
        reconciler.on_counters(&job.counters());
    }
    job.free();
    for _ in 0..=MIN_SIGHTINGS {
        reconciler.on_counters(&job.counters());
    }
    assert_eq!(differs(&mut reconciler), Some((0, Some(1), 0)));
}

#[test]
fn four_threads_that_never_rest_are_compared() {
    #[derive(Clone, Copy, PartialEq)]
    enum Thread {
        Rests,
        Counted(i64),
        Freeing,
    }
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for resets in [false, true] {
        let mut reconciler = CounterReconciler::new(true);
        let mut job = Job { blocks: 40, allocated: 90, freed: 50, requested: 9000 };
        let mut threads = [Thread::Rests; 4];
        let mut checks = 0;
        for step in 0..200_000 {
            let thread = &mut threads[next(4) as usize];
            *thread = match *thread {
                Thread::Rests if next(2) == 0 => {
                    let size = 100 + next(9) as i64;
                    job.allocate(size);
                    Thread::Counted(size)
                }
                Thread::Rests if job.blocks > 8 => {
                    reconciler.on_event(&freed());
                    Thread::Freeing
                }
                Thread::Counted(size) => {
                    reconciler.on_event(&allocated(size as u64));
                    Thread::Rests
                }
                Thread::Freeing => {
                    job.free();
                    Thread::Rests
                }
                Thread::Rests => Thread::Rests,
            };
            if resets && next(50) == 0 {
                job.reset();
            }
            if next(20) == 0 {
                reconciler.on_counters(&job.counters());
            }
            if step % 4000 == 3999 {
                for check in reconciler.take_checks(Nanos(step)) {
                    assert_eq!((check.allocations, check.requested), (0, 0), "{check:?}");
                    assert_eq!(check.frees, Some(0), "{check:?}");
                    checks += 1;
                }
            }
        }
        assert!(checks > 30, "{checks} checks, resets: {resets}");
    }
}
