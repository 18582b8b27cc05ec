/* The memory of the cards: each process's bytes on each device, shared through a file.
 *
 * Processes with the same SIM_CUDA_STATE file share the cards; the first one to open it while no
 * other lives sets their number and size. A live process holds a record lock on its slot, which the
 * kernel drops at its death. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

#define SLOTS 256
#define MAGIC 0x33444d4953594d53ull /* "SMYSIMD3" */

struct Slot {
  int32_t pid;   /* 0 = free */
  int32_t state; /* enum SimState; set by whoever checkpoints the process */
  int32_t inside;    /* calls in progress */
  uint32_t drain_ms; /* how long its queued work keeps a lock waiting (SIM_CUDA_DRAIN_MS) */
  uint64_t used[SIM_MAX_DEVICES];
  uint64_t parked[SIM_MAX_DEVICES]; /* bytes removed from the card by a checkpoint */
  uint64_t peak[SIM_MAX_DEVICES];   /* the highest of `used` */
};

struct Card {
  uint64_t magic;
  int32_t device_count, cc_major, cc_minor, reserved;
  uint64_t total_bytes;
  struct Slot slots[SLOTS];
};

static struct Card *card;
static struct Slot *mine;
static int state_fd = -1;
static uint64_t total_bytes;
static pthread_mutex_t claiming = PTHREAD_MUTEX_INITIALIZER;

/* Locks or queries one byte per slot. Record locks, not OFD locks: a forked child must not
 * inherit. */
static int slot_lock(int index, int command, short type) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = index, .l_len = 1};
  if (fcntl(state_fd, command, &lock)) return -1;
  return lock.l_type;
}

static int slot_alive(int index) {
  struct Slot *slot = &card->slots[index];
  if (!__atomic_load_n(&slot->pid, __ATOMIC_ACQUIRE)) return 0;
  return slot == mine || (state_fd >= 0 && slot_lock(index, F_GETLK, F_WRLCK) == F_WRLCK);
}

static void leave(void) {
  if (!mine || mine->pid != getpid()) return;
  memset(mine->used, 0, sizeof mine->used);
  __atomic_store_n(&mine->pid, 0, __ATOMIC_RELEASE);
}

/* Our slot, taken when the first byte is charged: a reader such as a profiler takes none. */
static struct Slot *claim(void) {
  pthread_mutex_lock(&claiming);
  for (int i = 0; i < SLOTS && !mine; i++) {
    if (state_fd >= 0 && slot_lock(i, F_SETLK, F_WRLCK) < 0) continue;
    struct Slot *slot = &card->slots[i];
    memset(slot, 0, sizeof *slot);
    slot->drain_ms = (uint32_t)sim_config()->drain_ms;
    mine = slot;
    __atomic_store_n(&mine->pid, getpid(), __ATOMIC_RELEASE);
    static int registered;
    if (!registered++) atexit(leave);
  }
  pthread_mutex_unlock(&claiming);
  if (!mine) {
    fprintf(stderr, "simulated CUDA: more than %d processes on one card\n", SLOTS);
    abort();
  }
  return mine;
}

void card_open(struct SimConfig *config) {
  const char *path = getenv("SIM_CUDA_STATE");
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (path && *path) {
    state_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (state_fd < 0 || flock(state_fd, LOCK_EX) || ftruncate(state_fd, sizeof *card)) {
      fprintf(stderr, "simulated CUDA: SIM_CUDA_STATE=%s: %s\n", path, strerror(errno));
      exit(1);
    }
    flags = MAP_SHARED;
  }
  card = mmap(NULL, sizeof *card, PROT_READ | PROT_WRITE, flags, state_fd, 0);
  if (card == MAP_FAILED) {
    perror("simulated CUDA: state");
    exit(1);
  }
  int inhabited = 0;
  for (int i = 0; i < SLOTS && card->magic == MAGIC && !inhabited; i++) inhabited = slot_alive(i);
  if (inhabited) {
    config->device_count = card->device_count;
    config->cc_major = card->cc_major;
    config->cc_minor = card->cc_minor;
    config->total_bytes = card->total_bytes;
  } else {
    memset(card, 0, sizeof *card);
    *card = (struct Card){.magic = MAGIC, .device_count = config->device_count, .cc_major = config->cc_major,
                          .cc_minor = config->cc_minor, .total_bytes = config->total_bytes};
  }
  total_bytes = config->total_bytes;
  if (state_fd >= 0) flock(state_fd, LOCK_UN);
}

API uint64_t card_used(int device) {
  sim_config();
  uint64_t sum = 0;
  for (int i = 0; i < SLOTS; i++)
    if (slot_alive(i)) sum += __atomic_load_n(&card->slots[i].used[device], __ATOMIC_RELAXED);
  return sum;
}

/* Two processes may both pass the check for the last bytes; a simulated card then runs a little
 * over. */
int card_charge(int device, uint64_t bytes) {
  struct Slot *slot = mine ? mine : claim();
  if (card_used(device) + bytes > total_bytes) return SIM_OUT_OF_MEMORY;
  uint64_t now = __atomic_add_fetch(&slot->used[device], bytes, __ATOMIC_RELAXED);
  uint64_t peak = __atomic_load_n(&slot->peak[device], __ATOMIC_RELAXED);
  while (now > peak && !__atomic_compare_exchange_n(&slot->peak[device], &peak, now, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return SIM_OK;
}

API uint64_t sim_process_peak(int device) {
  return mine && device >= 0 && device < SIM_MAX_DEVICES ? __atomic_load_n(&mine->peak[device], __ATOMIC_RELAXED) : 0;
}

void card_uncharge(int device, uint64_t bytes) {
  if (mine) __atomic_fetch_sub(&mine->used[device], bytes, __ATOMIC_RELAXED);
}

API int card_processes(int device, int *pids, uint64_t *used, int capacity) {
  sim_config();
  int count = 0;
  for (int i = 0; i < SLOTS; i++) {
    uint64_t bytes = card->slots[i].used[device];
    if (!bytes || !slot_alive(i)) continue;
    if (count < capacity) {
      pids[count] = card->slots[i].pid;
      used[count] = bytes;
    }
    count++;
  }
  return count;
}

void card_forget_process(void) { mine = NULL; }

/* ---- checkpoints: lock a process, take it off the card, put it back and unlock it, from outside
 * ---- */

struct Slot *card_slot(int pid) {
  sim_config();
  for (int i = 0; i < SLOTS; i++)
    if (card->slots[i].pid == pid && slot_alive(i)) return &card->slots[i];
  return NULL;
}
int card_state(struct Slot *slot) { return __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE); }
void card_set_state(struct Slot *slot, int state) { __atomic_store_n(&slot->state, state, __ATOMIC_SEQ_CST); }
int card_is_drained(struct Slot *slot, unsigned waited_ms) {
  return waited_ms >= slot->drain_ms && !__atomic_load_n(&slot->inside, __ATOMIC_SEQ_CST);
}

void card_park(struct Slot *slot) {
  for (int i = 0; i < SIM_MAX_DEVICES; i++) slot->parked[i] = __atomic_exchange_n(&slot->used[i], 0, __ATOMIC_SEQ_CST);
}

int card_unpark(struct Slot *slot) {
  for (int i = 0; i < SIM_MAX_DEVICES; i++)
    if (slot->parked[i] && card_used(i) + slot->parked[i] > card->total_bytes) return SIM_OUT_OF_MEMORY;
  for (int i = 0; i < SIM_MAX_DEVICES; i++)
    __atomic_fetch_add(&slot->used[i], __atomic_exchange_n(&slot->parked[i], 0, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
  return SIM_OK;
}

/* Calls wait here while the process is not running. Only the outermost of nested calls counts. */
static __thread int depth;

API int sim_enter(void) {
  if (depth++ || !mine) return 0;
  for (struct timespec pause = {.tv_nsec = 1000000};; nanosleep(&pause, NULL)) {
    __atomic_fetch_add(&mine->inside, 1, __ATOMIC_SEQ_CST);
    if (card_state(mine) == STATE_RUNNING) return 1;
    __atomic_fetch_sub(&mine->inside, 1, __ATOMIC_SEQ_CST);
  }
}
API void sim_leave(int *entered) {
  depth--;
  if (*entered && mine) __atomic_fetch_sub(&mine->inside, 1, __ATOMIC_SEQ_CST);
}
