#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "interface/carrier.h"
#include "interface/message.h"

namespace dlslime::gloo {

struct Packet {
  MessageHeader header;
  Bytes payload;
};

constexpr size_t kMostPayloadBytes = 1024 * 1024;

// Moves packets between two bounded queues and a Carrier, by two threads that
// block in it, one each way; nothing else here blocks. Shared with
// its threads: one that can't be called back (a Carrier in the making, whose
// other end never comes) outlives the connection, and finds itself closed.
class GlooPump final : public std::enable_shared_from_this<GlooPump> {
 public:
  using MakeCarrier = std::function<std::unique_ptr<Carrier>()>;

  // How long a peer that has closed lets the making of the carrier go on.
  static constexpr milliseconds kDrainTime{1000};

  // `wake` is called from both threads whenever take() has news, and never
  // after close().
  GlooPump(
      MakeCarrier make,
      std::function<void()> wake,
      milliseconds drainTime = kDrainTime)
      : make_(std::move(make)), wake_(std::move(wake)), drainTime_(drainTime) {}
  void start();
  // False when the queue is full; there is news when it no longer is.
  bool put(const MessageHeader& header, ByteSpan payload);
  // The same, whether it is full or not: what is put last of all.
  void putLast(const MessageHeader& header);
  // The other end is there.
  bool made() const;
  // Everything that was put has gone out, or never will.
  bool allSent() const;
  // Appends what has come; false if there is no news. `broken` says why no
  // more will come, after the last packet.
  bool take(std::vector<Packet>& packets, Status& broken);
  // Nobody reads at the other end: close() need not send what waits.
  void peerClosed();
  // Nothing received waits for take(), and more may come.
  bool drained() const;
  // Ends both threads, once what was put has gone out, or `atOnce`. False: it
  // has not. Idempotent.
  bool close(bool atOnce);

 private:
  void sendLoop();
  void receiveLoop();
  void watch();
  std::unique_ptr<Carrier> make();
  bool adopt(std::unique_ptr<Carrier> carrier);
  void enqueue(const MessageHeader& header, ByteSpan payload);
  bool nextToSend(Packet& packet);
  void sendPacket(const Packet& packet);
  Packet receivePacket();
  void deliver(Packet packet);
  void breakWith(const char* what) noexcept;
  void tell(); // with mutex_ held: wake_ must not run once close() returns

  MakeCarrier make_;
  const std::function<void()> wake_;
  const milliseconds drainTime_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<Packet> outgoing_, incoming_;
  size_t outgoingBytes_ = 0, incomingBytes_ = 0;
  bool refused_ = false; // put() said no: tell when there is room
  bool lastPut_ = false; // tell when it has gone out
  bool sending_ = false; // a packet is between the queue and the carrier
  bool making_ = true; // the sender may hang in make_
  bool peerClosed_ = false;
  bool closing_ = false;
  Status broken_;
  std::unique_ptr<Carrier> carrier_; // set once, before receiveLoop() starts
  // Lets take() look without the mutex.
  std::atomic<bool> news_{false};
  // The last one gives up on a carrier whose peer has closed.
  std::thread sender_, receiver_, watcher_;
};

} // namespace dlslime::gloo
