#include "tcp/tcp_connection.h"

#include <system_error>
#include <thread>

namespace dlslime::tcp {

namespace {
// The last frame of an end that has severed the connection: no message has
// this type.
constexpr MessageType kParting{};
// What one call may move while it holds the engine's lock.
constexpr size_t kMostPerPoll =
    2 * (sizeof(MessageHeader) + FrameStream::kMostPayloadBytes);
// A message that is copied, so that it can go out with others.
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
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!givenUp_) {
      socket_ = std::move(socket);
    }
    return;
  } catch (const std::exception& error) {
    failed = inWords([&] {
      return Status(
          ErrorCode::kTransportFailed, std::string("TCP: ") + error.what());
    });
  }
  const std::lock_guard<std::mutex> guard(mutex_);
  failed_ = std::move(failed);
}

std::optional<SideSocket> PendingSocket::take() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!failed_.ok()) {
    throw Error(failed_);
  }
  return std::exchange(socket_, std::nullopt);
}

void PendingSocket::giveUp() {
  const std::lock_guard<std::mutex> guard(mutex_);
  givenUp_ = true;
  socket_.reset();
}

TcpConnection::~TcpConnection() {
  pending_->giveUp();
  if (stream_) {
    ready_->remove(stream_->fd());
  }
}

// Whether the socket is there.
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
    return true; // nobody reads it
  }
  if (!stream_ || budget_ < size || !stream_->put(header, payload, wait)) {
    refused_ = true;
    return false;
  }
  budget_ -= size;
  return true;
}

void TcpConnection::endBatch() {
  batch_ = false;
  if (stream_) {
    stream_->flush();
  }
}

// True: there may be room for what was refused.
bool TcpConnection::sendRest() {
  if (!batch_) {
    stream_->flush();
  }
  budget_ = kMostPerPoll;
  const bool room = stream_->unsent() < FrameStream::kMostPayloadBytes;
  return room && std::exchange(refused_, false);
}

bool TcpConnection::takeIn(ConnectionEvents& events, int most) {
  bool any = false;
  for (size_t taken = 0; most > 0 && taken < kMostPerPoll;) {
    const auto frame = stream_->next();
    if (!frame) {
      if (!stream_->fill()) {
        return any;
      }
      any = true;
      continue;
    }
    any = true;
    --most;
    taken += sizeof(MessageHeader) + frame->payload.size();
    if (frame->header.type == kParting) {
      peerParted_ = true;
      events.onParted();
    } else if (!peerParted_) {
      events.onMessage(frame->header, frame->payload);
    }
  }
  *news_ = true; // there may be more
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
  if (refused_ || stream_->unsent() > 0) {
    any = sendRest();
  }
  budget_ = kMostPerPoll;
  if (news_->exchange(false)) {
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
    stream_->dropUnsent();
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
