#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/one_sided/region.h"
#include "interface/operation.h"

namespace dlslime {

// One-sided read or write of many pieces, between registered memory of this
// process and of one peer. Its parts go by any way and in any order; nothing is
// known of what has arrived before the whole is done.
class Transfer : public Operation {
 public:
  // What lies in one pair of regions.
  struct Part {
    RegionPtr local;
    std::shared_ptr<const RegionHandle> remote;
    std::vector<Piece> pieces;
  };

  using Parts = std::vector<Part>;

  // The parts are checked: see PieceBuilder. `kind` is kRead or kWrite.
  // Several transfers may have the same ones.
  Transfer(Kind kind, int peer, std::shared_ptr<const Parts> parts);
  Transfer(Kind kind, int peer, Parts parts)
      : Transfer(kind, peer, std::make_shared<const Parts>(std::move(parts))) {}

  bool write() const {
    return kind() == Kind::kWrite;
  }
  const Parts& parts() const {
    return *parts_;
  }
  size_t totalBytes() const {
    return totalBytes_;
  }
  // "read from rank 1 (3 pieces, 4096 bytes, region "kv" of pid 7 on h)"
  std::string describe() const override;

  // Sent to the peer once all bytes are there, in this group, before the
  // transfer ends; may be null. Set before the transfer is posted.
  OperationPtr note;

  // Of the engine, under its lock.
  void hold(); // when it is posted: its regions are in use until over()
  void over() override;
  size_t open = 0; // parts that are not over
  std::vector<uint64_t> activeIds; // of its parts, in RmaInitiator
  Status problem; // the first one
  bool bytesThere = false; // its note may be sent

 private:
  const std::shared_ptr<const Parts> parts_;
  size_t totalBytes_ = 0;
};
using TransferPtr = std::shared_ptr<Transfer>;

// Throws Error{kInvalidArgument}: pieces of two parts overlap where they are
// written. Those of one part are PieceBuilder's to check.
void refuseOverlap(const std::vector<Transfer::Part>& parts, bool write);
// Throws the same: of a transfer within this process, what is written overlaps
// what is read.
void refuseOverlapWithSources(
    const std::vector<Transfer::Part>& parts,
    bool write);

// Collects the pieces of one part from offsets into the two regions: checks
// each, leaves out empty ones and merges neighbours.
class PieceBuilder {
 public:
  PieceBuilder(
      const Region& local,
      const RegionHandle& remote,
      bool write,
      size_t expected);

  // Throws Error{kInvalidArgument}: not inside the regions.
  void add(int64_t localOffset, int64_t remoteOffset, int64_t length) {
    const auto begin = static_cast<uint64_t>(localOffset);
    const auto there = static_cast<uint64_t>(remoteOffset);
    const auto size = static_cast<uint64_t>(length);
    // Negative ones are huge here.
    if (size > localSize_ || begin > localSize_ - size || size > remoteSize_ ||
        there > remoteSize_ - size) {
      refuse(localOffset, remoteOffset, length);
    }
    ++added_;
    if (size == 0) {
      return;
    }
    std::byte* const data = localBase_ + begin;
    const uint64_t address = remoteBase_ + there;
    if (!pieces_.empty()) {
      auto& last = pieces_.back();
      if (last.local + last.size == data &&
          last.remote + last.size == address) {
        last.size += size;
        return;
      }
    }
    pieces_.push_back({data, address, size});
  }
  // Throws Error{kInvalidArgument}: two pieces are to be written to the same
  // place, and which one would be there in the end nobody knows.
  std::vector<Piece> take();

 private:
  [[noreturn]] void
  refuse(int64_t localOffset, int64_t remoteOffset, int64_t length) const;
  struct Range {
    uint64_t begin, size;
  };
  Range target(const Piece& piece) const;
  bool ascending() const;
  bool overlapOnGrid(uint64_t unit) const;
  bool overlapSorted() const;

  const Region& local_;
  const RegionHandle& remote_;
  const bool write_;
  std::byte* const localBase_;
  const uint64_t localSize_, remoteBase_, remoteSize_;
  size_t added_ = 0;
  std::vector<Piece> pieces_;
};

} // namespace dlslime
