/* The device model behind every simulated library: configuration, the shared card, the address
 * space. */
#pragma once
#include "abi.h"

#define SIM_MAX_DEVICES 16

/* Values of device memory when copied back to the host. */
enum SimValues {
  VALUES_ZERO,  /* always zero */
  VALUES_FRESH, /* what was copied in, until the next kernel launch; zero afterwards */
  VALUES_COPY,  /* whatever bytes are there, stale ones included */
};

struct SimConfig {
  int device_count;
  uint64_t total_bytes, context_bytes, code_bytes, copy_max;
  uint64_t fail_alloc_n; /* the n-th device allocation of the process fails once; 0 = never */
  int alloc_ms;          /* how long a device allocation takes after its memory is taken */
  int drain_ms;          /* how long queued work keeps a checkpoint's lock waiting */
  int busy_queries;      /* how often an event or stream says "not ready" after work was queued */
  int cc_major, cc_minor, multiprocessors;
  int trace;
  const char *name;        /* of the cards */
  const char *driver;      /* its version in NVML */
  const char *nvml_absent; /* comma-separated names of "not supported" NVML calls */
  /* added to the pids that NVML lists, as if they were another namespace's */
  int nvml_pid_offset;
  int mig;                 /* MIG devices on each card; 0: MIG is off */
  enum SimValues values;
};

/* config.c */
const struct SimConfig *sim_config(void); /* also initialises the whole model, once */
int sim_unsupported(const char *name, int code);
/* among comma-separated words; NULL has none */
int sim_is_listed(const char *words, const char *word);
#define SIM_TRACE(...) \
  do { if (sim_config()->trace > 1) sim_trace(__VA_ARGS__); } while (0)
void sim_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* card.c: bytes in use per device and process, shared between processes through SIM_CUDA_STATE */
void card_open(struct SimConfig *config);
int card_charge(int device, uint64_t bytes); /* SIM_OK or SIM_OUT_OF_MEMORY */
void card_uncharge(int device, uint64_t bytes);
uint64_t card_used(int device);
uint64_t sim_process_peak(int device); /* the most bytes that this process has held */
int card_processes(int device, int *pids, uint64_t *used, int capacity);
void card_forget_process(void); /* in a forked child: the parent's bytes are not ours */
/* The effect of a checkpoint on a process, from any process on the card; CUprocessState. */
enum SimState { STATE_RUNNING, STATE_LOCKED, STATE_CHECKPOINTED, STATE_FAILED };
struct Slot;
struct Slot *card_slot(int pid); /* NULL: it holds nothing of the card */
int card_state(struct Slot *slot);
void card_set_state(struct Slot *slot, int state);
int card_is_drained(struct Slot *slot, unsigned waited_ms); /* no call or queued work in progress */
void card_park(struct Slot *slot);  /* its bytes leave the card */
int card_unpark(struct Slot *slot); /* and come back: SIM_OK or SIM_OUT_OF_MEMORY */
/* Opens a function that a locked process may not enter. */
#define SIM_CALL __attribute__((cleanup(sim_leave), unused)) int sim_entered = sim_enter()
int sim_enter(void);
void sim_leave(int *entered);

/* context.c */
int sim_current_device(void);
int sim_set_current_device(int device);
int sim_context(int device); /* create the primary context; charges its bytes the first time */
void sim_context_load_code(void);
void sim_context_forget(void);
int sim_attribute(int attribute, int device);

/* space.c: one address space for all devices, as under CUDA's unified addressing */
enum RangeKind { RANGE_NONE, RANGE_ALLOCATION, RANGE_POOLED, RANGE_RESERVATION, RANGE_MAPPING, RANGE_HOST };
struct Range {
  uintptr_t start;
  size_t bytes;
  int device;
  enum RangeKind kind;
  uint64_t physical; /* of a mapping: the handle it maps */
};
#define SIM_PAGE (2ull << 20)
#define ROUND_UP(n, to) (((n) + (to) - 1) / (to) * (to))
void space_lock(void);
void space_unlock(void);
/* The caller holds the lock for the next five. */
uintptr_t space_place(uintptr_t low, uintptr_t high, size_t bytes, int protection);
void space_insert(struct Range range);
struct Range space_take(uintptr_t start, enum RangeKind kind); /* .kind is RANGE_NONE if absent */
struct Range space_take_inside(uintptr_t start, size_t bytes, enum RangeKind kind);
struct Range space_at(uintptr_t address);
/* These lock for themselves. */
struct Range sim_find(uintptr_t address);
int sim_allocate(int device, size_t bytes, enum RangeKind kind, void **out);
int sim_release(void *start);
int sim_host_allocate(size_t bytes, void **out);
int sim_is_device_address(const void *address);

/* places.c */
int places_exist(void);
size_t places_take(size_t bytes);

/* pool.c: the stream-ordered allocator (cudaMallocAsync) */
int sim_pool_allocate(int device, size_t bytes, void **out);
int sim_pool_release(void *start);
int sim_pool_trim(int device, uint64_t keep);
uint64_t sim_pool_get(int device, int attribute);
int sim_pool_set(int device, int attribute, uint64_t value);

/* values.c */
void sim_copy(void *to, const void *from, size_t bytes);
void sim_set(void *to, int value, size_t bytes);
void sim_kernel_ran(void);
/* host_read.c: called with an operation's name when the host reads a few bytes whose value is unknown. */
void sim_on_host_read(void (*callback)(const char *operation));
void sim_host_reads(size_t bytes);

/* entry.c */
void *sim_entry_point(const char *name);
