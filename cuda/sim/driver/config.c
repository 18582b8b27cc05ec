/* Reads the SIM_CUDA_* environment once and brings the device model up. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

static struct SimConfig config;

/* A byte count with an optional K, M or G after it; fractions ("1.5G") are allowed. */
static uint64_t bytes_from(const char *name, uint64_t otherwise) {
  const char *text = getenv(name);
  if (!text || !*text) return otherwise;
  char *end;
  double value = strtod(text, &end);
  switch (*end) {
    case 'k': case 'K': value *= 1ull << 10; break;
    case 'm': case 'M': value *= 1ull << 20; break;
    case 'g': case 'G': value *= 1ull << 30; break;
  }
  return end == text || value < 0 ? otherwise : (uint64_t)value;
}

static const char *text_from(const char *name, const char *otherwise) {
  const char *text = getenv(name);
  return text && *text ? text : otherwise;
}

static enum SimValues values_from(const char *text) {
  if (!text || !*text || !strcmp(text, "fresh")) return VALUES_FRESH;
  if (!strcmp(text, "zero")) return VALUES_ZERO;
  if (!strcmp(text, "copy")) return VALUES_COPY;
  fprintf(stderr, "simulated CUDA: SIM_CUDA_VALUES=%s is none of zero, fresh, copy; using fresh\n", text);
  return VALUES_FRESH;
}

/* CUDA contexts do not survive fork(): the child starts with none, and owes nothing. */
static void after_fork_in_child(void) {
  card_forget_process();
  sim_context_forget();
}

static void bring_up(void) {
  config.device_count = (int)bytes_from("SIM_CUDA_DEVICES", 1);
  if (config.device_count > SIM_MAX_DEVICES) config.device_count = SIM_MAX_DEVICES;
  config.total_bytes = bytes_from("SIM_CUDA_TOTAL_BYTES", 80ull << 30);
  /* Both measured on an H200 with driver 580: an empty context, and what the first kernels add to
   * it. */
  config.context_bytes = bytes_from("SIM_CUDA_CTX_BYTES", 552402944);
  config.code_bytes = bytes_from("SIM_CUDA_CODE_BYTES", 224ull << 20);
  config.copy_max = bytes_from("SIM_CUDA_COPY_MAX", 64ull << 20);
  config.fail_alloc_n = bytes_from("SIM_CUDA_FAIL_ALLOC_N", 0);
  config.alloc_ms = (int)bytes_from("SIM_CUDA_ALLOC_MS", 0);
  config.drain_ms = (int)bytes_from("SIM_CUDA_DRAIN_MS", 0);
  config.mig = (int)bytes_from("SIM_CUDA_MIG", 0);
  config.nvml_pid_offset = (int)bytes_from("SIM_NVML_PID_OFFSET", 0);
  config.name = text_from("SIM_CUDA_NAME", "NVIDIA H100 80GB HBM3 (simulated)");
  config.multiprocessors = (int)bytes_from("SIM_CUDA_SMS", 132);
  config.driver = text_from("SIM_CUDA_DRIVER", "580.00.00");
  config.nvml_absent = text_from("SIM_NVML_ABSENT", "");
  config.busy_queries = (int)bytes_from("SIM_CUDA_BUSY_QUERIES", 0);
  config.trace = (int)bytes_from("SIM_CUDA_TRACE", 0);
  config.values = values_from(getenv("SIM_CUDA_VALUES"));
  /* 9.0 by default: torch sizes its cuBLAS workspaces by architecture, and 9.0 agrees with an
   * H200. */
  config.cc_major = 9;
  config.cc_minor = 0;
  const char *cc = getenv("SIM_CUDA_CC");
  if (cc && *cc && sscanf(cc, "%d.%d", &config.cc_major, &config.cc_minor) < 1)
    fprintf(stderr, "simulated CUDA: SIM_CUDA_CC=%s is not MAJOR.MINOR; using 9.0\n", cc);
  card_open(&config);
  pthread_atfork(NULL, NULL, after_fork_in_child);
}

API const struct SimConfig *sim_config(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, bring_up);
  return &config;
}

API int sim_is_listed(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = words ? words : ""; *at; at += strcspn(at, ","), at += *at == ',')
    if (strcspn(at, ",") == length && !strncmp(at, word, length)) return 1;
  return 0;
}

API void sim_trace(const char *format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "[simulated CUDA %d] %s\n", getpid(), line);
}

/* Calls that nobody implemented end here: they print a message (SIM_CUDA_TRACE=1) and fail, so that
 * no caller uses an unwritten result. */
API int sim_unsupported(const char *name, int code) {
  if (sim_config()->trace > 0) sim_trace("%s is not simulated", name);
  return code;
}
