/* Registers and stack of a thread at a large allocation, copied for later unwinding of its C and
 * C++ frames: libtorch and CPython have no frame pointers, so the kernel cannot walk them. */
#pragma once

#include "kernel.bpf.h"

/* Allocations of at least this many bytes; 0: none. A constant, so that the verifier can drop
 * unused code. */
volatile const u64 NATIVE_FROM;

/* Most bytes of a stack. PyTorch over 20 modules needs some 20 KiB. */
#define MOST_STACK (64 << 10)
/* How often a failed copy is retried with half the size. */
#define MOST_HALVES 8

struct {
	__uint(type, MAP_RINGBUF);
	__uint(max_entries, 4096); /* set by the loader */
} NATIVE_RING SEC(".maps");

/* Copies numbered so far. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} NATIVE_COUNT SEC(".maps");

/* Bytes of the stack from the stack pointer on: the main thread's ends where the kernel began it,
 * another thread's at glibc's thread descriptor. */
static __always_inline u64 stack_bytes(u64 pointer)
{
	struct task_struct *task = (void *)bpf_get_current_task_btf();
	u64 id = bpf_get_current_pid_tgid();
	u64 end = (u32)id == id >> 32 ? task->mm->start_stack : task->thread.fsbase;
	return end > pointer ? end - pointer : MOST_STACK;
}

/* Copies the readable part of the stack and returns its bytes. */
static __always_inline u32 copy_user_stack(u8 *to, u64 from, u32 len)
{
	for (int i = 0; i < MOST_HALVES && len; i++) {
		if (!bpf_probe_read_user(to, len, (void *)from))
			return len;
		len /= 2;
	}
	return 0;
}

/* Record sizes must be constants: the smallest one that fits. */
#define COPY_STACK(room)                                                                           \
	{                                                                                          \
		struct { struct native_stack_head head; u8 bytes[room]; } *record =                \
			bpf_ringbuf_reserve(&NATIVE_RING, sizeof *record, 0);                      \
		if (!record)                                                                       \
			return NATIVE_STACK_LOST;                                                  \
		fill_head(&record->head, ctx, number, wanted);                                     \
		record->head.len = copy_user_stack(record->bytes, ctx->rsp, wanted < room ? wanted : room); \
		bpf_ringbuf_submit(record, NO_WAKEUP);                                             \
		return number;                                                                     \
	}

static __always_inline void fill_head(struct native_stack_head *head, struct pt_regs *ctx, u32 number, u32 wanted)
{
	*(u32 *)head = RECORD_NATIVE_STACK;
	head->number = number;
	head->wanted = wanted;
	head->registers[0] = ctx->rax;
	head->registers[1] = ctx->rdx;
	head->registers[2] = ctx->rcx;
	head->registers[3] = ctx->rbx;
	head->registers[4] = ctx->rsi;
	head->registers[5] = ctx->rdi;
	head->registers[6] = ctx->rbp;
	head->registers[7] = ctx->rsp;
	head->registers[8] = ctx->r8;
	head->registers[9] = ctx->r9;
	head->registers[10] = ctx->r10;
	head->registers[11] = ctx->r11;
	head->registers[12] = ctx->r12;
	head->registers[13] = ctx->r13;
	head->registers[14] = ctx->r14;
	head->registers[15] = ctx->r15;
	head->registers[16] = ctx->rip;
}

/* Copies the calling thread's stack and returns the copy's number. */
static __noinline u32 copy_native_stack(struct pt_regs *ctx)
{
	u32 zero = 0;
	u32 *count = bpf_map_lookup_elem(&NATIVE_COUNT, &zero);
	if (!count)
		return NATIVE_STACK_LOST;
	u32 number = __sync_fetch_and_add(count, 1) + 1;
	if (!number || number == NATIVE_STACK_LOST)
		return NATIVE_STACK_LOST; /* Once in four billion. */
	u64 bytes = stack_bytes(ctx->rsp);
	u32 wanted = bytes < 1u << 31 ? bytes : 1u << 31;
	if (wanted <= 8 << 10)
		COPY_STACK(8 << 10)
	if (wanted <= 16 << 10)
		COPY_STACK(16 << 10)
	if (wanted <= 32 << 10)
		COPY_STACK(32 << 10)
	COPY_STACK(MOST_STACK)
}

/* The number of the copy for an allocation of `size` bytes, if it gets one. */
static __always_inline u32 native_stack(struct pt_regs *ctx, u64 size)
{
	return NATIVE_FROM && size >= NATIVE_FROM ? copy_native_stack(ctx) : 0;
}
