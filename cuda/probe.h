/* What cuda/probe.bpf.c writes into its ring, read by src/probe/ring.rs: little-endian, no padding but as written.
 * The asserts here and the constants there hold the same numbers. */
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

/* model::Arena and model::FreedArena, without the device. */
enum arena { ARENA_TORCH, ARENA_DRIVER, ARENA_PHYSICAL, ARENA_MAPPING, ARENA_MANAGED, ARENA_PINNED };

/* model::Mark. */
enum mark { MARK_CONTEXT, MARK_MODULE, MARK_LIBRARY };

/* model::StackSource. */
enum source { SOURCE_OWN, SOURCE_BACKWARD, SOURCE_BORROWED, SOURCE_NO_PYTHON, SOURCE_NOT_TAKEN, SOURCE_UNKNOWN };

enum {
	FLAG_TRUNCATED = 1, /* deeper than MOST_FRAMES */
	FLAG_FAULTED = 2,   /* a page was not in memory */
	FLAG_LEVELS = 4,    /* the counters are there */
	FLAG_NODE = 8,      /* the node is there */
	FLAG_IN_BACKWARD = 16, /* freed while a node was evaluated */
};

#define NO_DEVICE 0xff

/* Who did it: common to all events. */
struct who {
	u8 kind, arena, device, source;
	u8 flags, mark;
	u16 code; /* CUresult of a failure */
	u32 thread;
	u32 native; /* number of the native stack of an allocation; 0: none was asked for */
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
	u64 block;     /* bytes that the block takes; 0: not known */
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
 * an address that is a multiple of CHUNK. */
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

/* A step of training, before the event at which it was first seen. */
struct step {
	u8 kind;
	u8 is_first; /* the first seen in this place: it may have begun before */
	u16 unused;
	u32 number;  /* of the place */
	u64 time;
	u64 step, epoch; /* as they lie there */
};

/* The registers of a thread that stands in a probe, and the innermost part of its stack, for unwinding frames of C and
 * C++ code. In a ring of its own: a copy that finds no room never takes that of an event. */
#define DWARF_REGISTERS 17
#define NATIVE_STACK_LOST 0xffffffff

struct native_stack_head {
	u8 kind, unused[3];
	u32 number;
	u32 len;    /* bytes copied */
	u32 wanted; /* bytes that the stack has, as far as that is known */
	u64 registers[DWARF_REGISTERS]; /* by their numbers in DWARF */
};

_Static_assert(sizeof(struct native_stack_head) == 152, "native_stack_head");
_Static_assert(sizeof(struct who) == 40, "who");
_Static_assert(sizeof(struct freed) == 48, "freed");
_Static_assert(sizeof(struct allocated) == 96, "allocated");
_Static_assert(sizeof(struct allocated_in_node) == 120, "allocated_in_node");
_Static_assert(sizeof(struct stack_head) == 16, "stack_head");
_Static_assert(sizeof(struct small_stack) == 16 + 16 * FEW_FRAMES, "small_stack");
_Static_assert(sizeof(struct code_record) == 64 + CHUNK * (OBJECT_CHUNKS + NAME_CHUNKS + FILE_CHUNKS + TABLE_CHUNKS), "code_record");
_Static_assert(sizeof(struct code_freed) == 16, "code_freed");
_Static_assert(sizeof(struct step) == 32, "step");
