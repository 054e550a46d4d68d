#pragma once

#include <deque>
#include <vector>

#include "engine/progress/engine_mutex.h"
#include "engine/wire/fields.h"
#include "interface/connection.h"
#include "interface/connection_abilities.h"

namespace dlslime {

// Numbers messages to a peer in the order in which they go out, and sends them:
// over the connection, and those lost with a connection once more over its
// replacement. Under the engine's lock.
class SequencedOutput {
 public:
  explicit SequencedOutput(Connection& connection) : connection_(&connection) {}

  // Null: being replaced.
  Connection* connection() const REQUIRES(kEngineLock) {
    return connection_;
  }
  bool severed() const REQUIRES(kEngineLock) {
    return severed_;
  }
  bool failed() const REQUIRES(kEngineLock) {
    return failed_;
  }
  const Status& failure() const REQUIRES(kEngineLock) {
    return failure_;
  }
  // Returns whether new messages may go out.
  bool open() const REQUIRES(kEngineLock) {
    return !failed_ && !severed_ && unconfirmed_.empty();
  }
  // Number of the next message.
  uint64_t next() const REQUIRES(kEngineLock) {
    return next_;
  }
  // Gives the next number to a message that goes another way.
  uint64_t takeNumber() REQUIRES(kEngineLock) {
    return next_++;
  }
  // Sends under the next number. False: no room.
  [[nodiscard]] bool send(MessageHeader header, ByteSpan payload)
      REQUIRES(kEngineLock) {
    header.sequence = next_;
    const bool sent = connection_->send(header, payload);
    next_ += sent ? 1 : 0;
    return sent;
  }
  // Sends under the next number what the connection gathers.
  Fault sendGathered(MessageHeader& header, const std::vector<ByteSpan>& places)
      REQUIRES(kEngineLock);

  void fail(const Status& why) REQUIRES(kEngineLock);
  void sever() REQUIRES(kEngineLock) {
    severed_ = true;
  }
  // Takes the messages that may be lost with the connection, which is not used
  // any more.
  void keepUnconfirmed(std::vector<SentMessage> messages) REQUIRES(kEngineLock);
  // Goes on by the new connection; messages up to number `peerLast` are not
  // sent again.
  void resume(Connection& connection, uint64_t peerLast) REQUIRES(kEngineLock);
  // Queues a message, old or new, under a number used before.
  template <typename Message>
  void sendInPlace(const Message& message, uint64_t number)
      REQUIRES(kEngineLock) {
    auto header = wire::encode(message);
    header.sequence = number;
    unconfirmed_.push_back({header, {}});
  }
  // Brings the messages to be sent again into their order. Not ok: one after
  // number `peerLast` is lost.
  [[nodiscard]] Status orderUnconfirmed(uint64_t peerLast)
      REQUIRES(kEngineLock);
  std::deque<SentMessage>& unconfirmed() REQUIRES(kEngineLock) {
    return unconfirmed_;
  }
  bool handedOver() const REQUIRES(kEngineLock) {
    return unconfirmed_.empty();
  }
  // Sends messages again. False: some are left.
  bool flushUnconfirmed() REQUIRES(kEngineLock);

 private:
  Connection* connection_; // null: being replaced
  bool severed_ = false;
  bool failed_ = false;
  Status failure_;
  uint64_t next_ = 1;
  std::deque<SentMessage> unconfirmed_; // messages of connections that are gone
};

} // namespace dlslime
