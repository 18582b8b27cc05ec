/* What all parts of the program need from the kernel: helpers, registers, user memory. */
#pragma once

#include "probe.h"

typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
#include <bpf/bpf_helpers.h>

enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_LRU_HASH = 9, MAP_RINGBUF = 27 };
/* The reader polls the ring every few milliseconds. */
enum { NO_WAKEUP = 1 };

/* Only the used fields of the kernel's structures; the loader sets the true offsets (CO-RE). */
struct thread_struct {
	unsigned long fsbase;
} __attribute__((preserve_access_index));
struct mm_struct {
	unsigned long start_stack;
} __attribute__((preserve_access_index));
struct task_struct {
	struct thread_struct thread;
	struct mm_struct *mm;
} __attribute__((preserve_access_index));

/* arch/x86/include/uapi/asm/ptrace.h */
struct pt_regs {
	u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss;
};

struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 16 << 20);
} RING SEC(".maps");

/* probe::RingCounts */
enum count { COUNT_LOST, COUNT_LOST_DESCRIPTIONS, COUNTS };
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, u32);
	__type(value, u64);
} COUNT SEC(".maps");

static __always_inline void count(u32 which)
{
	u64 *n = bpf_map_lookup_elem(&COUNT, &which);
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* probe::ProgramTime, of the programs on one processor: what they cost the job. */
struct program_time {
	u64 runs;
	u64 timed, nanos; /* Of the runs that were timed. */
};
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct program_time);
} PROGRAM_TIME SEC(".maps");
/* Reading the clock twice costs a few per cent of a run, so one run in so many is timed. Which one is random: a job that
 * repeats itself would show the same calls again and again. */
#define TIMED_RUNS 8
/* A thread that lost its processor to another one meanwhile says nothing of the program. */
#define LONGEST_RUN 100000

/* When this run began; 0: it is not timed. */
static __always_inline u64 begin_run(void)
{
	u32 zero = 0;
	struct program_time *time = bpf_map_lookup_elem(&PROGRAM_TIME, &zero);
	if (!time)
		return 0;
	time->runs++;
	if (bpf_get_prandom_u32() % TIMED_RUNS)
		return 0;
	return bpf_ktime_get_ns();
}

static __always_inline void end_run(u64 began)
{
	if (!began)
		return;
	u64 nanos = bpf_ktime_get_ns() - began;
	u32 zero = 0;
	struct program_time *time = bpf_map_lookup_elem(&PROGRAM_TIME, &zero);
	if (time && nanos < LONGEST_RUN) {
		time->timed++;
		time->nanos += nanos;
	}
}

/* A program in the kernel: `work`, with its runs counted. */
#define PROGRAM(name, work) \
	SEC("uprobe") int name(struct pt_regs *ctx) \
	{ \
		u64 began = begin_run(); \
		int result = work; \
		end_run(began); \
		return result; \
	}

/* 0 where the memory is not there. */
static __always_inline u64 read_word(u64 address)
{
	u64 word = 0;
	bpf_probe_read_user(&word, sizeof word, (void *)address);
	return word;
}

/* pthread_self() of the calling thread. */
static __always_inline u64 fs_base(void)
{
	struct task_struct *task = (void *)bpf_get_current_task_btf();
	return task->thread.fsbase;
}

/* A copy of a user page's beginning and of counters, shared by the programs on this CPU. Another
 * thread's program may interrupt them, so a slot is claimed; without a free slot they skip the
 * copy. */
#define PAGE 4096
#define LONGEST_FRAME 128
struct scratch {
	u64 busy;
	u8 bytes[PAGE + LONGEST_FRAME];
};
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 3);
	__type(key, u32);
	__type(value, struct scratch);
} SCRATCH SEC(".maps");

static __always_inline struct scratch *claim_scratch(void)
{
	for (u32 i = 0; i < 3; i++) {
		u32 slot = i;
		struct scratch *scratch = bpf_map_lookup_elem(&SCRATCH, &slot);
		if (scratch && !__sync_lock_test_and_set(&scratch->busy, 1))
			return scratch;
	}
	return 0;
}
