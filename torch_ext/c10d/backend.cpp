#include "torch_ext/c10d/backend.h"

#include <ATen/record_function.h>

#include "base/fork_guard.h"
#include "torch_ext/c10d/profiled.h"
#include "torch_ext/c10d/slow_names.h"
#include "torch_ext/store/store_rendezvous.h"
#include "torch_ext/support/checked_call.h"
#include "torch_ext/support/flight_dump.h"
#include "torch_ext/support/flight_pickle.h"
#include "torch_ext/support/gil.h"
#include "torch_ext/support/python_end.h"
#include "torch_ext/support/tensor_view.h"
#include "torch_ext/support/timeouts.h"

namespace dlslime {

namespace {

RoutePolicy routeOf(const BackendOptions& options, const Config& config) {
  return options.route.empty() ? config.route : parseRoutePolicy(options.route);
}

FallbackPolicy fallbackOf(const BackendOptions& options, const Config& config) {
  return options.fallback.empty() ? config.fallback
                                  : parseFallbackPolicy(options.fallback);
}

std::shared_ptr<GroupHandle> joinGroup(const DlslimeBackend::Setup& setup) {
  checkedTimeout("a group's", setup.options->timeout);
  auto handle = std::make_shared<GroupHandle>();
  handle->engine = acquireEngine();
  handle->timeout.store(setup.options->timeout);
  warnOfSlowNames(setup.store);
  const auto& config = handle->engine->config();
  GroupOptions options;
  options.name = setup.name;
  options.rank = setup.rank;
  options.size = setup.size;
  options.timeout = setup.options->timeout;
  options.route = routeOf(*setup.options, config);
  options.fallback = fallbackOf(*setup.options, config);
  options.rendezvous = std::make_shared<StoreRendezvous>(setup.store);
  options.carrierSource =
      std::make_shared<TorchCarrierSource>(setup.makePairGroup, config);
  handle->group = handle->engine->join(std::move(options));
  nameFlightGroup(
      Engine::keyOf(*handle->group),
      setup.name,
      setup.rank,
      setup.options->global_ranks_in_group);
  if (!config.flightSignal.empty()) {
    dumpFlightLogAt(config.flightSignal);
  }
  return handle;
}

const char* titleOf(c10d::OpType type) {
  // Without a profiler, no title is given: making the record of a title costs
  // more than sending 8 bytes.
  if (!at::hasCallbacks()) {
    return nullptr;
  }
  switch (type) {
    case c10d::OpType::SEND:
      return "dlslime:send";
    case c10d::OpType::RECV:
      return "dlslime:recv";
    default:
      return "dlslime:recvAnySource";
  }
}

} // namespace

DlslimeBackend::DlslimeBackend(Setup setup)
    : DlslimeBackend(setup, joinGroup(setup)) {}

DlslimeBackend::DlslimeBackend(
    Setup setup,
    const std::shared_ptr<GroupHandle>& handle)
    : CollectiveBackend(
          setup.rank,
          setup.size,
          handle,
          std::move(setup.makeCollectives)),
      options_(setup.options),
      handle_(handle),
      splits_(setup.rank, setup.size, std::move(setup.makeChild)) {
  init();
}

DlslimeBackend::~DlslimeBackend() {
  if (inForkedChild()) {
    return;
  }
  collectives_.leakIfBusy(pythonEnds());
  // At the interpreter's end the group is not left: peers learn of the end from
  // the end of the process, and from nothing before.
  if (pythonEnds()) {
    return;
  }
  if (!left_.exchange(true)) {
    // A program that drops the group without destroy_process_group() expects no
    // wait for pending sends, so abort() ends all operations first.
    handle_->engine->abort(
        *handle_->group,
        Status(ErrorCode::kCancelled, "the process group has been destroyed"));
    handle_->engine->leave(*handle_->group);
  }
}

namespace {
// Returns the options of a new group: a copy of `options`, or the parent's
// options with the fields common to all backends taken from `options`.
c10::intrusive_ptr<BackendOptions> ownOptions(
    const c10::intrusive_ptr<c10d::Backend::Options>& options,
    const BackendOptions& parent) {
  if (const auto* const given =
          dynamic_cast<const BackendOptions*>(options.get())) {
    return c10::make_intrusive<BackendOptions>(*given);
  }
  auto own = c10::make_intrusive<BackendOptions>(parent);
  if (options) { // of a different backend
    own->timeout = options->timeout;
    own->group_name = options->group_name;
    own->global_ranks_in_group = options->global_ranks_in_group;
  }
  return own;
}
} // namespace

// Fills in an empty list of global ranks, because torch expects every group to
// have the list.
c10::intrusive_ptr<DlslimeBackend::Options>
DlslimeBackend::getBackendOptions() {
  auto copy = c10::make_intrusive<BackendOptions>(*options_);
  if (copy->global_ranks_in_group.empty()) {
    for (int rank = 0; rank < getSize(); ++rank) {
      copy->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));
    }
  }
  return copy;
}

c10::intrusive_ptr<c10d::Backend> DlslimeBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  return checkedCall([&] {
    return splits_.split(store, ranks, ownOptions(options, *options_));
  });
}

c10::intrusive_ptr<c10d::Backend> DlslimeBackend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<Options>& options,
    const int& rank,
    const int& size) {
  return checkedCall([&] {
    return splits_.merge(store, rank, size, ownOptions(options, *options_));
  });
}

void DlslimeBackend::checkPeer(const char* what, int peer) const {
  TORCH_CHECK_VALUE(
      peer >= 0 && peer < getSize(),
      "dlslime: ",
      what,
      " rank ",
      peer,
      " is not in the group: it has ranks "
      "0 to ",
      getSize() - 1);
}

DlslimeBackend::WorkPtr DlslimeBackend::post(
    Operation::Kind kind,
    Tensors& tensors,
    int peer,
    int tag,
    c10d::OpType type) {
  const StaysWhenPythonEnds stays;
  const bool send = kind == Operation::Kind::kSend;
  const char* const what = send ? "send" : "recv";
  TORCH_CHECK_VALUE(
      tag >= 0,
      "dlslime: ",
      what,
      " with tag ",
      tag,
      ": tags must not be negative");
  const auto& tensor = checkedMessage(what, tensors);
  auto operation = std::make_shared<TensorOperation>(
      kind, peer, static_cast<uint32_t>(tag), tensor);
  auto work = c10::make_intrusive<P2PWork>(
      handle_, operation, type, tensors, titleOf(type));
  checkedCall([&] { handle_->requireUsable(); });
  const auto begin = [&] {
    send ? handle_->engine->send(*handle_->group, operation)
         : handle_->engine->receive(*handle_->group, operation);
  };
  if (at::hasCallbacks()) {
    const ProfiledMessage message{
        what,
        peer,
        tensor,
        options_->group_name,
        getGroupDesc(),
        options_->global_ranks_in_group,
        getSize()};
    profiled(message, [&] { checkedCall(begin); });
  } else {
    checkedCall(begin);
  }
  return work;
}

DlslimeBackend::WorkPtr
DlslimeBackend::send(Tensors& tensors, int dstRank, int tag) {
  checkPeer("destination", dstRank);
  return post(
      Operation::Kind::kSend, tensors, dstRank, tag, c10d::OpType::SEND);
}

DlslimeBackend::WorkPtr
DlslimeBackend::recv(Tensors& tensors, int srcRank, int tag) {
  checkPeer("source", srcRank);
  return post(
      Operation::Kind::kReceive, tensors, srcRank, tag, c10d::OpType::RECV);
}

DlslimeBackend::WorkPtr DlslimeBackend::recvAnysource(
    Tensors& tensors,
    int tag) {
  return post(
      Operation::Kind::kReceive,
      tensors,
      Operation::kAnySource,
      tag,
      c10d::OpType::RECVANYSOURCE);
}

void DlslimeBackend::abort() {
  if (inForkedChild() || left_.load()) {
    return;
  }
  dumpFlightLog(*handle_->engine, "a process group was aborted");
  const Status why(ErrorCode::kCancelled, "the process group was aborted");
  collectives_.refuse();
  handle_->engine->abort(*handle_->group, why);
  collectives_.endAll(why);
}

void DlslimeBackend::shutdown() {
  if (inForkedChild() || left_.exchange(true)) {
    return;
  }
  collectives_.backends().close();
  handle_->engine->leave(*handle_->group);
  for (const auto& backend : collectives_.backends().made()) {
    backend->shutdown();
  }
}

void DlslimeBackend::setTimeout(std::chrono::milliseconds timeout) {
  handle_->timeout.store(checkedTimeout("a group's", timeout));
  options_->timeout = timeout;
  for (const auto& backend : collectives_.backends().made()) {
    backend->setTimeout(timeout);
  }
}

c10d::ErrorType DlslimeBackend::getError() {
  if (collectives_.aborted()) {
    return c10d::ErrorType::COMM_ERROR;
  }
  return handle_->engine->hasFailedPeer(*handle_->group)
      ? c10d::ErrorType::REMOTE_ERROR
      : c10d::ErrorType::SUCCESS;
}

void DlslimeBackend::setGroupUid(const std::string& uid) {
  Backend::setGroupUid(uid);
  collectives_.backends().setNames(uid, getGroupDesc());
}

PeerReport DlslimeBackend::explain(int rank) {
  checkPeer("explained", rank);
  return checkedCall([&] {
    refuseInForkedChild();
    return handle_->engine->explain(
        *handle_->group,
        rank,
        deadlineAfter(handle_->timeout.load()),
        heedingSignals());
  });
}

} // namespace dlslime
