#include "faults/cycle.h"

#include <cstring>
#include <utility>

#include "fakes/verbs/rdma_hosts.h"
#include "faults/fault_plan.h"

namespace dlslime::testing {

namespace {

constexpr milliseconds kGroupTime{3000};
constexpr milliseconds kRecovery{2000};
// Patience for an operation: more than the engine takes before giving up.
constexpr int kPatience = 8000;
// Patience for an operation whose other half has failed: may wait for ever.
constexpr int kLittle = 200;
constexpr int kCancelTime = 3000;
constexpr size_t kSmall = 1000, kLarge = (3 << 20) + 5, kRegion = 1 << 20;

// Calls made by the fake driver are not the engine's.
thread_local std::vector<ThreadRole> outsideOfDriver;
const FakeCudaWatcher kWatcher{
    [] { outsideOfDriver.push_back(setThreadRole(ThreadRole::kTest)); },
    [](const char* /*function*/) {
      setThreadRole(outsideOfDriver.back());
      const int error = faultOf(Call::kCuda);
      setThreadRole(ThreadRole::kTest);
      return error;
    },
    [] {
      setThreadRole(outsideOfDriver.back());
      outsideOfDriver.pop_back();
    }};

} // namespace

class Cycle::PlacedOperation final : public Operation {
 public:
  PlacedOperation(Kind kind, int peer, uint32_t tag, const Place& place)
      : Operation(kind, peer, tag, place.view), place_(place) {
    if (place.gpu != nullptr) {
      onDevice = std::make_unique<OnDevice>();
      onDevice->stream = place.gpu->place();
    }
  }

 private:
  const Place place_;
};

Bytes Cycle::Place::content() const {
  return gpu != nullptr ? gpu->content(view) : *bytes;
}

Cycle::Cycle(const FaultWay& way, bool allocations)
    : way_(way), allocations_(allocations) {
  if (!way_.gpu) {
    return;
  }
  fake_.emplace();
  fake_->watch(&kWatcher);
  for (int rank = 0; rank < 2; ++rank) {
    sides_[rank].gpu = std::make_unique<GpuSide>(*fake_, rank);
  }
}

Cycle::~Cycle() {
  if (!fake_) {
    return;
  }
  fake_->watch(nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    const auto gpu = fake_->gpu(rank);
    const cuda::Gpu::Scope scope(*gpu);
    auto* const stream = sides_[rank].gpu->stream();
    sides_[rank].gpu.reset();
    fake_->driver().streamDestroy(stream);
  }
  for (const auto pointer : gpuMemory_) {
    fake_->free(pointer);
  }
}

Config Cycle::configOf(int rank) const {
  auto config = way_.apart ? rdmaHost(rank) : Config{};
  config.rdma.enabled = way_.apart;
  config.interfaces = "=lo";
  config.crossMemoryAttach = way_.crossMemoryAttach;
  config.recovery = kRecovery;
  config.patience = milliseconds(100);
  config.returning = milliseconds(50);
  config.linger = milliseconds(200);
  return config;
}

GroupOptions Cycle::optionsOf(int rank) const {
  GroupOptions options;
  options.name = "faults";
  options.rank = rank;
  options.size = 2;
  options.timeout = kGroupTime;
  options.route = way_.policy;
  options.fallback = FallbackPolicy::kAllow;
  options.rendezvous = store_;
  options.carrierSource = carriers_;
  return options;
}

Cycle::Place Cycle::place(int rank, const Bytes& bytes) {
  Place made;
  made.gpu = sides_[rank].gpu.get();
  if (made.gpu != nullptr) {
    made.view = made.gpu->filled(bytes);
    gpuMemory_.push_back(reinterpret_cast<cuda::DevicePointer>(made.view.data));
  } else {
    made.bytes = std::make_shared<Bytes>(bytes);
    made.view = {made.bytes->data(), made.bytes->size()};
  }
  return made;
}

void Cycle::complain(const std::string& text) {
  complaints_ += text + "\n";
}

bool Cycle::step(const std::string& what, const std::function<void()>& call) {
  try {
    const RoleScope role(ThreadRole::kCaller);
    call();
    return true;
  } catch (const Error& error) {
    story_ += what + ": " + std::string(errorCodeName(error.status().code())) +
        ": " + error.what() + "\n";
  } catch (const std::bad_alloc& error) {
    story_ += what + ": " + error.what() + "\n";
    if (!allocations_) {
      complain(what + " threw bad_alloc");
    }
  } catch (const std::exception& error) {
    complain(what + " threw what is no Error: " + error.what());
  }
  return false;
}

void Cycle::run() {
  for (int rank = 0; rank < 2; ++rank) {
    begin(rank);
  }
  if (sides_[0].node.group && sides_[1].node.group) {
    traffic();
  }
  for (int rank = 0; rank < 2; ++rank) {
    end(rank);
  }
  carriers_->release();
  for (const auto& [kind, count] : fabric_.live()) {
    if (count != 0) {
      complain(std::to_string(count) + " of verbs' " + kind + " are left");
    }
  }
}

void Cycle::begin(int rank) {
  auto& node = sides_[rank].node;
  const auto number = std::to_string(rank);
  const auto config = configOf(rank);
  if (step("start " + number, [&] {
        node.engine = std::make_shared<Engine>(config);
      })) {
    auto options = optionsOf(rank);
    step("join " + number, [&] {
      node.group = node.engine->join(std::move(options));
    });
  }
}

void Cycle::traffic() {
  message(0, kSmall, 1);
  message(1, kSmall, 2);
  message(0, kLarge, 3);
  for (int rank = 0; rank < 2; ++rank) {
    registerMemory(rank);
  }
  initiator();
  for (int rank = 0; rank < 2; ++rank) {
    deregister(rank);
  }
  const RoleScope test(ThreadRole::kTest);
  const auto reports = sides_[0].node.engine->report(*sides_[0].node.group);
  route_ = reports.empty() ? "" : reports.front().route;
}

void Cycle::message(int from, size_t size, uint32_t tag) {
  const auto text =
      std::to_string(size) + " bytes from " + std::to_string(from);
  auto &sender = sides_[from].node, &receiver = sides_[1 - from].node;
  const auto bytes = pattern(size, tag);
  const auto target = place(1 - from, Bytes(size));
  const OperationPtr receive = std::make_shared<PlacedOperation>(
      Operation::Kind::kReceive, from, tag, target);
  const OperationPtr send = std::make_shared<PlacedOperation>(
      Operation::Kind::kSend, 1 - from, tag, place(from, bytes));
  const bool receives = step("receive " + text, [&] {
    receiver.engine->receive(*receiver.group, receive);
  });
  const bool sends =
      step("send " + text, [&] { sender.engine->send(*sender.group, send); });
  bool well = sends;
  if (receives) {
    well = finish(
        1 - from, receive, "receive " + text, sends ? kPatience : kLittle);
    if (well && !sameBytes(target.content(), bytes)) {
      complain("wrong bytes after receive " + text);
    }
  }
  if (sends) {
    finish(from, send, "send " + text, receives && well ? kPatience : kLittle);
  }
}

void Cycle::registerMemory(int rank) {
  auto& side = sides_[rank];
  side.memory = place(rank, pattern(kRegion, unsigned(rank) + 10));
  step("register " + std::to_string(rank), [&] {
    side.region = side.node.engine->registerMemory(
        side.memory.view, "memory", side.memory.bytes);
  });
}

void Cycle::initiator() {
  if (sides_[0].region && sides_[1].region) {
    transfer(Operation::Kind::kRead, 0, 300000);
    transfer(Operation::Kind::kWrite, 400000, 300000);
    transfer(Operation::Kind::kWrite, 800000, 100);
  }
}

void Cycle::transfer(Operation::Kind kind, int64_t at, int64_t size) {
  const bool write = kind == Operation::Kind::kWrite;
  const auto text = (write ? "write of " : "read of ") + std::to_string(size);
  auto& side = sides_[0];
  const auto made = TestTransfer::make(
      kind, 1, side.region, sides_[1].region->handle(), {{at, at, size}});
  if (side.gpu) {
    made->onDevice = std::make_unique<OnDevice>();
    made->onDevice->stream = side.gpu->place();
  }
  const auto& from = sides_[write ? 0 : 1];
  const auto& to = sides_[write ? 1 : 0];
  const auto before = from.memory.content();
  if (step(text, [&] { side.node.engine->transfer(*side.node.group, made); }) &&
      finish(0, made, text, kPatience) &&
      std::memcmp(
          to.memory.content().data() + at,
          before.data() + at,
          static_cast<size_t>(size)) != 0) {
    complain("wrong bytes after " + text);
  }
}

void Cycle::deregister(int rank) {
  auto& side = sides_[rank];
  if (side.region) {
    step("deregister " + std::to_string(rank), [&] {
      side.node.engine->deregister(
          side.region, deadlineAfter(milliseconds(kCancelTime)));
    });
  }
  side.region = nullptr;
}

void Cycle::end(int rank) {
  auto& node = sides_[rank].node;
  const auto number = std::to_string(rank);
  if (node.group) {
    step("leave " + number, [&] { node.engine->leave(*node.group); });
  }
  const RoleScope role(ThreadRole::kCaller);
  node.group.reset();
  node.engine.reset();
}

// Tries again after an exception: a second call may succeed.
bool Cycle::wait(int rank, const OperationPtr& operation, int patience) {
  auto& engine = *sides_[rank].node.engine;
  const auto deadline = deadlineAfter(milliseconds(patience));
  bool done = false;
  for (int i = 0; i < 3 && !done; ++i) {
    if (step("wait", [&] { done = engine.wait(*operation, deadline); })) {
      break;
    }
  }
  return done;
}

bool Cycle::finish(
    int rank,
    const OperationPtr& operation,
    const std::string& what,
    int patience) {
  auto& node = sides_[rank].node;
  const Status late(ErrorCode::kTimeout, "it has taken too long");
  if (!wait(rank, operation, patience)) {
    story_ +=
        what + ": " + (patience > kLittle ? kTimedOut : "taken back") + "\n";
    step("cancel", [&] { node.engine->cancel(*node.group, operation, late); });
    if (!wait(rank, operation, kCancelTime)) {
      story_ += what + ": abandoned\n";
      step("abandon", [&] {
        node.engine->abandon(*node.group, operation, late);
      });
    }
    if (!wait(rank, operation, kLittle)) {
      complain(what + " does not end");
      return false;
    }
  }
  if (!operation->status().ok()) {
    story_ += what +
        " ended: " + std::string(errorCodeName(operation->status().code())) +
        ": " + operation->status().message() + "\n";
  }
  return operation->status().ok();
}

} // namespace dlslime::testing
