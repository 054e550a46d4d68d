#pragma once

#include <climits>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "transports/rdma/device/verbs.h"

namespace dlslime::testing {

struct FakeGid {
  ibv_gid_type type = IBV_GID_TYPE_ROCE_V2;
  ibv_gid value{};
};
ibv_gid ipv4Gid(uint8_t a, uint8_t b, uint8_t c, uint8_t d);

struct FakePort {
  ibv_port_state state = IBV_PORT_ACTIVE;
  bool ethernet = true;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_4096;
  // As ibv_port_attr codes them: 4 lanes of HDR, 200 Gb/s.
  uint8_t width = 2;
  uint8_t speed = 64;
  uint8_t flags = 0;
  std::vector<FakeGid> gids{{IBV_GID_TYPE_ROCE_V2, ipv4Gid(10, 9, 0, 1)}};
};

struct FakeDevice {
  std::string name = "fake0";
  std::vector<FakePort> ports{FakePort{}};
  // Of mlx5, but for the last one.
  int maxRequests = 32768; // of a queue pair's sends, and of its receives
  int maxCompletions = 4194303;
  uint32_t maxInline = 220;
  int openError = 0; // errno of open_device; 0: it opens
};

// A network of RDMA NICs in memory, with the verbs to use them: queue pairs
// that go through their states, keys that are checked, receives that are
// consumed, completion queues that overflow, and faults on order. Transfers
// happen inside post_send and poll_cq; any thread.
class FakeFabric {
 public:
  explicit FakeFabric(std::vector<FakeDevice> devices = {FakeDevice{}});
  ~FakeFabric();
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;

  // One fabric at a time has verbs: getDeviceList knows no argument.
  static const rdma::Verbs& verbs();

  // --- Faults -----------------------------------------------------------
  // Nothing passes this device's ports until it is mended: requests end with
  // retry-exceeded.
  void cut(const std::string& device, bool down = true);
  // A switch before this device drops packets with more bytes than these.
  void dropLarger(const std::string& device, size_t bytes);
  // The device is taken out, under whoever uses it.
  void remove(const std::string& device);
  // Brings a port up or down, by its place in the device.
  void setPort(const std::string& device, size_t port, ibv_port_state state);
  // Gives a port this address alone.
  void setGid(const std::string& device, size_t port, const ibv_gid& gid);
  void setLid(const std::string& device, size_t port, uint16_t lid);
  // open_device fails with this errno; 0: it works.
  void failOpening(const std::string& device, int error);
  // The device tells of itself (those above do): as ibv_async_event.
  void tell(const std::string& device, ibv_event_type type, uint8_t port = 1);
  // The next `count` calls of post_send fail with `error` after they have
  // taken `taken` requests of their list.
  void failPosts(int count, int error, int taken = 0);
  // The next `count` registrations fail with this errno; 0: they work.
  void failRegistrations(int error, int count = INT_MAX);
  // Queue pairs of this device can't be brought to `state` (RESET: made); 0:
  // they can.
  void refusePairs(const std::string& device, ibv_qp_state state, int error);
  // Called before each registration, on the thread that registers, with its
  // bytes.
  void onRegistration(std::function<void(size_t)> told);
  // The same before each registration ends.
  void onDeregistration(std::function<void(size_t)> told);
  // The next messages to this device find no receive so often, as it says; they
  // are tried again.
  void unready(const std::string& device, int times);
  // This call fails with this errno on all devices: "alloc_pd", "create_cq",
  // "create_comp_channel", "post_recv", "req_notify_cq"; 0: it works.
  void refuse(const std::string& call, int error);
  // Requests wait until poll_cq has been called this often.
  void delay(int polls);
  // Each waits for another number, up to this: what goes by several queue pairs
  // comes in any order.
  void reorder(uint64_t seed, int polls);
  // What this device writes without an immediate comes to memory only before
  // the next request by the same queue pair that is not such a write.
  void landLate(const std::string& device);
  // The same for what is sent, and read, by this device, until somebody sleeps.
  void slow(const std::string& device, int polls);
  // Once `first` requests of this device with at least `bytes` have passed, the
  // next ones, and what is posted behind them, wait until it is cut or
  // released.
  void hold(const std::string& device, size_t bytes, int first = 0);
  void release(const std::string& device);

  // --- What a test may look at ------------------------------------------
  // Objects that have not been destroyed, by kind: "mr", "qp", ...
  std::map<std::string, int> live();
  bool overflowed(); // some completion queue did
  // The sizes of the regions that others may write.
  std::set<size_t> writable();
  uint64_t requests(ibv_wr_opcode opcode); // carried out
  uint64_t requests(const std::string& device, ibv_wr_opcode opcode); // posted
  uint64_t bytes(const std::string& device, ibv_wr_opcode opcode); // of those
  uint64_t doorbells(); // calls of post_send
  uint64_t inlined(); // requests that were carried out,
  uint64_t signalled(); // and those of them that told their end
  uint64_t withoutReceives(); // messages that found none, each time
  // With which attributes queue pairs of this device were brought to `state`,
  // in the order of the calls.
  std::vector<ibv_qp_attr> steps(const std::string& device, ibv_qp_state state);
  void forgetSteps();

  struct Qp;
  struct Cq;
  struct Context;

 private:
  friend struct FakeCalls;
  friend struct FakeQueues;
  friend struct FakePairs;
  static FakeFabric* current;
  struct Request;
  struct Region {
    uintptr_t address;
    size_t size;
    ibv_pd* domain;
    int access;
    std::byte* bytes; // elsewhere, if it is a dma-buf's
    std::byte* at(uintptr_t where) const {
      return bytes + (where - address);
    }
  };
  void progress(Qp& qp);
  void execute(Qp& qp, Request& request, Qp* target);
  ibv_wc_status transfer(Qp& qp, Request& request, Qp& target);
  bool gather(const Qp& qp, Request& request, std::vector<std::byte>& bytes);
  bool scatter(const Qp& qp, Request& request, const std::byte* bytes);
  struct Range {
    uintptr_t at;
    size_t size;
  };
  // Null: the key gives no such access there.
  const Region*
  regionOf(uint32_t key, ibv_pd* domain, const Range& range, int access);
  void complete(Cq& cq, const ibv_wc& completion, uint64_t retires, Qp* qp);
  void fail(Qp& qp, const Request& request, ibv_wc_status status);
  void flush(Qp& qp);
  FakePort& portOf(const std::string& device, size_t port);
  void tellLocked(const std::string& device, ibv_event_type type, uint8_t port);
  bool isCut(const Qp& qp) const;
  bool isDropped(const Qp& qp, const Request& request) const;
  int someDelay();
  bool isUnready(const Qp& target);
  void releaseLocked(const std::string& device);

  std::mutex mutex_;
  std::vector<FakeDevice> devices_;
  std::vector<std::unique_ptr<ibv_device>> handles_;
  std::map<std::string, int> live_;
  std::map<std::string, bool> cut_;
  std::map<std::string, size_t> dropping_; // and packets of what size pass
  std::set<std::string> removed_;
  std::map<std::pair<std::string, ibv_qp_state>, int> refusedPairs_;
  std::map<std::pair<std::string, ibv_qp_state>, std::vector<ibv_qp_attr>>
      steps_;
  std::map<uint32_t, std::unique_ptr<Qp>> qps_;
  std::map<uint32_t, Region> regions_;
  std::map<uint32_t, std::pair<void*, size_t>> mapped_; // of dma-bufs
  std::map<int, uint64_t> requests_;
  struct Posted {
    uint64_t requests = 0, bytes = 0;
  };
  std::map<std::pair<std::string, int>, Posted> posted_;
  std::map<std::string, int> slow_;
  struct StreamBlock {
    size_t bytes;
    int passing;
  };
  std::map<std::string, StreamBlock> holding_;
  std::set<std::string> landingLate_;
  uint32_t nextNumber_ = 17;
  int failingPosts_ = 0, postError_ = 0, postTaken_ = 0;
  std::function<void(size_t)> registrationTold_ = [](size_t) {},
                              deregistrationTold_ = [](size_t) {};
  int registrationError_ = 0, failingRegistrations_ = 0;
  int delay_ = 0, mostDelay_ = 0;
  std::mt19937_64 random_;
  std::map<std::string, int> unready_, refusedCalls_;
  uint64_t doorbells_ = 0, inlined_ = 0, signalled_ = 0, withoutReceives_ = 0;
  bool overflowed_ = false;
  std::vector<Context*> contexts_;
};

} // namespace dlslime::testing
