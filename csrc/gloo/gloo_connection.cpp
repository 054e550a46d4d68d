#include "gloo/gloo_connection.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace dlslime::gloo {

namespace {

// A message and a small payload travel in one Gloo message of this size; the
// rest of a larger payload follows in a second one.
constexpr size_t kFrameBytes = 8 * 1024;
constexpr size_t kInlineBytes = kFrameBytes - sizeof(MessageHeader);
constexpr size_t kMostPayloadBytes = 1024 * 1024;
// What either direction holds before it makes its producer wait.
constexpr size_t kMostQueuedBytes = 4 * 1024 * 1024;
// How long close() lets the sender finish what was handed to it.
constexpr std::chrono::milliseconds kDrainTime{1000};

} // namespace

GlooConnection::GlooConnection(MakeCarrier make, std::function<void()> wake)
    : wake_(std::move(wake)), make_(std::move(make)) {
  sender_ = std::thread([this] { sendLoop(); });
}

GlooConnection::~GlooConnection() {
  close();
}

size_t GlooConnection::maxPayload() const {
  return kMostPayloadBytes;
}

void GlooConnection::close() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kDrainTime, [this] {
      return closing_ || !broken_.ok() || (outgoing_.empty() && !sending_);
    });
    closing_ = true;
    if (carrier_) {
      carrier_->abort();
    }
  }
  changed_.notify_all();
  if (sender_.joinable()) {
    sender_.join();
  }
  if (receiver_.joinable()) {
    receiver_.join();
  }
}

void GlooConnection::breakWith(const std::string& what) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!closing_ && broken_.ok()) {
      broken_ = Status(ErrorCode::kTransportFailed, "Gloo: " + what);
    }
  }
  news_.store(true, std::memory_order_release);
  wake_();
}

bool GlooConnection::drained() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return incoming_.empty() && !broken_.ok();
}

bool GlooConnection::send(const MessageHeader& header, ByteSpan payload) {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (outgoingBytes_ + payload.size() > kMostQueuedBytes) {
      refused_ = true;
      return false;
    }
    Packet packet{header, Bytes(payload.begin(), payload.end())};
    packet.header.payloadSize = static_cast<uint32_t>(payload.size());
    outgoingBytes_ += payload.size() + sizeof(header);
    outgoing_.push_back(std::move(packet));
  }
  changed_.notify_all();
  return true;
}

bool GlooConnection::nextToSend(Packet& packet) {
  std::unique_lock<std::mutex> lock(mutex_);
  sending_ = false;
  if (outgoing_.empty()) {
    changed_.notify_all();
  }
  changed_.wait(lock, [this] { return closing_ || !outgoing_.empty(); });
  // What was sent before closing still goes out: the peer may need it.
  if (outgoing_.empty()) {
    return false;
  }
  packet = std::move(outgoing_.front());
  outgoing_.pop_front();
  sending_ = true;
  outgoingBytes_ -= packet.payload.size() + sizeof(MessageHeader);
  if (refused_ && outgoingBytes_ < kMostQueuedBytes / 2) {
    refused_ = false;
    news_.store(true, std::memory_order_release);
    lock.unlock();
    wake_();
  }
  return true;
}

void GlooConnection::sendPacket(const Packet& packet) {
  std::array<std::byte, kFrameBytes> frame{};
  std::memcpy(frame.data(), &packet.header, sizeof(MessageHeader));
  const size_t inlined = std::min(packet.payload.size(), kInlineBytes);
  if (inlined != 0) {
    std::memcpy(
        frame.data() + sizeof(MessageHeader), packet.payload.data(), inlined);
  }
  carrier_->send(frame.data(), frame.size());
  if (packet.payload.size() > inlined) {
    carrier_->send(
        packet.payload.data() + inlined, packet.payload.size() - inlined);
  }
}

void GlooConnection::sendLoop() {
  try {
    auto carrier = make_();
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      carrier_ = std::move(carrier);
      if (closing_) {
        carrier_->abort();
        return;
      }
      receiver_ = std::thread([this] { receiveLoop(); });
    }
    Packet packet;
    while (nextToSend(packet)) {
      sendPacket(packet);
    }
  } catch (const std::exception& error) {
    breakWith(error.what());
  }
}

GlooConnection::Packet GlooConnection::receivePacket() {
  std::array<std::byte, kFrameBytes> frame{};
  carrier_->receive(frame.data(), frame.size());
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
  if (inlined != 0) {
    std::memcpy(
        packet.payload.data(), frame.data() + sizeof(MessageHeader), inlined);
  }
  if (size > inlined) {
    carrier_->receive(packet.payload.data() + inlined, size - inlined);
  }
  return packet;
}

void GlooConnection::deliver(Packet packet) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(
      lock, [this] { return closing_ || incomingBytes_ < kMostQueuedBytes; });
  incomingBytes_ += packet.payload.size();
  incoming_.push_back(std::move(packet));
  lock.unlock();
  news_.store(true, std::memory_order_release);
  wake_();
}

void GlooConnection::receiveLoop() {
  try {
    for (;;) {
      deliver(receivePacket());
    }
  } catch (const std::exception& error) {
    breakWith(error.what());
  }
}

bool GlooConnection::poll(ConnectionEvents& events, Status& broken) {
  if (!news_.load(std::memory_order_acquire)) {
    return false;
  }
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    news_.store(false, std::memory_order_relaxed);
    std::move(incoming_.begin(), incoming_.end(), std::back_inserter(polled_));
    incoming_.clear();
    incomingBytes_ = 0;
    broken = polled_.empty() ? broken_ : Status();
    if (!broken_.ok()) {
      news_.store(true, std::memory_order_relaxed); // said after the last one
    }
  }
  changed_.notify_all();
  for (const auto& packet : polled_) {
    events.onMessage(packet.header, packet.payload);
  }
  polled_.clear();
  return true;
}

} // namespace dlslime::gloo
