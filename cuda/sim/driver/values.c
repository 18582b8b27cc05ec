/* The values in device memory: kernels compute nothing, so most have no meaning.
 *
 * A recycled block has stale bytes that a kernel should have overwritten; read as data they became
 * tensor sizes of billions of rows. So by default a copied-in value is believed only until the next
 * kernel launch, and everything else reads as zero. */
#include <pthread.h>
#include <string.h>

#include "device.h"

#define FRESH_RANGES 64

static struct { const char *start; size_t bytes; uint64_t launches; } fresh[FRESH_RANGES];
static unsigned fresh_next;
static uint64_t launches;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

API void sim_kernel_ran(void) {
  SIM_CALL;
  sim_context_load_code();
  __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
}

static void remember(const void *start, size_t bytes) {
  pthread_mutex_lock(&lock);
  unsigned at = fresh_next++ % FRESH_RANGES;
  fresh[at].start = start;
  fresh[at].bytes = bytes;
  fresh[at].launches = __atomic_load_n(&launches, __ATOMIC_RELAXED);
  pthread_mutex_unlock(&lock);
}

static int is_fresh(const char *start, size_t bytes) {
  int found = 0;
  uint64_t now = __atomic_load_n(&launches, __ATOMIC_RELAXED);
  pthread_mutex_lock(&lock);
  for (int i = 0; i < FRESH_RANGES && !found; i++)
    found = fresh[i].launches == now && start >= fresh[i].start && start + bytes <= fresh[i].start + fresh[i].bytes;
  pthread_mutex_unlock(&lock);
  return found;
}

API void sim_copy(void *to, const void *from, size_t bytes) {
  SIM_CALL;
  const struct SimConfig *config = sim_config();
  int to_device = sim_is_device_address(to), from_device = sim_is_device_address(from);
  if (!to_device && !from_device) {
    memmove(to, from, bytes);
    return;
  }
  int believed = !from_device || config->values == VALUES_COPY ||
                 (config->values == VALUES_FRESH && is_fresh(from, bytes));
  if (to_device) {
    /* Beyond copy_max the values are dropped, so that simulated gigabytes do not become real
     * ones. */
    if (!believed || config->values == VALUES_ZERO || bytes > config->copy_max) return;
    memmove(to, from, bytes);
    if (config->values == VALUES_FRESH) remember(to, bytes);
  } else if (believed) {
    size_t real = bytes < config->copy_max ? bytes : config->copy_max;
    memcpy(to, from, real);
    memset((char *)to + real, 0, bytes - real);
  } else {
    sim_host_reads(bytes);
    memset(to, 0, bytes);
  }
}

API void sim_set(void *to, int value, size_t bytes) {
  SIM_CALL;
  const struct SimConfig *config = sim_config();
  if (!sim_is_device_address(to)) {
    memset(to, value, bytes);
    return;
  }
  if (config->values == VALUES_ZERO || bytes > config->copy_max) return;
  /* Zero is what unbelieved memory reads as anyway: no need to touch megabytes of real memory for
   * it. */
  if (value == 0 && bytes > (1u << 20) && config->values == VALUES_FRESH) {
    /* as after a kernel: nothing is believed any more */
    __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    return;
  }
  memset(to, value, bytes);
  if (config->values == VALUES_FRESH) remember(to, bytes);
}
