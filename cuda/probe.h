/* Records that cuda/probe.bpf.c writes into its ring and src/probe/ring.rs reads: little-endian, no
 * hidden padding. The asserts here and the constants there have the same numbers. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;

/* First byte of every record. */
enum record_kind {
	RECORD_ALLOCATED = 1,
	RECORD_FREED,
	RECORD_FAILED,
	RECORD_MARKED,
	RECORD_STACK,
	RECORD_CODE,
	RECORD_CODE_FREED,
	RECORD_STEP,
	RECORD_NATIVE_STACK,
};

/* model::MemoryKind and model::AddressSpace, without the device. */
enum arena { ARENA_TORCH, ARENA_DRIVER, ARENA_PHYSICAL, ARENA_MAPPING, ARENA_MANAGED, ARENA_PINNED };

/* model::DriverEvent. */
enum mark { MARK_CONTEXT, MARK_MODULE, MARK_LIBRARY };

/* model::StackSource. */
enum source { SOURCE_OWN, SOURCE_BACKWARD, SOURCE_BORROWED, SOURCE_NO_PYTHON, SOURCE_NOT_TAKEN, SOURCE_UNKNOWN };

enum {
	FLAG_TRUNCATED = 1, /* deeper than MOST_FRAMES */
	FLAG_FAULTED = 2,   /* a page was not in memory */
	FLAG_LEVELS = 4,    /* has the counters */
	FLAG_NODE = 8,      /* has the node */
	FLAG_IN_BACKWARD = 16, /* freed while a node was evaluated */
};

#define NO_DEVICE 0xff

/* Common to all events. */
struct who {
	u8 kind, arena, device, source;
	u8 flags, mark;
	u16 code; /* CUresult of a failure */
	u32 thread;
	u32 native; /* number of an allocation's native stack; 0: not requested */
	u64 time;
	u64 python_id;
	u64 stack;
};

struct freed {
	struct who who;
	u64 address;
};

struct allocated {
	struct who who;
	u64 address;
	u64 size;
	s64 levels[4]; /* allocated, peak, reserved, active */
	u64 block;     /* bytes of the block; 0: unknown */
};

/* An allocation while an autograd node is evaluated. */
struct allocated_in_node {
	struct allocated allocated;
	u64 vtable;
	u64 python_type;
	u64 forward;
};

struct frame {
	u64 code; /* owner byte in the top byte */
	u64 instruction;
	u64 module; /* the first argument of a call of a module; else 0 */
};

#define MOST_FRAMES 160
#define FEW_FRAMES 32

struct stack_head {
	u8 kind, flags;
	u16 frames;
	u32 unused;
	u64 key;
};

struct small_stack {
	struct stack_head head;
	struct frame frames[FEW_FRAMES];
};

struct large_stack {
	struct stack_head head;
	struct frame frames[MOST_FRAMES];
};

/* A code object at first use: copies of it, its name, its file's name and its line table, each from
 * a multiple of CHUNK on. */
#define CHUNK 64
#define OBJECT_CHUNKS 6
#define NAME_CHUNKS 5
#define FILE_CHUNKS 7
#define TABLE_CHUNKS 33

struct code_record {
	u8 kind, unused[7];
	u64 code;
	u64 at[4];
	u32 len[4]; /* bytes copied */
	u8 object[OBJECT_CHUNKS * CHUNK];
	u8 name[NAME_CHUNKS * CHUNK];
	u8 file[FILE_CHUNKS * CHUNK];
	u8 table[TABLE_CHUNKS * CHUNK];
};

struct code_freed {
	u8 kind, unused[7];
	u64 code;
};

/* A training step, before the event at which it was first seen. */
struct step {
	u8 kind;
	u8 is_first; /* the first value seen: the step may have begun earlier */
	u16 unused;
	u32 number;  /* of the watched words */
	u64 time;
	u64 step, epoch; /* the values in memory */
};

/* A thread's registers in a probe, and the innermost part of its stack, for unwinding C and C++
 * frames. In its own ring, so that a lost copy never displaces an event. */
#define DWARF_REGISTERS 17
#define NATIVE_STACK_LOST 0xffffffff

struct native_stack_head {
	u8 kind, unused[3];
	u32 number;
	u32 len;    /* bytes copied */
	u32 wanted; /* known bytes of the stack */
	u64 registers[DWARF_REGISTERS]; /* by DWARF number */
};

_Static_assert(sizeof(struct native_stack_head) == 152, "native_stack_head");
_Static_assert(sizeof(struct who) == 40, "who");
_Static_assert(sizeof(struct freed) == 48, "freed");
_Static_assert(sizeof(struct allocated) == 96, "allocated");
_Static_assert(sizeof(struct allocated_in_node) == 120, "allocated_in_node");
_Static_assert(sizeof(struct stack_head) == 16, "stack_head");
_Static_assert(sizeof(struct small_stack) == 16 + 24 * FEW_FRAMES, "small_stack");
_Static_assert(sizeof(struct code_record) == 64 + CHUNK * (OBJECT_CHUNKS + NAME_CHUNKS + FILE_CHUNKS + TABLE_CHUNKS), "code_record");
_Static_assert(sizeof(struct code_freed) == 16, "code_freed");
_Static_assert(sizeof(struct step) == 32, "step");
