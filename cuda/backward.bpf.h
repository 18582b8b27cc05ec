/* The autograd node that the calling thread evaluates: its class, the call of backward() it works
 * for, and the forward call that created it.
 *
 * libtorch_cpu keeps this in thread-local variables, in a block found through glibc's table of
 * blocks (the DTV). A node is identified by the number of its creating thread and a running number
 * there. */
#pragma once

/* abi::AutogradInfo */
volatile const u64 BW_MODULE; /* 0: unknown */
volatile const u64 BW_NODE, BW_GRAPH_TASK, BW_SEQUENCE, BW_THREAD_NUMBER;
volatile const u32 BW_HAS_GRAPH_TASK, BW_LINES, BW_NODE_SEQUENCE, BW_NODE_THREAD, BW_NODE_OBJECT;
volatile const u32 BW_TASK_REGISTER; /* index into pt_regs */

/* The vtable of nodes written in Python; 0 until one was met. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} PY_NODE SEC(".maps");

struct node_id {
	u64 thread, sequence;
};
/* Stacks of the forward calls that created nodes, for a few iterations of a large model. */
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, struct node_id);
	__type(value, u64);
} FORWARD SEC(".maps");
/* Stacks of the calls of backward(), by GraphTask. */
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, u64);
} BACKWARD SEC(".maps");

struct node {
	u64 vtable, python_type, forward;
	u64 backward; /* stack of the call of backward() */
};

/* Only the head of a node is read: vtable and numbers, the same in both layouts. */
#define NODE_HEAD 56
/* dtv[-1]: the number of modules it has room for; entries of 16 bytes (glibc,
 * sysdeps/generic/dl-dtv.h). */
#define DTV_ENTRY 16
#define TCB_DTV 8

/* Modules near the table's beginning, as a program's libraries are: their entry is read with the
 * length. */
#define NEAR_MODULES 14

static __always_inline u64 tls_block(u64 fs)
{
	u64 dtv = read_word(fs + TCB_DTV), length, block;
	if (BW_MODULE <= NEAR_MODULES) {
		u64 words[2 * (NEAR_MODULES + 2)];
		if (!dtv || bpf_probe_read_user(words, DTV_ENTRY * (BW_MODULE + 2), (void *)(dtv - DTV_ENTRY)))
			return 0;
		length = words[0];
		block = words[2 * (BW_MODULE + 1)];
	} else {
		length = read_word(dtv - DTV_ENTRY);
		block = read_word(dtv + DTV_ENTRY * BW_MODULE);
	}
	if (length < BW_MODULE)
		return 0;
	return block + 1 < 2 ? 0 : block; /* -1: not allocated yet */
}

static __always_inline u64 forward_of(u64 thread, u64 sequence)
{
	struct node_id id = { thread, sequence };
	u64 *stack = bpf_map_lookup_elem(&FORWARD, &id);
	return stack ? *stack : 0;
}

/* The node that the thread with this pthread_self() evaluates; 0: none. */
static __always_inline int current_node(u64 fs, struct node *out)
{
	u64 block = tls_block(fs);
	if (!block)
		return 0;
	if (BW_HAS_GRAPH_TASK) {
		u64 task = read_word(block + BW_GRAPH_TASK);
		u64 *stack = task ? bpf_map_lookup_elem(&BACKWARD, &task) : 0;
		out->backward = stack ? *stack : 0;
	}
	u64 node = read_word(block + BW_NODE);
	if (!node)
		return 0;
	u8 head[NODE_HEAD] __attribute__((aligned(8)));
	if (bpf_probe_read_user(head, sizeof head, (void *)node))
		return 0;
	out->vtable = *(u64 *)head;
	u32 zero = 0;
	u64 *py_node = bpf_map_lookup_elem(&PY_NODE, &zero);
	if (py_node && *py_node == out->vtable)
		out->python_type = read_word(read_word(node + BW_NODE_OBJECT) + WALK.object_class);
	if (BW_LINES)
		out->forward = forward_of(*(u64 *)(head + BW_NODE_THREAD), *(u64 *)(head + BW_NODE_SEQUENCE));
	return 1;
}

/* Whether the calling thread evaluates a node; like allocations, without checking the main
 * thread. */
static __always_inline int evaluates_node(void)
{
	u64 id = bpf_get_current_pid_tgid();
	if (!BW_MODULE || (u32)id == id >> 32)
		return 0;
	u64 block = tls_block(fs_base());
	return block && read_word(block + BW_NODE);
}

/* The calling thread's own Python stack; 0: none. */
static __always_inline u64 own_stack(u64 fs)
{
	u64 thread = thread_state(fs);
	u64 frame = thread ? innermost_frame(thread) : 0;
	return frame ? key_of_stack(frame) : 0;
}

/* at::sequence_number::get_and_increment(): a forward node is being created. */
static __always_inline int on_forward_node(struct pt_regs *ctx)
{
	u64 fs = fs_base(), block = tls_block(fs);
	if (!block)
		return 0;
	struct node_id id = { read_word(block + BW_THREAD_NUMBER), read_word(block + BW_SEQUENCE) };
	u64 stack = own_stack(fs);
	if (!stack) {
		/* Created by a backward node (double backward): it belongs to that node's forward
		 * call. */
		struct node n = {};
		current_node(fs, &n);
		stack = n.forward;
	}
	if (stack)
		bpf_map_update_elem(&FORWARD, &id, &stack, BPF_ANY);
	return 0;
}

/* Engine::execute_with_graph_task(): backward() was called. */
static __always_inline int on_backward_call(struct pt_regs *ctx)
{
	u64 fs = fs_base(), task = read_word(register_of(ctx, BW_TASK_REGISTER));
	u64 stack = own_stack(fs);
	if (!stack) {
		/* Called by a node: it works for that node's caller. */
		struct node n = {};
		current_node(fs, &n);
		stack = n.backward;
	}
	if (task && stack)
		bpf_map_update_elem(&BACKWARD, &task, &stack, BPF_ANY);
	return 0;
}

PROGRAM(forward_node, on_forward_node(ctx))
PROGRAM(backward_call, on_backward_call(ctx))
