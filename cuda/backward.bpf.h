#pragma once
struct node { u64 vtable, python_type, forward, graph_task_stack; };
volatile const u64 BW_MODULE;
static __always_inline int current_node(u64 fs, struct node *out) { return 0; }
