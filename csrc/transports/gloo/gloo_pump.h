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
  // Call with mutex_ held: wake_ must not run once close() has returned.
  void tell();

  MakeCarrier make_;
  const std::function<void()> wake_;
  const milliseconds drainTime_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // mutex_ guards the members from outgoing_ to broken_.
  std::deque<Packet> outgoing_, incoming_;
  size_t outgoingBytes_ = 0, incomingBytes_ = 0;
  bool refused_ = false; // put() returned false: tell() about room
  bool lastPut_ = false; // putLast() was called: tell() when all is sent
  bool sending_ = false; // a packet is between the queue and the carrier
  bool making_ = true; // the sender thread may hang in make_
  bool peerClosed_ = false;
  bool closing_ = false;
  Status broken_;
  // Set once, under mutex_ and before receiveLoop() starts.
  std::unique_ptr<Carrier> carrier_;
  // Lets take() look for news without the mutex.
  std::atomic<bool> news_{false};
  // watcher_ gives up on the making of a carrier after the peer has closed.
  std::thread sender_, receiver_, watcher_;
};

} // namespace dlslime::gloo
