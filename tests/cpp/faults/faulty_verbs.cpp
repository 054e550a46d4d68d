#include "faults/faulty_verbs.h"

#include <cerrno>

#include "faults/fault_plan.h"

namespace dlslime::testing {

namespace {

// Calls made inside the fake do not count.
template <typename Function, typename... Arguments>
auto pass(Function function, Arguments... arguments) {
  const RoleScope fake(ThreadRole::kTest);
  return function(arguments...);
}

// Fails by returning null, with errno.
template <auto Verb, typename... Arguments>
auto make(Arguments... arguments) {
  auto* const function = FakeFabric::verbs().*Verb;
  using Made = decltype(function(arguments...));
  if (const int error = faultOf(Call::kVerbs)) {
    errno = error;
    return Made{nullptr};
  }
  return pass(function, arguments...);
}

// Fails by returning the error.
template <auto Verb, typename... Arguments>
int change(Arguments... arguments) {
  if (const int error = faultOf(Call::kVerbs)) {
    return error;
  }
  return pass(FakeFabric::verbs().*Verb, arguments...);
}

// Frees in any case, and fails by returning the error.
template <auto Verb, typename... Arguments>
int release(Arguments... arguments) {
  const int error = faultOf(Call::kVerbs);
  const int result = pass(FakeFabric::verbs().*Verb, arguments...);
  return error != 0 ? error : result;
}

// Fails by returning -1, with errno.
template <auto Verb, typename... Arguments>
int take(Arguments... arguments) {
  if (const int error = faultOf(Call::kVerbs)) {
    errno = error;
    return -1;
  }
  return pass(FakeFabric::verbs().*Verb, arguments...);
}

template <auto Verb, typename... Arguments>
auto tell(Arguments... arguments) {
  return pass(FakeFabric::verbs().*Verb, arguments...);
}

// The calls in the ops of a context, equal for all devices of the fake.
ibv_context_ops fakeOps;

int postSend(ibv_qp* pair, ibv_send_wr* list, ibv_send_wr** bad) {
  if (const int error = faultOf(Call::kPostWork)) {
    *bad = list;
    return error;
  }
  return pass(fakeOps.post_send, pair, list, bad);
}

int postReceive(ibv_qp* pair, ibv_recv_wr* list, ibv_recv_wr** bad) {
  if (const int error = faultOf(Call::kPostWork)) {
    *bad = list;
    return error;
  }
  return pass(fakeOps.post_recv, pair, list, bad);
}

int pollQueue(ibv_cq* queue, int most, ibv_wc* out) {
  const int error = faultOf(Call::kPollQueue);
  return error != 0 ? -error : pass(fakeOps.poll_cq, queue, most, out);
}

int armQueue(ibv_cq* queue, int solicited) {
  const int error = faultOf(Call::kArmQueue);
  return error != 0 ? error : pass(fakeOps.req_notify_cq, queue, solicited);
}

ibv_context* openDevice(ibv_device* device) {
  auto* const context = make<&rdma::Verbs::openDevice>(device);
  if (context != nullptr) {
    fakeOps = context->ops;
    context->ops.post_send = postSend;
    context->ops.post_recv = postReceive;
    context->ops.poll_cq = pollQueue;
    context->ops.req_notify_cq = armQueue;
  }
  return context;
}

rdma::Verbs faultyVerbs() {
  using rdma::Verbs;
  Verbs verbs = FakeFabric::verbs();
  verbs.getDeviceList = make<&Verbs::getDeviceList>;
  verbs.freeDeviceList = tell<&Verbs::freeDeviceList>;
  verbs.openDevice = openDevice;
  verbs.closeDevice = release<&Verbs::closeDevice>;
  verbs.queryDevice = change<&Verbs::queryDevice>;
  verbs.queryPort = change<&Verbs::queryPort>;
  verbs.queryGidEx = change<&Verbs::queryGidEx>;
  verbs.allocPd = make<&Verbs::allocPd>;
  verbs.deallocPd = release<&Verbs::deallocPd>;
  verbs.regMr = make<&Verbs::regMr>;
  verbs.regDmabufMr = make<&Verbs::regDmabufMr>;
  verbs.deregMr = release<&Verbs::deregMr>;
  verbs.createCompChannel = make<&Verbs::createCompChannel>;
  verbs.destroyCompChannel = release<&Verbs::destroyCompChannel>;
  verbs.createCq = make<&Verbs::createCq>;
  verbs.destroyCq = release<&Verbs::destroyCq>;
  verbs.getCqEvent = take<&Verbs::getCqEvent>;
  verbs.createQp = make<&Verbs::createQp>;
  verbs.modifyQp = change<&Verbs::modifyQp>;
  verbs.destroyQp = release<&Verbs::destroyQp>;
  verbs.forkInit = change<&Verbs::forkInit>;
  verbs.getAsyncEvent = take<&Verbs::getAsyncEvent>;
  return verbs;
}

} // namespace

FaultyFabric::FaultyFabric()
    : FakeFabric(std::vector<FakeDevice>{nicOf(0), nicOf(1)}) {
  static const rdma::Verbs verbs = faultyVerbs();
  rdma::replaceVerbs(&verbs);
}

} // namespace dlslime::testing
