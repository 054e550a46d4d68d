#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "interface/memory.h"
#include "interface/rendezvous.h"

namespace dlslime {

inline constexpr const char* kNoAddressText =
    "its address is not in the store yet: it has not called "
    "init_process_group, or has failed there (see its output)";

// Address records of a group's ranks, read from the group's rendezvous. A
// foreign store may block for any time, so threads of the directory do the
// reading, and may outlive the directory. Any thread may call any method; only
// awaitReaders() blocks.
class AddressDirectory {
 public:
  // Number of nearest ranks whose records are read before a caller needs the
  // records.
  static constexpr int kMostAhead = 256;

  // `wake` is called on a thread of the directory when find() has news, and
  // never after close().
  AddressDirectory(
      std::shared_ptr<Rendezvous> rendezvous,
      int rank,
      int size,
      std::function<void()> wake);
  ~AddressDirectory() {
    close();
  }
  AddressDirectory(const AddressDirectory&) = delete;
  AddressDirectory& operator=(const AddressDirectory&) = delete;
  // Stops reading and calling `wake`. Idempotent.
  void close();

  // Begins to read the records of the nearest ranks, because the rendezvous may
  // be gone later.
  void readAhead();
  // Blocks until all ranks have read ahead, at most until the deadline: this
  // process is about to end, perhaps together with the rendezvous. Returns at
  // once in a group of more than kMostAhead ranks, 30 s after readAhead(), and
  // when the rendezvous fails.
  void awaitReaders(TimePoint deadline);

  struct Found {
    std::optional<Bytes> record; // the newest record read
    std::string problem; // the last known reason for a missing record
    // Every look for the last kLostTime failed: the rendezvous is gone.
    bool lost = false;
  };
  static constexpr milliseconds kLostTime{10000};
  // Returns the rank's record, or the reason for a missing record; the
  // directory then keeps asking for the record.
  Found find(int rank);
  // Keeps asking for a newer record, until one comes or drop() is called: the
  // record returned by find() leads nowhere.
  void refresh(int rank);
  // Stops asking for the rank's record.
  void drop(int rank);

 private:
  class Reader;
  const std::shared_ptr<Reader> reader_;
};

// Returns the key of the rank's address record in the group's rendezvous.
inline std::string addressKey(int rank) {
  return "address/" + std::to_string(rank);
}

} // namespace dlslime
