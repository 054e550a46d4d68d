// What two hosts can do with plain libibverbs: the limit that the RDMA route is held against.
//
//   cc -O2 -std=gnu11 rdma_limit.c -o rdma_limit -libverbs
//   rdma_limit MODE BYTES[xPIECES] COUNT [SERVER]   the server first, without SERVER; then the client with its address
//
// MODE: write  ping-pong of RDMA WRITEs, each end polling its memory; one way, in microseconds
//       send   ping-pong of SENDs, each end polling its completion queue; the same
//       push   COUNT RDMA WRITEs of BYTES, 16 at a time, and a SEND behind them; in microseconds each
//       pull   COUNT RDMA READs of BYTES, 16 at a time; the same
//       read   COUNT RDMA READs of BYTES, one after the other; in microseconds
//       batch  COUNT times PIECES (64) RDMA READs of BYTES, of every other piece, posted at once; in microseconds for all
//       asleep the same, but the program sleeps until the NIC tells of the end: what polls may keep a software NIC from
//              its work
// The client prints "MODE BYTES median least"; for push and pull both are the average of one run. What the last three
// have brought is checked.
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kPort = 29700, kDepth = 64, kMostPieces = 256, kWindow = 16, kGids = 256, kPattern = 251 };

static void die(const char *what) {
  fprintf(stderr, "rdma_limit: %s: %s\n", what, strerror(errno));
  exit(1);
}

struct address {
  union ibv_gid gid;
  uint64_t memory;
  uint32_t key, number;
};

struct end {
  struct ibv_context *device;
  struct ibv_pd *domain;
  struct ibv_mr *region;
  struct ibv_comp_channel *bell;
  struct ibv_cq *queue;
  struct ibv_qp *pair;
  union ibv_gid gid;
  int gid_index;
  volatile char *memory;
  size_t bytes;
  int peer; // the socket
  struct address own, other;
};

static double now_us(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1e6 + at.tv_nsec * 1e-3;
}

static void choose_gid(struct end *end) {
  // RoCE v2 by IPv4, the usual kind; else the first GID.
  for (int index = 0; index < kGids; ++index) {
    struct ibv_gid_entry entry;
    if (ibv_query_gid_ex(end->device, 1, index, &entry, 0)) {
      continue;
    }
    const int mapped = entry.gid.raw[10] == 0xff && entry.gid.raw[11] == 0xff;
    if (entry.gid_type == IBV_GID_TYPE_ROCE_V2 && mapped) {
      end->gid = entry.gid;
      end->gid_index = index;
      return;
    }
  }
  if (ibv_query_gid(end->device, 1, 0, &end->gid)) {
    die("no GID");
  }
}

static void open_device(struct end *end, size_t bytes) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  if (!list || !list[0] || !(end->device = ibv_open_device(list[0]))) {
    die("no RDMA device");
  }
  ibv_free_device_list(list);
  choose_gid(end);
  end->bytes = bytes;
  end->memory = aligned_alloc(4096, (2 * bytes + 8191) / 4096 * 4096);
  memset((void *)end->memory, 0, 2 * bytes);
  end->domain = ibv_alloc_pd(end->device);
  end->region = ibv_reg_mr(end->domain, (void *)end->memory, 2 * bytes,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
  end->bell = ibv_create_comp_channel(end->device);
  end->queue = ibv_create_cq(end->device, kDepth + kMostPieces, NULL, end->bell, 0);
  struct ibv_qp_init_attr init = {.send_cq = end->queue, .recv_cq = end->queue, .qp_type = IBV_QPT_RC};
  init.cap = (struct ibv_qp_cap){.max_send_wr = kMostPieces, .max_recv_wr = kDepth, .max_send_sge = 1, .max_recv_sge = 1,
                                 .max_inline_data = 64};
  end->pair = ibv_create_qp(end->domain, &init);
  if (!end->region || !end->queue || !end->pair) {
    die("no queue pair");
  }
}

static void meet(struct end *end, const char *server) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(kPort)};
  int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (server) {
    inet_pton(AF_INET, server, &at.sin_addr);
    for (int i = 0; connect(fd, (struct sockaddr *)&at, sizeof(at)); ++i) {
      if (i == 300) {
        die("cannot connect");
      }
      usleep(100000);
      close(fd);
      fd = socket(AF_INET, SOCK_STREAM, 0);
    }
    end->peer = fd;
  } else {
    if (bind(fd, (struct sockaddr *)&at, sizeof(at)) || listen(fd, 1) || (end->peer = accept(fd, NULL, NULL)) < 0) {
      die("cannot listen");
    }
    close(fd);
  }
}

static void exchange(struct end *end, const void *own, void *other, size_t size) {
  if (write(end->peer, own, size) != (ssize_t)size || recv(end->peer, other, size, MSG_WAITALL) != (ssize_t)size) {
    die("the other end is gone");
  }
}

static void barrier(struct end *end) {
  char own = 1, other;
  exchange(end, &own, &other, 1);
}

static void connect_pair(struct end *end) {
  end->own = (struct address){end->gid, (uint64_t)end->memory, end->region->rkey, end->pair->qp_num};
  exchange(end, &end->own, &end->other, sizeof(end->own));
  struct ibv_port_attr port;
  ibv_query_port(end->device, 1, &port);
  struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1};
  to.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  int bad = ibv_modify_qp(end->pair, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = port.active_mtu, .dest_qp_num = end->other.number,
                            .max_dest_rd_atomic = kWindow, .min_rnr_timer = 12};
  to.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1};
  to.ah_attr.grh = (struct ibv_global_route){.dgid = end->other.gid, .sgid_index = end->gid_index, .hop_limit = 64};
  bad |= ibv_modify_qp(end->pair, &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                            .max_rd_atomic = kWindow};
  bad |= ibv_modify_qp(end->pair, &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  if (bad) {
    die("the queue pair does not connect");
  }
}

static void post(struct end *end, enum ibv_wr_opcode what, size_t local, size_t remote, size_t size) {
  struct ibv_sge part = {(uint64_t)end->memory + local, size, end->region->lkey};
  struct ibv_send_wr request = {.sg_list = &part, .num_sge = 1, .opcode = what, .send_flags = IBV_SEND_SIGNALED}, *bad;
  request.send_flags |= what != IBV_WR_RDMA_READ && size <= 64 ? IBV_SEND_INLINE : 0;
  request.wr.rdma.remote_addr = end->other.memory + remote;
  request.wr.rdma.rkey = end->other.key;
  if (ibv_post_send(end->pair, &request, &bad)) {
    die("post_send");
  }
}

static void post_receive(struct end *end) {
  struct ibv_sge part = {(uint64_t)end->memory + end->bytes, end->bytes, end->region->lkey};
  struct ibv_recv_wr request = {.sg_list = &part, .num_sge = 1}, *bad;
  if (ibv_post_recv(end->pair, &request, &bad)) {
    die("post_recv");
  }
}

// Waits for one completion of this kind, and takes those of the other on the way.
static void await(struct end *end, int receive) {
  struct ibv_wc done;
  for (;;) {
    const int count = ibv_poll_cq(end->queue, 1, &done);
    if (count < 0 || (count && done.status != IBV_WC_SUCCESS)) {
      fprintf(stderr, "rdma_limit: %s\n", ibv_wc_status_str(done.status));
      exit(1);
    }
    if (count && ((done.opcode & IBV_WC_RECV) != 0) == receive) {
      return;
    }
  }
}

static void write_trip(struct end *end, int first, char round) {
  const size_t last = end->bytes - 1;
  if (first) {
    end->memory[last] = round;
    post(end, IBV_WR_RDMA_WRITE, 0, end->bytes, end->bytes);
  }
  while (end->memory[end->bytes + last] != round) {
  }
  if (!first) {
    end->memory[last] = round;
    post(end, IBV_WR_RDMA_WRITE, 0, end->bytes, end->bytes);
  }
  await(end, 0);
}

static void send_trip(struct end *end, int first) {
  if (first) {
    post(end, IBV_WR_SEND, 0, 0, end->bytes);
  }
  await(end, 1);
  post_receive(end);
  if (!first) {
    post(end, IBV_WR_SEND, 0, 0, end->bytes);
  }
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void print_times(const char *mode, size_t bytes, double *times, int count) {
  qsort(times, count, sizeof(*times), ascending);
  printf("%s %zu %.2f %.2f\n", mode, bytes, times[count / 2], times[0]);
}

static void ping_pong(struct end *end, const char *mode, int count, int first) {
  double *times = calloc(count, sizeof(*times));
  for (int i = 0; i < kDepth / 2; ++i) {
    post_receive(end);
  }
  barrier(end);
  for (int i = 0; i < count; ++i) {
    const double start = now_us();
    if (*mode == 'w') {
      write_trip(end, first, (char)(i % 100 + 1));
    } else {
      send_trip(end, first);
    }
    times[i] = (now_us() - start) / 2;
  }
  if (first) {
    print_times(mode, end->bytes, times, count);
  }
  free(times);
}

static void stream(struct end *end, const char *mode, int count, int first) {
  const enum ibv_wr_opcode what = mode[2] == 's' ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  post_receive(end);
  barrier(end);
  if (!first) {
    await(end, 1);
    return;
  }
  const double start = now_us();
  int posted = 0, done = 0;
  while (done < count) {
    for (; posted < count && posted - done < kWindow; ++posted) {
      post(end, what, 0, end->bytes, end->bytes);
    }
    await(end, 0);
    ++done;
  }
  const double each = (now_us() - start) / count;
  post(end, IBV_WR_SEND, 0, 0, 1);
  await(end, 0);
  printf("%s %zu %.2f %.2f\n", mode, end->bytes, each, each);
}

static void await_event(struct end *end) {
  struct ibv_cq *queue;
  void *unused;
  if (ibv_get_cq_event(end->bell, &queue, &unused)) {
    die("get_cq_event");
  }
  ibv_ack_cq_events(queue, 1);
}

// Posts all pieces by one call, with a completion of the last one only, and waits for it. The NIC serves kWindow at a
// time.
static void read_pieces(struct end *end, size_t size, int pieces, int asleep) {
  struct ibv_sge parts[kMostPieces];
  struct ibv_send_wr requests[kMostPieces], *bad;
  for (int i = 0; i < pieces; ++i) {
    const size_t offset = 2 * i * size; // neighbours could be read as one
    parts[i] = (struct ibv_sge){(uint64_t)end->memory + offset, size, end->region->lkey};
    requests[i] = (struct ibv_send_wr){.sg_list = &parts[i], .num_sge = 1, .opcode = IBV_WR_RDMA_READ};
    requests[i].wr.rdma.remote_addr = end->other.memory + offset;
    requests[i].wr.rdma.rkey = end->other.key;
    requests[i].next = i + 1 < pieces ? &requests[i + 1] : NULL;
  }
  requests[pieces - 1].send_flags = IBV_SEND_SIGNALED;
  if ((asleep && ibv_req_notify_cq(end->queue, 0)) || ibv_post_send(end->pair, requests, &bad)) {
    die("post_send");
  }
  if (asleep) {
    await_event(end);
  }
  await(end, 0);
}

static void check_pieces(struct end *end, size_t size, int pieces) {
  for (int i = 0; i < pieces; ++i) {
    for (size_t at = 2 * i * size; at < (2 * i + 1) * size; ++at) {
      if (end->memory[at] != (char)(at % kPattern)) {
        fprintf(stderr, "rdma_limit: wrong data at %zu\n", at);
        exit(1);
      }
    }
  }
}

// The server's process does nothing meanwhile.
static void reads(struct end *end, const char *mode, size_t size, int pieces, int count, int first) {
  for (size_t at = 0; !first && at < 2 * end->bytes; ++at) {
    end->memory[at] = (char)(at % kPattern);
  }
  barrier(end);
  if (!first) {
    return;
  }
  double *times = calloc(count, sizeof(*times));
  for (int i = 0; i < count; ++i) {
    const double start = now_us();
    read_pieces(end, size, pieces, *mode == 'a');
    times[i] = now_us() - start;
  }
  check_pieces(end, size, pieces);
  print_times(mode, size, times, count);
  free(times);
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: rdma_limit write|send|push|pull|read|batch|asleep BYTES[xPIECES] COUNT [SERVER]\n");
    return 2;
  }
  const char *mode = argv[1];
  char *times = NULL;
  const size_t size = strtoull(argv[2], &times, 10);
  const int count = atoi(argv[3]), first = argv[4] != NULL;
  const int many = !strcmp(mode, "batch") || !strcmp(mode, "asleep");
  const int asked = *times == 'x' ? atoi(times + 1) : kDepth, pieces = many ? asked : 1;
  if (pieces < 1 || pieces > kMostPieces) {
    fprintf(stderr, "rdma_limit: %d pieces are not 1 to %d\n", pieces, kMostPieces);
    return 2;
  }
  struct end end = {0};
  open_device(&end, size * pieces);
  meet(&end, argv[4]);
  connect_pair(&end);
  if (!strcmp(mode, "write") || !strcmp(mode, "send")) {
    ping_pong(&end, mode, count, first);
  } else if (!strcmp(mode, "read") || many) {
    reads(&end, mode, size, pieces, count, first);
  } else {
    stream(&end, mode, count, first);
  }
  barrier(&end);
  return 0;
}
