/* Programs that the kernel runs while a thread of the target is in a probe: they read its memory,
 * write one record into the ring, and let it continue. Loaded by src/probe/program.rs. */

#include "kernel.bpf.h"
#include "frames.bpf.h"
#include "steps.bpf.h"
#include "native.bpf.h"

char LICENSE[] SEC("license") = "GPL";

/* The place of a USDT argument (target::usdt::ProbeArgument). */
enum operand { OPERAND_NONE, OPERAND_CONSTANT, OPERAND_REGISTER, OPERAND_MEMORY };
#define NO_INDEX 0xff
struct argument {
	u8 operand, size, is_signed;
	u8 base;  /* index into pt_regs */
	u8 index; /* NO_INDEX: none */
	u8 scale;
	u8 unused[2];
	s64 value; /* the constant, or the displacement */
};
/* Of pytorch:malloc address, device, size, stream; of pytorch:free the address. */
#define MOST_ARGUMENTS 3
struct site {
	struct argument arguments[MOST_ARGUMENTS];
};
#define MOST_SITES 8
volatile const struct site MALLOC_SITES[MOST_SITES];
volatile const struct site FREE_SITES[MOST_SITES];

/* Options of the recording. */
volatile const u64 STACKS_FROM;
/* With STACKS_EVERY: exponentially distributed intervals between sampled bytes. */
#define WAYS 1024
volatile const u32 STACKS_EVERY;
volatile const u64 WAY[WAYS];
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, s64);
} TO_GO SEC(".maps");

/* abi::CounterAddresses of each device. */
struct levels_at {
	u64 allocated; /* 0: unknown */
	u32 reserved, active;
	u64 tables; /* of the allocated blocks; 0: unknown */
};
#define MOST_DEVICES 64
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, MOST_DEVICES);
	__type(key, u32);
	__type(value, struct levels_at);
} LEVELS SEC(".maps");
#define LEVELS_SPAN 256
#include "block.bpf.h"

/* Registers are read one by one: the verifier refuses a computed place in the context. */
#define CASE(n) if (index == n) { asm volatile("%0 = *(u64 *)(%1 + " #n " * 8)" : "=r"(value) : "r"(ctx)); return value; }
static __always_inline u64 register_of(struct pt_regs *ctx, u8 index)
{
	u64 value;
	CASE(0) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9)
	CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(16) CASE(19)
	return 0;
}

static __always_inline u64 argument(struct pt_regs *ctx, const volatile struct argument *a)
{
	u64 value = a->value;
	if (a->operand == OPERAND_NONE || a->operand == OPERAND_CONSTANT)
		return value;
	if (a->operand == OPERAND_REGISTER) {
		value = register_of(ctx, a->base);
	} else {
		value += register_of(ctx, a->base);
		if (a->index != NO_INDEX)
			value += register_of(ctx, a->index) * a->scale;
		value = read_word(value);
	}
	if (a->size == 4)
		return a->is_signed ? (u64)(s64)(s32)value : (u32)value;
	if (a->size == 2)
		return a->is_signed ? (u64)(s64)(short)value : (u16)value;
	if (a->size == 1)
		return a->is_signed ? (u64)(s64)(signed char)value : (u8)value;
	return value;
}

struct place {
	u64 python_id, stack;
	u64 vtable, python_type, forward;
	u8 flags, source;
	u16 unused;
	u32 native; /* the number of an allocation's native stack */
};

#include "backward.bpf.h"

/* Finds the thread in the probe. */
static __always_inline void find_place(struct place *p)
{
	p->python_id = fs_base();
	u64 thread = thread_state(p->python_id);
	u64 frame = thread ? innermost_frame(thread) : 0;
	u64 node = 0, backward = 0;
	if (BW_MODULE && thread != WALK.main_thread) {
		struct node n = {};
		if (current_node(p->python_id, &n)) {
			p->vtable = n.vtable;
			p->python_type = n.python_type;
			p->forward = n.forward;
			p->flags |= FLAG_NODE;
			node = 1;
		}
		backward = n.backward;
	}
	p->source = SOURCE_OWN;
	if (!frame) {
		if (backward) {
			p->source = SOURCE_BACKWARD;
			p->stack = backward;
			p->flags |= backward & KEY_FLAGS;
			return;
		}
		/* Python knows the engine's threads; other threads without frames work for
		 * themselves. */
		if (!thread && !node) {
			p->source = SOURCE_NO_PYTHON;
			return;
		}
		p->source = SOURCE_BORROWED;
		frame = innermost_frame(WALK.main_thread);
		if (!frame) {
			p->source = SOURCE_NO_PYTHON;
			return;
		}
	}
	p->stack = key_of_stack(frame);
	p->flags |= p->stack & KEY_FLAGS;
}

/* Whether this allocation gets a stack: by its size, or as a sample of all bytes allocated. */
static __always_inline int is_wanted(u64 size)
{
	if (size < STACKS_FROM)
		return 0;
	if (!STACKS_EVERY)
		return 1;
	u32 zero = 0;
	s64 *to_go = bpf_map_lookup_elem(&TO_GO, &zero);
	if (!to_go)
		return 1;
	*to_go -= size;
	if (*to_go > 0)
		return 0;
	*to_go = WAY[bpf_get_prandom_u32() & (WAYS - 1)];
	return 1;
}

static __always_inline void set_who(struct who *who, u8 kind, u8 arena, const struct place *p)
{
	who->kind = kind;
	who->arena = arena;
	who->device = NO_DEVICE;
	who->source = p->source;
	who->flags = p->flags;
	who->mark = 0;
	who->code = 0;
	who->thread = (u32)bpf_get_current_pid_tgid();
	who->native = p->native;
	who->time = bpf_ktime_get_ns();
	who->python_id = p->python_id;
	who->stack = p->stack;
}

/* A device's current allocator counters in one read, which costs as much as that of a word. A
 * separate function to save stack. */
static __noinline int read_levels(u32 device, s64 *levels)
{
	u8 bytes[LEVELS_SPAN] __attribute__((aligned(8)));
	struct levels_at *at = bpf_map_lookup_elem(&LEVELS, &device);
	if (!at || !at->allocated || !levels)
		return 0;
	if (bpf_probe_read_user(bytes, sizeof bytes, (void *)at->allocated))
		return 0;
	levels[0] = *(s64 *)bytes;
	levels[1] = *(s64 *)(bytes + 8);
	levels[2] = *(s64 *)(bytes + (at->reserved & (LEVELS_SPAN - 8)));
	levels[3] = *(s64 *)(bytes + (at->active & (LEVELS_SPAN - 8)));
	return 1;
}

static __always_inline int allocated(u8 arena, u32 device, u64 address, u64 size, const struct place *p)
{
	struct allocated_in_node *record;
	u64 block = arena == ARENA_TORCH ? size_of_block(device, address, size) : 0;
	/* Two sizes of record, reserved separately: sizes must be constants. */
	if (p->flags & FLAG_NODE) {
		record = bpf_ringbuf_reserve(&RING, sizeof *record, 0);
		if (!record) {
			count(COUNT_LOST);
			return 0;
		}
		record->vtable = p->vtable;
		record->python_type = p->python_type;
		record->forward = p->forward;
		set_who(&record->allocated.who, RECORD_ALLOCATED, arena, p);
		record->allocated.who.device = device;
		record->allocated.address = address;
		record->allocated.size = size;
		record->allocated.block = block;
		if (arena == ARENA_TORCH && read_levels(device, record->allocated.levels))
			record->allocated.who.flags |= FLAG_LEVELS;
		bpf_ringbuf_submit(record, NO_WAKEUP);
		return 0;
	}
	struct allocated *plain = bpf_ringbuf_reserve(&RING, sizeof *plain, 0);
	if (!plain) {
		count(COUNT_LOST);
		return 0;
	}
	set_who(&plain->who, RECORD_ALLOCATED, arena, p);
	plain->who.device = device;
	plain->address = address;
	plain->size = size;
	plain->block = block;
	if (arena == ARENA_TORCH && read_levels(device, plain->levels))
		plain->who.flags |= FLAG_LEVELS;
	bpf_ringbuf_submit(plain, NO_WAKEUP);
	return 0;
}

static __always_inline int freed(u8 arena, u64 address, const struct place *p)
{
	struct freed *record = bpf_ringbuf_reserve(&RING, sizeof *record, 0);
	if (!record) {
		count(COUNT_LOST);
		return 0;
	}
	set_who(&record->who, RECORD_FREED, arena, p);
	record->address = address;
	bpf_ringbuf_submit(record, NO_WAKEUP);
	return 0;
}

static __always_inline int torch_malloc(struct pt_regs *ctx, const volatile struct site *site)
{
	if (WATCHES)
		see_step();
	u64 address = argument(ctx, &site->arguments[0]);
	u32 device = argument(ctx, &site->arguments[1]);
	u64 size = argument(ctx, &site->arguments[2]);
	struct place place = { .source = SOURCE_NOT_TAKEN };
	if (is_wanted(size)) {
		find_place(&place);
		place.native = native_stack(ctx, size);
	} else
		place.python_id = fs_base();
	return allocated(ARENA_TORCH, device & 0xff, address, size, &place);
}

/* The usual sites have programs of their own, in which their description is a constant. */
PROGRAM(malloc_0, torch_malloc(ctx, &MALLOC_SITES[0]))
PROGRAM(malloc_1, torch_malloc(ctx, &MALLOC_SITES[1]))
PROGRAM(malloc_any, torch_malloc(ctx, &MALLOC_SITES[bpf_get_attach_cookie(ctx) & (MOST_SITES - 1)]))

static __always_inline int torch_free(struct pt_regs *ctx, const volatile struct site *site)
{
	struct place place = { .source = SOURCE_NOT_TAKEN };
	if (WATCHES) {
		see_step();
		/* Used only between steps; it takes three reads of the target's memory. */
		if (evaluates_node())
			place.flags = FLAG_IN_BACKWARD;
	}
	return freed(ARENA_TORCH, argument(ctx, &site->arguments[0]), &place);
}

PROGRAM(free_0, torch_free(ctx, &FREE_SITES[0]))
PROGRAM(free_1, torch_free(ctx, &FREE_SITES[1]))
PROGRAM(free_any, torch_free(ctx, &FREE_SITES[bpf_get_attach_cookie(ctx) & (MOST_SITES - 1)]))

static __always_inline int torch_free_with_stack(struct pt_regs *ctx)
{
	const volatile struct site *site = &FREE_SITES[bpf_get_attach_cookie(ctx) & (MOST_SITES - 1)];
	if (WATCHES)
		see_step();
	struct place place = {};
	find_place(&place);
	if (place.flags & FLAG_NODE)
		place.flags ^= FLAG_NODE | FLAG_IN_BACKWARD;
	return freed(ARENA_TORCH, argument(ctx, &site->arguments[0]), &place);
}

PROGRAM(free_with_stack, torch_free_with_stack(ctx))

static __always_inline int code_died(struct pt_regs *ctx)
{
	u64 code = ctx->rdi;
	if (bpf_map_delete_elem(&CODES, &code))
		return 0; /* Never described, so unknown to readers. */
	u64 *g = generation();
	if (g)
		__sync_fetch_and_add(g, 1);
	struct code_freed *record = bpf_ringbuf_reserve(&RING, sizeof *record, 0);
	if (!record) {
		count(COUNT_LOST_DESCRIPTIONS);
		return 0;
	}
	*(u64 *)record = RECORD_CODE_FREED;
	record->code = code;
	bpf_ringbuf_submit(record, NO_WAKEUP);
	return 0;
}

PROGRAM(code_dealloc, code_died(ctx))

#include "driver.bpf.h"

/* For measuring what a probe costs without any work. */
SEC("uprobe") int nothing(struct pt_regs *ctx) { return 0; }
