#include "torch_ext/store/pair_store.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/bytes.h"
#include "base/status.h"
#include "torch_ext/support/python_end.h"

namespace dlslime {

namespace {

// Largest accepted frame; Gloo's addresses are far smaller.
constexpr uint32_t kMostFrameBytes = 1024 * 1024;
// Limit of all entries together; Gloo's two addresses take a few hundred bytes.
constexpr size_t kMostKeptBytes = size_t{4} << 20;
constexpr size_t kBytesOfEntry = 128; // bookkeeping

[[noreturn]] void throwStoreError(const std::string& what) {
  C10_THROW_ERROR(DistStoreError, "dlslime: " + what);
}

} // namespace

PairStore::PairStore(SideSocket socket, std::chrono::milliseconds limit)
    : SetupStore(limit),
      socket_(std::move(socket.fd)),
      deadline_(deadlineAfter(limit)),
      received_(std::move(socket.early)) {
  takeFrames();
}

void PairStore::finish() {
  shutdown(socket_.get(), SHUT_WR);
  for (bool more = true; more;) {
    awaitSocket(POLLIN, deadline_);
    more = receive();
  }
}

void PairStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ByteWriter frame;
  frame.text(key);
  frame.blob(std::as_bytes(std::span(value)));
  ByteWriter whole;
  whole.blob(frame.take());
  const Bytes bytes = whole.take();
  for (size_t sent = 0; sent < bytes.size();) {
    awaitSocket(POLLOUT, deadline_);
    const auto put = send(
        socket_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (put < 0 && errno != EAGAIN && errno != EINTR) {
      throwStoreError(
          "this process's address could not be sent to the other end: " +
          errnoText(errno));
    }
    sent += static_cast<size_t>(std::max<ssize_t>(put, 0));
  }
  values_[key] = value;
}

std::vector<uint8_t> PairStore::get(const std::string& key) {
  wait({key}, timeout_);
  return values_.at(key);
}

bool PairStore::check(const std::vector<std::string>& keys) {
  return std::all_of(keys.begin(), keys.end(), [this](const auto& key) {
    return values_.contains(key);
  });
}

void PairStore::wait(
    const std::vector<std::string>& keys,
    const std::chrono::milliseconds& timeout) {
  const auto deadline = std::min(deadline_, deadlineAfter(timeout));
  while (!check(keys)) {
    awaitSocket(POLLIN, deadline);
    if (!receive()) {
      throwStoreError("the other end has given up before it was connected");
    }
  }
}

void PairStore::awaitSocket(short events, TimePoint deadline) {
  const StaysWhenPythonEnds stays;
  const OutsidePython outside;
  pollfd entry{socket_.get(), events, 0};
  for (;;) {
    const int ready = poll(&entry, 1, pollTimeoutMs(deadline));
    if (ready > 0) {
      return;
    }
    if (ready == 0 && Clock::now() >= deadline) {
      throwStoreError(
          "Timed out after " + std::to_string(timeout_.count()) +
          " ms: the other end has not sent its address");
    }
  }
}

bool PairStore::receive() {
  std::array<std::byte, 4096> buffer{};
  const auto got = recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (got < 0) {
    throwStoreError("the other end has gone: " + errnoText(errno));
  }
  received_.insert(received_.end(), buffer.begin(), buffer.begin() + got);
  takeFrames();
  return got > 0;
}

void PairStore::takeFrames() {
  while (received_.size() >= sizeof(uint32_t)) {
    const auto size = ByteReader(received_).number<uint32_t>();
    if (size > kMostFrameBytes) {
      throwStoreError(
          "a frame of " + std::to_string(size) + " bytes is refused: at most " +
          std::to_string(kMostFrameBytes) + " are possible");
    }
    if (received_.size() < sizeof(uint32_t) + size) {
      return;
    }
    ByteReader reader(ByteSpan(received_).subspan(sizeof(uint32_t), size));
    const auto key = reader.text();
    const auto value = reader.blob();
    if (!reader.atEnd()) {
      throwStoreError("a frame is malformed");
    }
    keptBytes_ += key.size() + value.size() + kBytesOfEntry;
    if (keptBytes_ > kMostKeptBytes) {
      throwStoreError(
          "the other end has sent more than " + std::to_string(kMostKeptBytes) +
          " bytes");
    }
    auto& kept = values_[key];
    kept.resize(value.size());
    copyBytes(
        reinterpret_cast<std::byte*>(kept.data()), value.data(), value.size());
    received_.erase(
        received_.begin(), received_.begin() + sizeof(uint32_t) + size);
  }
}

} // namespace dlslime
