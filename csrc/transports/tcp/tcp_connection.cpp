#include "transports/tcp/tcp_connection.h"

#include <algorithm>
#include <system_error>
#include <thread>

namespace dlslime::tcp {

namespace {
// Type of the last frame from an end severing the connection; no message has
// type 0.
constexpr MessageType kParting{};
// Most bytes to move each way in a poll(), which holds the engine's lock.
constexpr size_t kMostPerPoll =
    2 * (sizeof(MessageHeader) + FrameStream::kMostPayloadBytes);
// Largest payload to be copied in a batch, so that several messages go out
// together.
constexpr size_t kSmallBytes = 8 * 1024;
} // namespace

std::shared_ptr<PendingSocket> PendingSocket::open(
    OpenSideSocket open,
    std::function<void()> wake) {
  auto pending = std::make_shared<PendingSocket>();
  try {
    std::thread([pending, open = std::move(open), wake = std::move(wake)] {
      pending->run(open);
      wake();
    }).detach();
  } catch (const std::system_error& error) {
    throw Error(statusOf(error));
  }
  return pending;
}

void PendingSocket::run(const OpenSideSocket& open) noexcept {
  Status failed;
  try {
    auto socket = open(deadlineAfter(TcpConnection::kOpenTime));
    const MutexLock lock(mutex_);
    if (!givenUp_) {
      socket_ = std::move(socket);
    }
    return;
  } catch (const std::exception& error) {
    failed = inWords([&] {
      const bool room = statusOf(error).code() != ErrorCode::kExhausted;
      return Status(
          room ? ErrorCode::kTransportFailed : ErrorCode::kExhausted,
          std::string("TCP: ") + error.what());
    });
  }
  const MutexLock lock(mutex_);
  failed_ = std::move(failed);
}

std::optional<SideSocket> PendingSocket::take() {
  const MutexLock lock(mutex_);
  if (!failed_.ok()) {
    throw Error(failed_);
  }
  return std::exchange(socket_, std::nullopt);
}

void PendingSocket::giveUp() {
  const MutexLock lock(mutex_);
  givenUp_ = true;
  socket_.reset();
}

TcpConnection::~TcpConnection() {
  pending_->giveUp();
  if (stream_) {
    ready_->remove(stream_->fd());
  }
}

// Takes over the socket if open; returns false while the socket is still being
// opened.
bool TcpConnection::adopt() {
  if (stream_) {
    return true;
  }
  auto socket = pending_->take();
  if (!socket) {
    return false;
  }
  stream_.emplace(std::move(*socket));
  try {
    news_ = ready_->add(stream_->fd());
  } catch (...) {
    stream_.reset();
    throw;
  }
  return true;
}

bool TcpConnection::verify(Bytes& /*result*/) {
  return adopt();
}

bool TcpConnection::send(const MessageHeader& header, ByteSpan payload) {
  const size_t size = sizeof(header) + payload.size();
  const bool wait = batch_ && payload.size() <= kSmallBytes;
  if (peerEnded_) {
    return true; // the peer reads nothing any more
  }
  if (!stream_ || budget_ < size || !stream_->put(header, payload, wait)) {
    refused_ = true;
    return false;
  }
  budget_ -= size;
  return true;
}

bool TcpConnection::canGather(size_t payload) {
  if (stream_ && !stream_->full()) {
    stream_->flush(); // sends frames kept for the batch
  }
  const bool room = peerEnded_ ||
      (stream_ && budget_ >= sizeof(MessageHeader) + payload &&
       stream_->unsent() == 0);
  refused_ |= !room;
  return room;
}

Fault TcpConnection::sendGathered(
    const MessageHeader& header,
    std::span<const ByteSpan> places) {
  if (peerEnded_) {
    return Fault::kNone; // the peer reads nothing any more
  }
  size_t size = sizeof(header);
  for (const auto& place : places) {
    size += place.size();
  }
  budget_ -= std::min(budget_, size);
  return stream_->putGathered(header, places);
}

void TcpConnection::endBatch() {
  batch_ = false;
  if (stream_) {
    stream_->flush();
  }
}

// Sends kept bytes. Returns true if a message refused before may find room now.
bool TcpConnection::sendRest() {
  // Even in a batch a full socket has to be written now, because news of room
  // comes only once.
  if (!batch_ || stream_->full()) {
    stream_->flush();
  }
  budget_ = kMostPerPoll;
  const bool room = stream_->unsent() < FrameStream::kMostPayloadBytes;
  return room && std::exchange(refused_, false);
}

void TcpConnection::deliver(ConnectionEvents& events, const Frame& frame) {
  if (frame.header.type == kParting) {
    peerParted_ = true;
    events.onParted();
  } else if (!peerParted_ && frame.placed) {
    events.onPlaced(frame.header, frame.fault);
  } else if (!peerParted_) {
    events.onMessage(frame.header, frame.payload);
  }
}

// Reads once. Returns false if nothing has come.
bool TcpConnection::fill(ConnectionEvents& events) {
  const auto begun = stream_->begun();
  if (!begun) {
    return stream_->fill();
  }
  return stream_->fillInto(
      peerParted_ ? Placement{}
                  : events.placementOf(begun->header, begun->payload));
}

bool TcpConnection::takeIn(ConnectionEvents& events, int most) {
  bool any = false;
  // Reading costs time even for bytes that are dropped, so the bytes received
  // are limited, too.
  const auto end = stream_->received() + 2 * kMostPerPoll;
  size_t taken = 0;
  for (; most > 0 && taken < kMostPerPoll && stream_->received() < end;
       any = true) {
    if (const auto frame = stream_->next()) {
      --most;
      taken += sizeof(MessageHeader) + frame->header.payloadSize;
      deliver(events, *frame);
    } else if (!fill(events)) {
      return any;
    }
  }
  *news_ = true; // more may have come
  return true;
}

bool TcpConnection::poll(ConnectionEvents& events, Status& broken, int most) {
  try {
    if (!failed_.ok() || !adopt()) {
      broken = failed_;
      return !failed_.ok();
    }
  } catch (const std::exception& error) {
    failed_ = statusOf(error);
    broken = failed_;
    return true;
  }
  ready_->look();
  bool any = false;
  const bool news = news_->exchange(false);
  if ((refused_ || stream_->unsent() > 0) && (news || !stream_->full())) {
    any = sendRest();
  }
  budget_ = kMostPerPoll;
  if (news) {
    any = takeIn(events, most) || any;
  }
  if (!stream_->broken().ok() && !*news_) {
    broken = stream_->broken();
    peerParted_ = true;
    return true;
  }
  return any;
}

void TcpConnection::peerClosed() {
  peerEnded_ = true;
  if (stream_) {
    stream_->expectEnd();
  } else if (failed_.ok()) {
    failed_ = Status(
        ErrorCode::kTransportFailed,
        "TCP: the other end closed before it was connected");
  }
}

void TcpConnection::sever() {
  severed_ = true;
  if (stream_) {
    MessageHeader last;
    last.type = kParting;
    stream_->putLast(last);
  }
}

// Flushes kept bytes, because poll() is not called any more.
bool TcpConnection::close(bool atOnce) {
  if (stream_) {
    stream_->flush();
  }
  return atOnce || allSent();
}

bool TcpConnection::drained() const {
  if (!stream_) {
    return !failed_.ok();
  }
  if (severed_) {
    return peerParted_ && stream_->allSent();
  }
  return !stream_->broken().ok() && !*news_;
}

} // namespace dlslime::tcp
