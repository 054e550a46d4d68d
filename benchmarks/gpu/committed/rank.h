#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "committed/shared.h"

namespace committed {

enum class Way {
  kCommitted, // streams wait for work given to a driver before
  kOverWords, // a stream waits for a processor that has to start the copy
  kHost, // the host waits
};

// One of two processes that exchange messages in plain driver calls, as an
// engine with committed waits would. For a single calling thread; a second
// thread commits messages that the peer waits for.
class Rank {
 public:
  // Makes the context, registers the shared memory, and opens the peer's
  // memory.
  Rank(Shared& shared, int rank, Way chosen, size_t memoryBytes);
  ~Rank();
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Posts a message and returns the message's number. `offset` is in memory().
  uint32_t send(Stream stream, uint32_t offset, uint32_t size);
  uint32_t receive(Stream stream, uint32_t offset);
  // Holds the stream back until the message is there, or its memory is free.
  void waitReceived(uint32_t message, Stream stream);
  void waitSent(uint32_t message, Stream stream);

  // Send and receive messages that fit a slot. The sender's stream copies a
  // message out, and the receiver's stream copies the message in: when the
  // sender's word is set, or when a processor has copied the message into a
  // slot of the receiver and set a word.
  uint32_t sendSmall(Stream stream, uint32_t offset, uint32_t size);
  void receiveSmall(Stream stream, uint32_t offset, uint32_t size);

  // Returns true until the message's copy is made.
  bool isHeld(uint32_t message) const;

  void barrier();
  DevicePointer memory() const {
    return memory_;
  }
  DevicePointer peerMemory() const {
    return peerMemory_;
  }
  // Return the addresses for streams, in the shared memory.
  DevicePointer addressOf(const std::atomic<uint32_t>& word) const;
  DevicePointer addressOf(const std::byte* bytes) const;
  Direction& mine() {
    return shared_.to[number]; // messages to this rank
  }
  Direction& theirs() {
    return shared_.to[1 - number];
  }

  const int number;
  const Way way;

 private:
  struct Receive {
    uint32_t offset;
    Event event;
  };

  void openPeer();
  // Let the stream set the word to the message's number, or wait for the
  // number.
  void set(std::atomic<uint32_t>& word, uint32_t message, Stream stream);
  void await(std::atomic<uint32_t>& word, uint32_t message, Stream stream);
  // Gives the driver the copies of all messages up to `message`.
  void commit(uint32_t message);
  void copyInto(uint32_t slot); // copies the peer's message
  void enqueueCopy(uint32_t message);
  void copyWhenReady(uint32_t message); // Way::kHost, kOverWords
  void run();
  void runCommits();
  void runCopies();
  void fillWhenSent(uint32_t message);

  Shared& shared_;
  Context context_ = nullptr;
  DevicePointer base_ = 0; // of the shared memory, for streams
  DevicePointer memory_ = 0;
  DevicePointer peerMemory_ = 0;
  Stream copies_ = nullptr; // for messages of the peer
  uint32_t barriers_ = 0;
  uint32_t sent_ = 0;
  uint32_t small_ = 0;
  uint32_t smallReceived_ = 0;
  std::vector<Receive> receives_; // by number, modulo kSlots

  std::mutex committing_; // held only across driver calls
  uint32_t copied_ = 0; // used by the thread only, as filled_
  uint32_t filled_ = 0;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// Waits until the word has reached the value; throws std::runtime_error when
// the peer has failed.
void spinUntil(
    const std::atomic<uint32_t>& word,
    uint32_t value,
    const Shared& shared);
bool reached(const std::atomic<uint32_t>& word, uint32_t value);

} // namespace committed
