// What two processes of one host can do without torch: the yardstick for
// p2p.py.
//
//   shm_limit MODE BYTES COUNT fresh|still
//
// One-way times (half a round trip) in microseconds, as one line of JSON.
// Modes:
//   ring     copy into a slot of shared memory, flag, copy out
//   segment  the same in pipelined pieces, filled with streaming stores
//   read     the receiver copies everything with process_vm_readv
//   write    the sender copies everything with process_vm_writev
//   both     both ends copy: the receiver from the front, the sender from the
//            back, pieces claimed from a shared counter
//   wake     eventfd: from the write to the moment the sleeper runs
// fresh: a process sends back the buffer it has just received, so the data is
// in the other core's caches, as it is when a program has computed it. still:
// the source is never written again and the destination never read.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum { kSegmentBytes = 512 * 1024, kSlotBytes = 32 * 1024, kWarmUp = 3 };

// One counter a cache line pair: adjacent-line prefetch makes 64 too few.
typedef struct {
  _Alignas(128) _Atomic uint64_t value;
} Line;

typedef struct {
  Line ready[2]; // barrier
  Line announced; // number of the newest message
  Line claimed; // pieces taken, of the newest message
  Line copied[2]; // newest message whose pieces of this process are done
  Line head[2], tail[2]; // slots written by and read from process i
  uint64_t source[2], destination[2];
  pid_t pid[2];
  int event[2];
} Shared;

typedef struct {
  Shared* shared;
  char* segment[2]; // written by process i
  char* source;
  char* destination;
  uint64_t peerSource, peerDestination;
  pid_t peerPid;
  int me;
  uint64_t barriers, message, slot[2];
  size_t bytes;
} Process;

typedef void (*OneWay)(Process*, int sender);

static double nowUs(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void die(const char* what) {
  fprintf(stderr, "shm_limit: %s: %s\n", what, strerror(errno));
  exit(2);
}

// Spins, and lets go of the processor now and then: both ends may share one.
static void waitFor(_Atomic uint64_t* value, uint64_t least) {
  for (unsigned spins = 1;
       atomic_load_explicit(value, memory_order_acquire) < least;
       spins++) {
#ifdef __SSE2__
    _mm_pause();
#endif
    if (spins % 4096 == 0) {
      sched_yield();
    }
  }
}

static void post(_Atomic uint64_t* value, uint64_t now) {
  atomic_store_explicit(value, now, memory_order_release);
}

static void barrier(Process* p) {
  p->barriers++;
  post(&p->shared->ready[p->me].value, p->barriers);
  waitFor(&p->shared->ready[1 - p->me].value, p->barriers);
}

// Streaming stores put the lines into memory. With ordinary ones they stay in
// this core's cache, from where another core complex gets 2 GB/s.
static void streamCopy(char* to, const char* from, size_t bytes) {
  size_t done = 0;
#ifdef __SSE2__
  for (; done + 64 <= bytes; done += 64) {
    const __m128i* in = (const __m128i*)(from + done);
    __m128i* out = (__m128i*)(to + done);
    __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
    __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();
#endif
  memcpy(to + done, from + done, bytes - done);
}

static void throughSlots(Process* p, int sender, size_t slotBytes, int stream) {
  size_t slots = kSegmentBytes / slotBytes;
  Shared* s = p->shared;
  for (size_t at = 0; at < p->bytes; at += slotBytes) {
    size_t n = p->bytes - at < slotBytes ? p->bytes - at : slotBytes;
    uint64_t slot = p->slot[sender]++;
    char* memory = p->segment[sender] + (slot % slots) * slotBytes;
    if (p->me == sender) {
      if (slot >= slots) {
        waitFor(&s->tail[sender].value, slot - slots + 1);
      }
      if (stream) {
        streamCopy(memory, p->source + at, n);
      } else {
        memcpy(memory, p->source + at, n);
      }
      post(&s->head[sender].value, slot + 1);
    } else {
      waitFor(&s->head[sender].value, slot + 1);
      memcpy(p->destination + at, memory, n);
      post(&s->tail[sender].value, slot + 1);
    }
  }
}

static void byRing(Process* p, int sender) {
  throughSlots(p, sender, (p->bytes + 4095) / 4096 * 4096, 0);
}

static void bySegment(Process* p, int sender) {
  throughSlots(p, sender, kSlotBytes, 1);
}

static void vmCopy(Process* p, int write, size_t at, size_t bytes) {
  while (bytes > 0) {
    struct iovec local = {(write ? p->source : p->destination) + at, bytes};
    uint64_t there = (write ? p->peerDestination : p->peerSource) + at;
    struct iovec remote = {(void*)(uintptr_t)there, bytes};
    ssize_t n = write ? process_vm_writev(p->peerPid, &local, 1, &remote, 1, 0)
                      : process_vm_readv(p->peerPid, &local, 1, &remote, 1, 0);
    if (n <= 0) {
      die(write ? "process_vm_writev" : "process_vm_readv");
    }
    at += (size_t)n;
    bytes -= (size_t)n;
  }
}

static void byRead(Process* p, int sender) {
  p->message++;
  if (p->me == sender) {
    post(&p->shared->announced.value, p->message);
    waitFor(&p->shared->copied[1 - sender].value, p->message);
  } else {
    waitFor(&p->shared->announced.value, p->message);
    vmCopy(p, 0, 0, p->bytes);
    post(&p->shared->copied[p->me].value, p->message);
  }
}

static void byWrite(Process* p, int sender) {
  p->message++;
  if (p->me == sender) {
    vmCopy(p, 1, 0, p->bytes);
    post(&p->shared->copied[sender].value, p->message);
  } else {
    waitFor(&p->shared->copied[sender].value, p->message);
  }
}

// Measured: two pieces are best up to 1 MiB, 512 KiB to 4 MiB beyond it.
static size_t pieceBytes(size_t bytes) {
  size_t half = (bytes / 2 + 4095) / 4096 * 4096;
  size_t piece = (size_t)(bytes < (32U << 20) ? 512 : 2048) << 10;
  return half < piece ? half : piece;
}

static void byBoth(Process* p, int sender) {
  Shared* s = p->shared;
  size_t piece = pieceBytes(p->bytes);
  size_t pieces = (p->bytes + piece - 1) / piece;
  int write = p->me == sender;
  p->message++;
  if (write) {
    atomic_store_explicit(&s->claimed.value, 0, memory_order_relaxed);
    post(&s->announced.value, p->message);
  } else {
    waitFor(&s->announced.value, p->message);
  }
  for (size_t mine = 0; atomic_fetch_add(&s->claimed.value, 1) < pieces;
       mine++) {
    size_t at = (write ? pieces - 1 - mine : mine) * piece;
    vmCopy(p, write, at, p->bytes - at < piece ? p->bytes - at : piece);
  }
  post(&s->copied[p->me].value, p->message);
  waitFor(&s->copied[1 - p->me].value, p->message);
}

static void byEvent(Process* p, int sender) {
  uint64_t one = 1;
  int event = p->shared->event[sender];
  ssize_t n = p->me == sender ? write(event, &one, sizeof one)
                              : read(event, &one, sizeof one);
  if (n != sizeof one) {
    die("eventfd");
  }
}

static OneWay modeNamed(const char* name) {
  static const struct {
    const char* name;
    OneWay function;
  } kModes[] = {
      {"ring", byRing},
      {"segment", bySegment},
      {"read", byRead},
      {"write", byWrite},
      {"both", byBoth},
      {"wake", byEvent}};
  for (size_t i = 0; i < sizeof kModes / sizeof kModes[0]; i++) {
    if (strcmp(kModes[i].name, name) == 0) {
      return kModes[i].function;
    }
  }
  return NULL;
}

static void* map(size_t bytes, int flags) {
  void* memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
  if (memory == MAP_FAILED) {
    die("mmap");
  }
  return memory;
}

// 64 bytes past a page, where torch's allocations of this size begin.
static char* buffer(size_t bytes, int value) {
  char* memory = (char*)map(bytes + 64, MAP_PRIVATE) + 64;
  memset(memory, value, bytes);
  return memory;
}

// Process 0 on the first processor this program may use, 1 on the second.
static void pin(int me) {
  cpu_set_t allowed, mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    die("sched_getaffinity");
  }
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (CPU_ISSET(cpu, &allowed) && seen++ == me) {
      CPU_SET(cpu, &mine);
      sched_setaffinity(0, sizeof mine, &mine);
      return;
    }
  }
}

static void prepare(Process* p, int fresh) {
  Shared* s = p->shared;
  pin(p->me);
  p->destination = buffer(p->bytes, 'd');
  p->source = fresh ? p->destination : buffer(p->bytes, 's');
  s->source[p->me] = (uint64_t)(uintptr_t)p->source;
  s->destination[p->me] = (uint64_t)(uintptr_t)p->destination;
  s->pid[p->me] = getpid();
  barrier(p);
  p->peerPid = s->pid[1 - p->me];
  p->peerSource = s->source[1 - p->me];
  p->peerDestination = s->destination[1 - p->me];
}

static int ascending(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static void run(Process* p, OneWay oneWay, size_t count, double* samples) {
  for (size_t i = 0; i < count + kWarmUp; i++) {
    double start = nowUs();
    oneWay(p, 0);
    oneWay(p, 1);
    if (i >= kWarmUp) {
      samples[i - kWarmUp] = (nowUs() - start) / 2;
    }
  }
  barrier(p);
}

int main(int argc, char** argv) {
  OneWay oneWay = argc == 5 ? modeNamed(argv[1]) : NULL;
  size_t count = oneWay ? strtoull(argv[3], NULL, 10) : 0;
  size_t bytes = oneWay ? strtoull(argv[2], NULL, 10) : 0;
  if (count == 0 || bytes == 0 || (oneWay == byRing && bytes > kSegmentBytes)) {
    fprintf(
        stderr,
        "usage: shm_limit ring|segment|read|write|both|wake BYTES COUNT "
        "fresh|still (ring: at most 512 KiB)\n");
    return 2;
  }
  Process p = {.bytes = bytes};
  p.shared = map(sizeof(Shared), MAP_SHARED);
  for (int i = 0; i < 2; i++) {
    p.segment[i] = map(kSegmentBytes, MAP_SHARED | MAP_POPULATE);
    p.shared->event[i] = eventfd(0, 0);
  }
  double* samples = map(count * sizeof(double), MAP_PRIVATE);
  pid_t parent = getpid();
  pid_t child = fork();
  if (child < 0) {
    die("fork");
  }
  p.me = child == 0;
  if (p.me == 1 &&
      (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) {
    return 2;
  }
  prepare(&p, strcmp(argv[4], "fresh") == 0);
  run(&p, oneWay, count, samples);
  if (p.me == 1) {
    return 0;
  }
  waitpid(child, NULL, 0);
  qsort(samples, count, sizeof(double), ascending);
  printf(
      "{\"mode\": \"%s\", \"bytes\": %zu, \"median_us\": %.3f, "
      "\"best_us\": %.3f}\n",
      argv[1],
      bytes,
      samples[count / 2],
      samples[0]);
  return 0;
}
