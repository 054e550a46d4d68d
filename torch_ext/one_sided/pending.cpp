#include "torch_ext/one_sided/pending.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "torch_ext/support/device_stream.h"

namespace dlslime {

Notifier::Notifier() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) {
    throwErrno("cannot create an eventfd", errno);
  }
}

void Notifier::push(uint64_t number) {
  bool first = false;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    first = ended_.empty();
    ended_.push_back(number);
  }
  if (first) { // otherwise the loop was told already
    const uint64_t one = 1;
    [[maybe_unused]] const auto put = write(event_.get(), &one, sizeof(one));
  }
}

std::vector<uint64_t> Notifier::take() {
  uint64_t count = 0;
  [[maybe_unused]] const auto got = read(event_.get(), &count, sizeof(count));
  const std::lock_guard<std::mutex> guard(mutex_);
  return std::exchange(ended_, {});
}

bool Pending::done() const {
  if (!operation_->done()) {
    refuseInForkedChild();
    handle_->engine->poke(operation_.get());
  }
  return operation_->done();
}

void Pending::holdCurrentStream() const {
  const auto stream = currentStream(c10::Device(c10::DeviceType::CUDA));
  waitByStream(handle_, operation_, stream, usualLimit());
}

void Pending::cancel() const {
  refuseInForkedChild();
  handle_->engine->cancel(
      *handle_->group,
      operation_,
      Status(
          ErrorCode::kCancelled,
          operation_->describe() + " was cancelled by its caller"));
}

ByteSpan Pending::bytes() const {
  const bool there = bytes_ && operation_->done() && operation_->status().ok();
  return there ? ByteSpan(*bytes_).first(operation_->bytes()) : ByteSpan();
}

void Pending::watch(const std::shared_ptr<Notifier>& notifier, uint64_t number)
    const {
  operation_->onDone([notifier, number] { notifier->push(number); });
  if (!operation_->done()) {
    handle_->engine->attend();
  }
}

} // namespace dlslime
