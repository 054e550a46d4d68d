#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/threads/mutex.h"
#include "interface/carrier.h"
#include "interface/message.h"

namespace dlslime::gloo {

struct Packet {
  MessageHeader header;
  Bytes payload;
};

constexpr size_t kMostPayloadBytes = 1024 * 1024;

// Moves packets between two bounded queues and a Carrier, by two threads that
// block in the carrier, one for each direction; nothing else blocks. The
// threads share ownership of the pump: a thread stuck in making a carrier,
// because the peer never comes, outlives the connection and then finds the pump
// closed.
class GlooPump final : public std::enable_shared_from_this<GlooPump> {
 public:
  using MakeCarrier = std::function<std::unique_ptr<Carrier>()>;

  // Time for the making of the carrier to go on after the peer has closed.
  static constexpr milliseconds kDrainTime{1000};

  // `wake` is called whenever take() has news, on any thread and with mutex_
  // held, but never after close() has returned true.
  GlooPump(
      MakeCarrier make,
      std::function<void()> wake,
      milliseconds drainTime = kDrainTime)
      : make_(std::move(make)), wake_(std::move(wake)), drainTime_(drainTime) {}
  void start();
  // Returns false when the queue is full; take() has news once the queue has
  // room again.
  bool put(const MessageHeader& header, ByteSpan payload);
  // Puts the last packet of all, even into a full queue.
  void putLast(const MessageHeader& header);
  // Returns true once the carrier is made.
  bool made() const;
  // Returns true if all packets put have gone out, or never will.
  bool allSent() const;
  // Appends the received packets; returns false if nothing is new. `broken`
  // says why no more packets come, once all have been taken.
  bool take(std::vector<Packet>& packets, Status& broken);
  // Tells the pump that the peer reads nothing any more: close() need not send
  // the queued packets.
  void peerClosed();
  // Returns true if no received packet waits for take() and no more will come.
  bool drained() const;
  // Ends the threads, once all packets put have gone out, or immediately if
  // `atOnce`. Returns false while packets are still to go out. Idempotent.
  bool close(bool atOnce);

 private:
  void sendLoop();
  void receiveLoop(Carrier& carrier);
  void watch();
  std::unique_ptr<Carrier> make();
  Carrier* adopt(std::unique_ptr<Carrier> carrier);
  void enqueue(const MessageHeader& header, ByteSpan payload) REQUIRES(mutex_);
  bool nextToSend(Packet& packet);
  void deliver(Packet packet);
  void breakWith(const char* what) noexcept;
  // Wants the lock, because wake_ must not run once close() has returned.
  void tell() REQUIRES(mutex_);

  MakeCarrier make_;
  const std::function<void()> wake_;
  const milliseconds drainTime_;
  mutable Mutex mutex_;
  Condition changed_;
  std::deque<Packet> outgoing_ GUARDED_BY(mutex_);
  std::deque<Packet> incoming_ GUARDED_BY(mutex_);
  size_t outgoingBytes_ GUARDED_BY(mutex_) = 0;
  size_t incomingBytes_ GUARDED_BY(mutex_) = 0;
  // put() returned false: tell() about room.
  bool refused_ GUARDED_BY(mutex_) = false;
  // putLast() was called: tell() when all is sent.
  bool lastPut_ GUARDED_BY(mutex_) = false;
  // A packet is between the queue and the carrier.
  bool sending_ GUARDED_BY(mutex_) = false;
  // The sender thread may hang in make_.
  bool making_ GUARDED_BY(mutex_) = true;
  bool peerClosed_ GUARDED_BY(mutex_) = false;
  bool closing_ GUARDED_BY(mutex_) = false;
  Status broken_ GUARDED_BY(mutex_);
  // Set once. The loops use the carrier without the lock.
  std::unique_ptr<Carrier> carrier_ GUARDED_BY(mutex_);
  // Lets take() look for news without the mutex.
  std::atomic<bool> news_{false};
  // watcher_ gives up on the making of a carrier after the peer has closed.
  std::thread sender_, receiver_, watcher_;
};

} // namespace dlslime::gloo
