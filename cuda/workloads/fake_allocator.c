/* An allocator without a GPU that has the same probes as PyTorch's: `pytorch:malloc` and
 * `pytorch:free` with a semaphore each. Python programs call it through ctypes, to test stacks on
 * every CPython.
 *
 *   cc -O1 -g -shared -fPIC -o libc10_cuda_fake.so fake_allocator.c -lpthread
 *
 * Addresses come from a bump pointer and are reused, the last freed first, as in a caching
 * allocator. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>

/* Note format: <sys/sdt.h> of SystemTap. */
#define SEMAPHORE(name) __attribute__((section(".probes"), used)) volatile unsigned short name
SEMAPHORE(torch_sdt_semaphore_malloc);
SEMAPHORE(torch_sdt_semaphore_free);
#define PROBE(name, arguments, ...)                                                                   \
	__asm__ volatile("990: nop\n"                                                                 \
			 ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                 \
			 ".balign 4\n"                                                                 \
			 ".4byte 992f-991f, 994f-993f, 3\n"                                            \
			 "991: .asciz \"stapsdt\"\n"                                                   \
			 "992: .balign 4\n"                                                            \
			 "993: .8byte 990b\n"                                                          \
			 ".8byte _.stapsdt.base\n"                                                     \
			 ".8byte torch_sdt_semaphore_" #name "\n"                                      \
			 ".asciz \"pytorch\"\n"                                                        \
			 ".asciz \"" #name "\"\n"                                                      \
			 ".asciz \"" arguments "\"\n"                                                  \
			 "994: .balign 4\n"                                                            \
			 ".popsection\n"                                                               \
			 ".ifndef _.stapsdt.base\n"                                                    \
			 ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"       \
			 ".weak _.stapsdt.base\n"                                                      \
			 ".hidden _.stapsdt.base\n"                                                    \
			 "_.stapsdt.base: .space 1\n"                                                  \
			 ".size _.stapsdt.base, 1\n"                                                   \
			 ".popsection\n"                                                               \
			 ".endif\n" ::__VA_ARGS__)

#define KEPT 4096
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long next = 0x700000000000ull;
static struct {
	unsigned long long at;
	size_t size;
} free_blocks[KEPT];
static int kept;

unsigned long long fake_malloc(long long size)
{
	unsigned long long at = 0;
	pthread_mutex_lock(&lock);
	for (int i = kept - 1; i >= 0 && !at; i--)
		if (free_blocks[i].size == (size_t)size) {
			at = free_blocks[i].at;
			free_blocks[i] = free_blocks[--kept];
		}
	if (!at) {
		at = next;
		next += ((size_t)size + 511) / 512 * 512;
	}
	pthread_mutex_unlock(&lock);
	signed char device = 3;
	unsigned long long stream = 0;
	if (torch_sdt_semaphore_malloc)
		PROBE(malloc, "-8@%[ptr] -1@%b[device] -8@%[size] -8@%[stream]",
		      [ptr] "r"(at), [device] "q"(device), [size] "m"(size), [stream] "r"(stream));
	return at;
}

void fake_free(unsigned long long at, long long size)
{
	if (torch_sdt_semaphore_free)
		PROBE(free, "-8@%[ptr]", [ptr] "r"(at));
	pthread_mutex_lock(&lock);
	if (kept < KEPT) {
		free_blocks[kept].at = at;
		free_blocks[kept++].size = size;
	}
	pthread_mutex_unlock(&lock);
}

static void *allocate(void *count)
{
	for (long i = 0; i < (long)count; i++)
		fake_free(fake_malloc(4096 + i % 8 * 512), 4096 + i % 8 * 512);
	return 0;
}

/* `count` allocations and frees by a thread unknown to Python. */
void fake_in_c_thread(long count)
{
	pthread_t thread;
	pthread_create(&thread, 0, allocate, (void *)count);
	pthread_setname_np(thread, "c-allocator");
	pthread_join(thread, 0);
}
