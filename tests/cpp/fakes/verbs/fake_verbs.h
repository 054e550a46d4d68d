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
  // Codes of ibv_port_attr: 4 lanes of HDR, 200 Gb/s.
  uint8_t width = 2;
  uint8_t speed = 64;
  uint8_t flags = 0;
  std::vector<FakeGid> gids{{IBV_GID_TYPE_ROCE_V2, ipv4Gid(10, 9, 0, 1)}};
};

struct FakeDevice {
  std::string name = "fake0";
  std::vector<FakePort> ports{FakePort{}};
  // Limits as of mlx5.
  int maxRequests = 32768; // of a queue pair's sends, and of its receives
  int maxCompletions = 4194303;
  uint32_t maxInline = 220;
  int openError = 0; // errno of open_device; 0: success
};

// A network of RDMA NICs in memory, with the verbs to use the NICs: queue pairs
// go through their states, keys are checked, receives are consumed, completion
// queues overflow, and faults happen on order. Transfers happen inside
// post_send and poll_cq; any thread.
class FakeFabric {
 public:
  explicit FakeFabric(std::vector<FakeDevice> devices = {FakeDevice{}});
  ~FakeFabric();
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;

  // Verbs of the latest fabric: getDeviceList has no argument to choose a
  // fabric by.
  static const rdma::Verbs& verbs();

  // --- Faults -----------------------------------------------------------
  // Cuts all ports of the device, or mends the ports: meanwhile requests end
  // with retry-exceeded.
  void cut(const std::string& device, bool down = true);
  // Drops packets of more than so many bytes, as a switch before the device
  // might.
  void dropLarger(const std::string& device, size_t bytes);
  // Takes the device out while in use.
  void remove(const std::string& device);
  // Brings a port up or down; `port` is its place in the device.
  void setPort(const std::string& device, size_t port, ibv_port_state state);
  // Makes the address the only address of the port.
  void setGid(const std::string& device, size_t port, const ibv_gid& gid);
  void setLid(const std::string& device, size_t port, uint16_t lid);
  // Makes open_device fail with the errno; 0: success.
  void failOpening(const std::string& device, int error);
  // Raises an ibv_async_event of the device; the functions above raise their
  // own.
  void tell(const std::string& device, ibv_event_type type, uint8_t port = 1);
  // Makes the next `count` calls of post_send fail with `error` after taking
  // `taken` requests of the list.
  void failPosts(int count, int error, int taken = 0);
  // Makes the next `count` registrations fail with the errno; 0: success.
  void failRegistrations(int error, int count = INT_MAX);
  // Makes bringing queue pairs of the device to `state` fail (RESET: creation);
  // 0: success.
  void refusePairs(const std::string& device, ibv_qp_state state, int error);
  // Sets a function called before each registration, except of a dma-buf, on
  // the registering thread, with the number of bytes.
  void onRegistration(std::function<void(size_t)> told);
  // Sets a function called before the end of each registration.
  void onDeregistration(std::function<void(size_t)> told);
  // Lets messages to the device find a receive only at the `times`-th try.
  void unready(const std::string& device, int times);
  // Makes the call fail with the errno on all devices: "alloc_pd", "create_cq",
  // "create_comp_channel", "post_recv", "req_notify_cq"; 0: success.
  void refuse(const std::string& call, int error);
  // Delays requests by so many calls of poll_cq.
  void delay(int polls);
  // Delays each request by a random number of calls of poll_cq, at most
  // `polls`: requests of several queue pairs complete in any order.
  void reorder(uint64_t seed, int polls);
  // Delays writes without an immediate by the device: the bytes land only
  // before the queue pair's next request of a different kind.
  void landLate(const std::string& device);
  // Delays requests posted by the device by so many calls of poll_cq, at most
  // until a thread is about to sleep.
  void slow(const std::string& device, int polls);
  // Holds the device's requests of at least `bytes`, except the `first` of
  // them, and all requests posted behind, until release() or cut().
  void hold(const std::string& device, size_t bytes, int first = 0);
  void release(const std::string& device);

  // --- What a test may look at ------------------------------------------
  // Returns the number of objects alive, by kind: "mr", "qp", ...
  std::map<std::string, int> live();
  bool overflowed(); // whether a completion queue overflowed
  // Returns the sizes of the regions that peers may write.
  std::set<size_t> writable();
  uint64_t requests(ibv_wr_opcode opcode); // carried out
  uint64_t requests(const std::string& device, ibv_wr_opcode opcode); // posted
  uint64_t bytes(const std::string& device, ibv_wr_opcode opcode); // posted
  uint64_t doorbells(); // calls of post_send
  uint64_t inlined(); // requests carried out
  uint64_t signalled(); // requests carried out
  uint64_t withoutReceives(); // tries of messages
  // Returns the attributes with which queue pairs of the device were brought to
  // `state`, in the order of the calls.
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
    std::byte* bytes; // elsewhere for a dma-buf
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
  // Returns null if the key does not give the access to the range.
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
  std::map<std::string, size_t> dropping_; // largest packet that passes
  std::set<std::string> removed_;
  std::map<std::pair<std::string, ibv_qp_state>, int> refusedPairs_;
  std::map<std::pair<std::string, ibv_qp_state>, std::vector<ibv_qp_attr>>
      steps_;
  std::map<uint32_t, std::unique_ptr<Qp>> qps_;
  std::map<uint32_t, Qp*> sending_; // queue pairs that may have requests
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
