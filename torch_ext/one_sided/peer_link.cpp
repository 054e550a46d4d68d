#include "torch_ext/one_sided/peer_link.h"

#include "torch_ext/support/gil.h"
#include "torch_ext/support/tensor_view.h"

namespace dlslime {

namespace {
// Returns the GPU with the transfer's local memory, or kProcessor. Throws Error
// for local memory of two GPUs.
int deviceOf(const Transfer::Parts& parts) {
  int found = MemoryView::kProcessor;
  for (const auto& part : parts) {
    const auto view = part.local->view();
    if (!view.onDevice() || view.device == found) {
      continue;
    }
    if (found != MemoryView::kProcessor) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "one transfer can't be with local memory of two GPUs: the " +
              part.local->describe() + " is on GPU " +
              std::to_string(view.device) + ", another part on GPU " +
              std::to_string(found) + "; begin two transfers");
    }
    found = view.device;
  }
  return found;
}
} // namespace

// `shared` is the result of handle(), called first because an endpoint knows
// the peer only afterwards.
Pending PeerLink::post(
    const std::shared_ptr<GroupHandle>& shared,
    const OperationPtr& operation,
    std::shared_ptr<Bytes> bytes) {
  if (operation->kind() == Operation::Kind::kReceive) {
    shared->engine->receive(*shared->group, operation);
  } else {
    shared->engine->send(*shared->group, operation);
  }
  return {shared, operation, std::move(bytes)};
}

Pending PeerLink::transfer(
    bool write,
    std::shared_ptr<const Transfer::Parts> parts,
    uint32_t noteTag,
    const std::shared_ptr<Bytes>& note) const {
  const auto shared = usable();
  const int device = deviceOf(*parts);
  const auto transfer = std::make_shared<Transfer>(
      write ? Operation::Kind::kWrite : Operation::Kind::kRead,
      peer(),
      std::move(parts));
  if (device != MemoryView::kProcessor) {
    const auto index = static_cast<c10::DeviceIndex>(device);
    transfer->onDevice = std::make_unique<OnDevice>();
    transfer->onDevice->stream = currentStream({c10::DeviceType::CUDA, index});
  }
  if (note) {
    transfer->note = std::make_shared<NoteOperation>(
        Operation::Kind::kSend,
        peer(),
        NoteOperation::kFirstTag + noteTag,
        note);
  }
  shared->engine->transfer(*shared->group, transfer);
  return {shared, transfer};
}

Pending PeerLink::send(const at::Tensor& tensor, uint32_t tag) const {
  const auto shared = usable();
  return post(
      shared,
      std::make_shared<TensorOperation>(
          Operation::Kind::kSend,
          peer(),
          tag,
          checkedMessage("send", {tensor})),
      nullptr);
}

Pending PeerLink::receive(const at::Tensor& tensor, uint32_t tag) const {
  const auto shared = usable();
  return post(
      shared,
      std::make_shared<TensorOperation>(
          Operation::Kind::kReceive,
          peer(),
          tag,
          checkedMessage("recv", {tensor})),
      nullptr);
}

Pending PeerLink::sendNote(uint32_t noteTag, std::shared_ptr<Bytes> bytes)
    const {
  const auto shared = usable();
  return post(
      shared,
      std::make_shared<NoteOperation>(
          Operation::Kind::kSend,
          peer(),
          NoteOperation::kFirstTag + noteTag,
          std::move(bytes)),
      nullptr);
}

Pending PeerLink::receiveNote(uint32_t noteTag, size_t capacity) const {
  auto bytes = std::make_shared<Bytes>(capacity);
  const auto shared = usable();
  return post(
      shared,
      std::make_shared<NoteOperation>(
          Operation::Kind::kReceive,
          peer(),
          NoteOperation::kFirstTag + noteTag,
          bytes),
      bytes);
}

std::shared_ptr<GroupHandle> PeerLink::usable() const {
  auto shared = handle();
  shared->requireUsable();
  return shared;
}

PeerReport PeerLink::explain() const {
  refuseInForkedChild();
  const auto shared = handle();
  return shared->engine->explain(
      *shared->group,
      peer(),
      deadlineAfter(shared->timeout.load()),
      heedingSignals());
}

EndpointLink::EndpointLink(const Endpoint::Options& options)
    : endpoint_(std::make_shared<Endpoint>(acquireEngine(), options)),
      timeout_(options.timeout) {}

EndpointLink::~EndpointLink() {
  if (pythonEnds()) {
    new std::shared_ptr<Endpoint>(std::move(endpoint_));
    return;
  }
  const WithoutGil others;
  close();
}

void EndpointLink::connect(ByteSpan peer) {
  endpoint_->connect(peer);
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!handle_) {
    handle_ = std::make_shared<GroupHandle>();
    handle_->engine = endpoint_->engine();
    handle_->group = endpoint_->group();
    handle_->timeout.store(timeout_);
  }
}

std::shared_ptr<GroupHandle> EndpointLink::handle() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (closed_ || !handle_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        closed_ ? "the endpoint has been closed"
                : "the endpoint is not connected: give connect() the address "
                  "of the other endpoint");
  }
  return handle_;
}

void EndpointLink::close() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (std::exchange(closed_, true)) {
      return;
    }
  }
  endpoint_->leave();
}

} // namespace dlslime
