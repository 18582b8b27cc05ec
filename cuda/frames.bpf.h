/* The Python stack of a thread in a probe: found, walked, identified by a 64-bit key, described
 * once.
 *
 * A walk computes the key and stores nothing: known frames cost one read of each of their pages. An
 * unknown stack is walked again and described in the ring: first its code objects (as copies, so
 * that one that dies soon still gets its right name), then its frames. A dying code object removes
 * its description and changes all keys.
 *
 * Functions that are not static are verified once for all callers. */
#pragma once

#include "kernel.bpf.h"

/* abi::UnwindInfo */
struct frame_walk {
	u64 threads_head;
	u64 main_thread;
	u32 own_thread_slot; /* 0: unknown */
	u32 thread_next;
	u32 thread_id;
	u32 thread_head;
	u32 head_through;     /* NOWHERE: thread_head leads to the frame itself */
	u32 frame_code;
	u32 frame_previous;
	u32 frame_instruction;
	u32 instruction_is_offset;
	u32 frame_owner;      /* NOWHERE: frames have none */
	u32 frame_copy;       /* NOWHERE: threads have no copies of the bytecode */
	u32 code_copies;
	u32 code_bytecode;
	u32 contiguous;
	u32 frame_len;
	u32 code_name;
	u32 code_file;
	u32 code_line_table;
	u32 code_len;
	u32 object_class;
	u32 frame_argument;   /* the first argument; 0: it cannot be read with the frame */
};
#define NOWHERE 0xffffffff
volatile const struct frame_walk WALK;
/* 0 in a target without Python. */
volatile const u32 HAS_PYTHON;

/* More threads than any job has. */
#define MOST_THREADS 1024
/* Bits of a code pointer that may be a tag (Include/internal/pycore_stackref.h). */
#define TAG 7ull
/* Low bits of a key, free of the hash. */
#define KEY_FLAGS 3ull
#define TOP_BYTE 56

struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, u64);
	__type(value, u8);
} SEEN SEC(".maps");
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 65536);
	__type(key, u64);
	__type(value, u8);
} CODES SEC(".maps");

/* Grows with every death of a described code object. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} GENERATION SEC(".maps");

/* The code objects of the functions that call a module, once they were met; else 1. */
#define MODULE_CALLS 2
struct module_calls {
	u64 codes[MODULE_CALLS];
};
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct module_calls);
} CALLS_MODULE SEC(".maps");

static __always_inline struct module_calls module_calls(void)
{
	u32 zero = 0;
	struct module_calls none = { { 1, 1 } };
	struct module_calls *calls = bpf_map_lookup_elem(&CALLS_MODULE, &zero);
	return calls ? *calls : none;
}

/* The module that a frame calls; 0: none. Without branches, for the verifier. */
static __always_inline u64 module_of(const struct module_calls *calls, u64 code, u64 argument)
{
	u64 a = code ^ calls->codes[0], b = code ^ calls->codes[1];
	u64 differs = ((a | -a) & (b | -b)) >> 63;
	return argument & ~TAG & (differs - 1);
}

static __always_inline u64 argument_of(const u8 *frame)
{
	return WALK.frame_argument ? *(const u64 *)(frame + WALK.frame_argument) : 0;
}

static __always_inline u64 *generation(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&GENERATION, &zero);
}

__noinline u64 thread_in_list(u64 id)
{
	u64 thread = read_word(WALK.threads_head);
	for (int i = 0; i < MOST_THREADS; i++) {
		if (!thread || read_word(thread + WALK.thread_id) == id)
			return thread;
		thread = read_word(thread + WALK.thread_next);
	}
	return 0;
}

/* The PyThreadState of the thread with this pthread_self(); 0: unknown to Python. */
static __always_inline u64 thread_state(u64 id)
{
	if (!HAS_PYTHON)
		return 0;
	if (WALK.own_thread_slot)
		return read_word(id + WALK.own_thread_slot);
	return thread_in_list(id);
}

static __always_inline u64 innermost_frame(u64 thread)
{
	u64 frame = read_word(thread + WALK.thread_head);
	if (WALK.head_through != NOWHERE)
		frame = frame ? read_word(frame + WALK.head_through) : 0;
	return frame;
}

static __always_inline u64 mix(u64 hash, u64 code, u64 instruction)
{
	hash ^= code;
	hash *= 0x9E3779B97F4A7C15ull;
	hash ^= hash >> 32;
	hash ^= instruction;
	hash *= 0xC2B2AE3D27D4EB4Full;
	return hash ^ hash >> 29;
}

/* Keeps the bits of a module apart from those of the code object. */
#define MODULE_SHIFT 16

static __always_inline u64 instruction_of(const u8 *frame)
{
	if (WALK.instruction_is_offset)
		return *(const u32 *)(frame + WALK.frame_instruction);
	return *(const u64 *)(frame + WALK.frame_instruction);
}

/* The thread whose copy of the bytecode a frame executes; 0: the code object's own. */
static __always_inline u64 copy_of(const u8 *frame)
{
	if (WALK.frame_copy == NOWHERE)
		return 0;
	return *(const u32 *)(frame + (WALK.frame_copy & (LONGEST_FRAME - 4)));
}

/* The instruction, as in the code object's own bytecode. */
static __always_inline u64 own_instruction(const u8 *frame, u64 code)
{
	u64 instruction = instruction_of(frame), copy = copy_of(frame);
	if (!copy)
		return instruction;
	u64 copies = read_word(code + WALK.code_copies);
	if (copy >= read_word(copies))
		return instruction;
	return instruction - read_word(copies + 8 + 8 * copy) + code + WALK.code_bytecode;
}

static __always_inline u64 seed(void)
{
	u64 *g = generation();
	return 0x1234567 ^ (g ? *g << 32 : 0);
}

/* A data-dependent `continue` here would let the verifier's states diverge: shims between frames
 * are kept and dropped in user space. */
static __always_inline u64 key_of_frames(u64 at, u32 *flags)
{
	u64 hash = seed();
	struct module_calls calls = module_calls();
	u8 frame[LONGEST_FRAME] __attribute__((aligned(8)));
	for (int i = 0; i < MOST_FRAMES && at; i++) {
		if (bpf_probe_read_user(frame, WALK.frame_len, (void *)at)) {
			*flags |= FLAG_FAULTED;
			at = 0;
			break;
		}
		at = *(u64 *)(frame + WALK.frame_previous);
		u64 code = *(u64 *)(frame + WALK.frame_code) & ~TAG;
		u64 module = module_of(&calls, code, argument_of(frame));
		hash = mix(hash, code ^ module << MODULE_SHIFT, instruction_of(frame));
	}
	if (at)
		*flags |= FLAG_TRUNCATED;
	return hash;
}

/* Since 3.11 frames are adjacent, callers first: one read from the page's beginning to a frame has
 * all callers in the page. It never reads beyond a frame, so it faults only where frames do. */
static __always_inline u64 key_of_pages(struct scratch *scratch, u64 at, u32 *flags)
{
	u64 hash = seed(), page = 1, top = 0;
	struct module_calls calls = module_calls();
	for (int i = 0; i < MOST_FRAMES && at; i++) {
		u64 offset = at & (PAGE - 1);
		if (at - offset != page || offset > top) {
			page = at - offset;
			top = offset;
			if (bpf_probe_read_user(scratch->bytes, offset + WALK.frame_len, (void *)page)) {
				*flags |= FLAG_FAULTED;
				at = 0;
				break;
			}
		}
		u8 *frame = scratch->bytes + offset;
		at = *(u64 *)(frame + WALK.frame_previous);
		u64 code = *(u64 *)(frame + WALK.frame_code) & ~TAG;
		u64 module = module_of(&calls, code, argument_of(frame));
		hash = mix(hash, code ^ module << MODULE_SHIFT, instruction_of(frame));
	}
	if (at)
		*flags |= FLAG_TRUNCATED;
	return hash;
}

/* Copies readable bytes at `from`, chunk by chunk, and returns their number. No chunk crosses a
 * page, so no readable byte is missed. No branches: the verifier accepts only so many in a row. */
static __always_inline u32 copy_chunks(u8 *to, u64 from, u32 chunks)
{
	s64 ended = 0;
	u32 copied = 0;
	for (u32 i = 0; i < chunks; i++) {
		s64 failed = bpf_probe_read_user(to + i * CHUNK, CHUNK, (void *)(from + i * CHUNK));
		ended |= failed >> 63;
		copied += CHUNK & ~(u32)ended;
	}
	return copied;
}

/* Describes a code object once; -1: the ring was full. */
__noinline int describe_code(u64 code)
{
	u8 here = 1;
	if (bpf_map_lookup_elem(&CODES, &code))
		return 0;
	struct code_record *record = bpf_ringbuf_reserve(&RING, sizeof *record, 0);
	if (!record)
		return -1;
	*(u64 *)record = RECORD_CODE;
	record->code = code;
	u64 file = read_word(code + WALK.code_file), table = read_word(code + WALK.code_line_table);
	u64 name = read_word(code + WALK.code_name);
	record->at[0] = code & ~(CHUNK - 1ull);
	record->at[1] = name & ~(CHUNK - 1ull);
	record->at[2] = file & ~(CHUNK - 1ull);
	record->at[3] = table & ~(CHUNK - 1ull);
	record->len[0] = copy_chunks(record->object, record->at[0], OBJECT_CHUNKS);
	record->len[1] = copy_chunks(record->name, record->at[1], NAME_CHUNKS);
	record->len[2] = copy_chunks(record->file, record->at[2], FILE_CHUNKS);
	record->len[3] = copy_chunks(record->table, record->at[3], TABLE_CHUNKS);
	bpf_ringbuf_submit(record, NO_WAKEUP);
	bpf_map_update_elem(&CODES, &code, &here, BPF_ANY);
	return 0;
}

struct description {
	u64 at;
	u32 frames;
	u32 failed;
};

static long describe_next_code(u32 i, struct description *d)
{
	u8 frame[LONGEST_FRAME] __attribute__((aligned(8)));
	if (!d->at || bpf_probe_read_user(frame, WALK.frame_len, (void *)d->at))
		return 1;
	d->at = *(u64 *)(frame + WALK.frame_previous);
	u64 code = *(u64 *)(frame + WALK.frame_code) & ~TAG;
	d->frames++;
	if (code && describe_code(code)) {
		d->failed = 1;
		return 1;
	}
	return 0;
}

static __always_inline u32 store_frames(u64 at, struct frame *out, u32 most)
{
	u8 frame[LONGEST_FRAME] __attribute__((aligned(8)));
	struct module_calls calls = module_calls();
	u32 i;
	for (i = 0; i < most && at; i++) {
		if (bpf_probe_read_user(frame, WALK.frame_len, (void *)at))
			break;
		at = *(u64 *)(frame + WALK.frame_previous);
		u64 owner = WALK.frame_owner == NOWHERE ? 0 : frame[WALK.frame_owner & (LONGEST_FRAME - 1)];
		u64 code = *(u64 *)(frame + WALK.frame_code) & ~TAG;
		out[i].code = code | owner << TOP_BYTE;
		out[i].instruction = own_instruction(frame, code);
		out[i].module = module_of(&calls, code, argument_of(frame));
	}
	return i;
}

/* Describes a stack; -1: the ring was full. */
__noinline int describe_stack(u64 at, u64 key, u32 flags)
{
	struct description d = { .at = at };
	bpf_loop(MOST_FRAMES, describe_next_code, &d, 0);
	if (d.failed)
		return -1;
	if (d.frames <= FEW_FRAMES) {
		struct small_stack *stack = bpf_ringbuf_reserve(&RING, sizeof *stack, 0);
		if (!stack)
			return -1;
		stack->head = (struct stack_head){ .kind = RECORD_STACK, .flags = flags, .key = key };
		stack->head.frames = store_frames(at, stack->frames, FEW_FRAMES);
		bpf_ringbuf_submit(stack, NO_WAKEUP);
	} else {
		struct large_stack *stack = bpf_ringbuf_reserve(&RING, sizeof *stack, 0);
		if (!stack)
			return -1;
		stack->head = (struct stack_head){ .kind = RECORD_STACK, .flags = flags, .key = key };
		stack->head.frames = store_frames(at, stack->frames, MOST_FRAMES);
		bpf_ringbuf_submit(stack, NO_WAKEUP);
	}
	return 0;
}

/* The key of the stack whose innermost frame is `at`, which is not 0; never 0. */
__noinline u64 key_of_stack(u64 at)
{
	u32 flags = 0;
	u64 hash;
	struct scratch *scratch = WALK.contiguous ? claim_scratch() : 0;
	if (scratch) {
		hash = key_of_pages(scratch, at, &flags);
		scratch->busy = 0;
	} else {
		hash = key_of_frames(at, &flags);
	}
	u64 key = (hash & ~KEY_FLAGS) | flags;
	if (key < 4)
		key |= 4;
	if (bpf_map_lookup_elem(&SEEN, &key))
		return key;
	u8 here = 1;
	/* If several threads meet a new stack at once, one describes it. */
	if (!bpf_map_update_elem(&SEEN, &key, &here, BPF_NOEXIST) && describe_stack(at, key, flags)) {
		count(COUNT_LOST_DESCRIPTIONS);
		bpf_map_delete_elem(&SEEN, &key);
	}
	return key;
}
