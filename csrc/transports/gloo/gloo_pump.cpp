#include "transports/gloo/gloo_pump.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <iterator>
#include <system_error>
#include <utility>

namespace dlslime::gloo {

namespace {

// Size of the Gloo message for a header and a small payload; the rest of a
// larger payload follows in a second Gloo message.
constexpr size_t kFrameBytes = 8 * 1024;
constexpr size_t kInlineBytes = kFrameBytes - sizeof(MessageHeader);
// Bytes queued in a direction before its producer has to wait.
constexpr size_t kMostQueuedBytes = 4 * 1024 * 1024;

void sendPacket(Carrier& carrier, const Packet& packet) {
  std::array<std::byte, kFrameBytes> frame{};
  std::memcpy(frame.data(), &packet.header, sizeof(MessageHeader));
  const size_t inlined = std::min(packet.payload.size(), kInlineBytes);
  copyBytes(
      frame.data() + sizeof(MessageHeader), packet.payload.data(), inlined);
  carrier.send(frame.data(), frame.size());
  if (packet.payload.size() > inlined) {
    carrier.send(
        packet.payload.data() + inlined, packet.payload.size() - inlined);
  }
}

Packet receivePacket(Carrier& carrier) {
  std::array<std::byte, kFrameBytes> frame{};
  carrier.receive(frame.data(), frame.size());
  Packet packet;
  std::memcpy(&packet.header, frame.data(), sizeof(MessageHeader));
  const size_t size = packet.header.payloadSize;
  if (size > kMostPayloadBytes) {
    throw Error(
        ErrorCode::kTransportFailed,
        "a frame announces " + std::to_string(size) + " bytes, more than " +
            std::to_string(kMostPayloadBytes));
  }
  packet.payload.resize(size);
  const size_t inlined = std::min(size, kInlineBytes);
  copyBytes(
      packet.payload.data(), frame.data() + sizeof(MessageHeader), inlined);
  if (size > inlined) {
    carrier.receive(packet.payload.data() + inlined, size - inlined);
  }
  return packet;
}

} // namespace

void GlooPump::start() {
  sender_ = std::thread([self = shared_from_this()] { self->sendLoop(); });
}

bool GlooPump::close(bool atOnce) {
  bool abandoned = false;
  {
    const MutexLock lock(mutex_);
    const bool over = closing_ || peerClosed_ || !broken_.ok() ||
        (outgoing_.empty() && !sending_);
    if (!over && !atOnce) {
      return false;
    }
    closing_ = true;
    abandoned = making_;
    if (carrier_) {
      carrier_->abort();
    }
  }
  changed_.notifyAll();
  if (sender_.joinable()) {
    // Torch cannot stop a Gloo group that waits for its other end.
    abandoned ? sender_.detach() : sender_.join();
  }
  for (auto* const thread : {&receiver_, &watcher_}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
  return true;
}

void GlooPump::tell() {
  news_.store(true, std::memory_order_release);
  if (!closing_) {
    wake_();
  }
}

void GlooPump::breakWith(const char* what) noexcept {
  const MutexLock lock(mutex_);
  if (!closing_ && broken_.ok()) {
    broken_ = inWords([&] {
      return Status(ErrorCode::kTransportFailed, std::string("Gloo: ") + what);
    });
  }
  tell();
}

void GlooPump::peerClosed() {
  const MutexLock lock(mutex_);
  if (!std::exchange(peerClosed_, true) && making_) {
    try {
      watcher_ = std::thread([self = shared_from_this()] { self->watch(); });
    } catch (const std::system_error& error) { // without a watcher, give up now
      broken_ = statusOf(error);
      tell();
    }
  }
}

// Lets the making of the carrier go on for drainTime_: the peer's end may have
// been ready, and used, before the local end is.
void GlooPump::watch() {
  const auto deadline = deadlineAfter(drainTime_);
  MutexLock lock(mutex_);
  while (!closing_ && making_ && changed_.waitUntil(lock, deadline)) {
  }
  const bool made = closing_ || !making_;
  lock.unlock();
  if (!made) {
    breakWith("the other end closed before it was connected");
  }
}

bool GlooPump::drained() const {
  const MutexLock lock(mutex_);
  return incoming_.empty() && !broken_.ok();
}

bool GlooPump::put(const MessageHeader& header, ByteSpan payload) {
  {
    const MutexLock lock(mutex_);
    if (outgoingBytes_ + payload.size() > kMostQueuedBytes) {
      refused_ = true;
      return false;
    }
    enqueue(header, payload);
  }
  changed_.notifyAll();
  return true;
}

void GlooPump::enqueue(const MessageHeader& header, ByteSpan payload) {
  Packet packet{header, Bytes(payload.begin(), payload.end())};
  packet.header.payloadSize = static_cast<uint32_t>(payload.size());
  outgoingBytes_ += payload.size() + sizeof(header);
  outgoing_.push_back(std::move(packet));
}

void GlooPump::putLast(const MessageHeader& header) {
  {
    const MutexLock lock(mutex_);
    enqueue(header, {});
    lastPut_ = true;
  }
  changed_.notifyAll();
}

bool GlooPump::made() const {
  const MutexLock lock(mutex_);
  return carrier_ != nullptr;
}

bool GlooPump::allSent() const {
  const MutexLock lock(mutex_);
  return (outgoing_.empty() && !sending_) || !broken_.ok();
}

bool GlooPump::nextToSend(Packet& packet) {
  MutexLock lock(mutex_);
  sending_ = false;
  if (outgoing_.empty()) {
    changed_.notifyAll();
    if (std::exchange(lastPut_, false)) {
      tell(); // the owner waits for allSent()
    }
  }
  while (!closing_ && outgoing_.empty()) {
    changed_.wait(lock);
  }
  // Packets put before closing still go to the carrier, since the peer may need
  // them; an aborted carrier throws.
  if (outgoing_.empty()) {
    return false;
  }
  packet = std::move(outgoing_.front());
  outgoing_.pop_front();
  sending_ = true;
  outgoingBytes_ -= packet.payload.size() + sizeof(MessageHeader);
  if (refused_ && outgoingBytes_ < kMostQueuedBytes / 2) {
    refused_ = false;
    tell();
  }
  return true;
}

std::unique_ptr<Carrier> GlooPump::make() {
  std::unique_ptr<Carrier> carrier;
  std::exception_ptr error;
  try {
    carrier = make_();
  } catch (...) {
    error = std::current_exception();
  }
  {
    const MutexLock lock(mutex_);
    making_ = false;
  }
  changed_.notifyAll();
  if (error) {
    std::rethrow_exception(error);
  }
  return carrier;
}

// Returns the carrier, or null if the pump needs none any more.
Carrier* GlooPump::adopt(std::unique_ptr<Carrier> carrier) {
  const MutexLock lock(mutex_);
  if (closing_ || !broken_.ok()) {
    return nullptr;
  }
  carrier_ = std::move(carrier);
  auto* const adopted = carrier_.get();
  receiver_ = std::thread(
      [self = shared_from_this(), adopted] { self->receiveLoop(*adopted); });
  return adopted;
}

void GlooPump::sendLoop() {
  try {
    auto* const carrier = adopt(make());
    if (carrier == nullptr) {
      return;
    }
    Packet packet;
    while (nextToSend(packet)) {
      sendPacket(*carrier, packet);
    }
  } catch (const std::exception& error) {
    breakWith(error.what());
  }
}

void GlooPump::deliver(Packet packet) {
  MutexLock lock(mutex_);
  while (!closing_ && incomingBytes_ >= kMostQueuedBytes) {
    changed_.wait(lock);
  }
  incomingBytes_ += packet.payload.size() + sizeof(MessageHeader);
  incoming_.push_back(std::move(packet));
  tell();
}

void GlooPump::receiveLoop(Carrier& carrier) {
  try {
    for (;;) {
      deliver(receivePacket(carrier));
    }
  } catch (const std::exception& error) {
    breakWith(error.what());
  }
}

bool GlooPump::take(std::vector<Packet>& packets, Status& broken) {
  if (!news_.load(std::memory_order_acquire)) {
    return false;
  }
  {
    const MutexLock lock(mutex_);
    news_.store(false, std::memory_order_relaxed);
    std::move(incoming_.begin(), incoming_.end(), std::back_inserter(packets));
    incoming_.clear();
    incomingBytes_ = 0;
    broken = packets.empty() ? broken_ : Status();
    if (!broken_.ok()) {
      news_.store(true, std::memory_order_relaxed); // then take() tells broken_
    }
  }
  changed_.notifyAll();
  return true;
}

} // namespace dlslime::gloo
