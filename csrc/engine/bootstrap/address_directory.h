#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "interface/memory.h"
#include "interface/rendezvous.h"

namespace dlslime {

// The address records of a group's ranks, as read from its rendezvous. A
// rendezvous may block for as long as a foreign store likes, so threads of the
// directory ask it, and outlive the directory if need be. All methods: any
// thread; none blocks but awaitReaders().
class AddressDirectory {
 public:
  // Records of so many ranks, the nearest, are read before they are needed.
  static constexpr int kMostAhead = 256;

  // `wake` tells of news for find(), on a thread of the directory, and never
  // after the directory's end.
  AddressDirectory(
      std::shared_ptr<Rendezvous> rendezvous,
      int rank,
      int size,
      std::function<void()> wake);
  ~AddressDirectory();
  AddressDirectory(const AddressDirectory&) = delete;
  AddressDirectory& operator=(const AddressDirectory&) = delete;
  // No more is asked or told. Idempotent.
  void close();

  // Begins to read the records of the nearest ranks: later the rendezvous may
  // be gone.
  void readAhead();
  // This process is about to end, and the rendezvous perhaps with it: blocks
  // until all ranks have read ahead, at most until the deadline; not at all in
  // a large group, one that is not new, or whose rendezvous fails.
  void awaitReaders(TimePoint deadline);

  struct Found {
    std::optional<Bytes> record; // the newest that was read
    std::string problem; // why there is none: the last cause that was seen
  };
  // From now on the rank's record is asked for, until there is one.
  Found find(int rank);
  // The record that find() returned leads nowhere: a newer one is asked for,
  // until drop().
  void refresh(int rank);
  // Nothing waits for this rank any more.
  void drop(int rank);

 private:
  class Reader;
  const std::shared_ptr<Reader> reader_;
};

// Where rank `rank` publishes its address in its group's rendezvous.
std::string addressKey(int rank);

} // namespace dlslime
