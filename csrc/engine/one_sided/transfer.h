#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/library/api.h"
#include "engine/one_sided/region.h"
#include "interface/operation.h"

namespace dlslime {

// One-sided read or write of many pieces, between registered memory of our
// process and of a peer. Parts go by any way and in any order; nothing is known
// to have arrived before the whole transfer is done.
class DLSLIME_API Transfer : public Operation {
 public:
  // Pieces between one local and one remote region.
  struct Part {
    RegionPtr local;
    std::shared_ptr<const RegionHandle> remote;
    std::vector<Piece> pieces;
  };

  using Parts = std::vector<Part>;

  // Takes parts checked by PieceBuilder; several transfers may share a vector
  // of parts. `kind` is kRead or kWrite.
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
  // Returns "read from rank 1 (3 pieces, 4096 bytes, region "kv" of pid 7 on
  // h)".
  std::string describe() const override;

  // Message sent to the peer, in the group of the transfer, once all bytes have
  // arrived and before the transfer ends; may be null. Set before the transfer
  // is posted.
  OperationPtr note;

  // Marks the regions as used until over(). Called by the engine when the
  // transfer is posted; all members below are for the engine.
  void hold() REQUIRES(kEngineLock);
  void over() REQUIRES(kEngineLock) override;
  size_t open GUARDED_BY(kEngineLock) = 0; // parts not over
  // Of the parts, in RmaInitiator.
  std::vector<uint64_t> activeIds GUARDED_BY(kEngineLock);
  Status problem GUARDED_BY(kEngineLock); // the first failure
  // All bytes have arrived: the note may go.
  bool bytesThere GUARDED_BY(kEngineLock) = false;

 private:
  const std::shared_ptr<const Parts> parts_;
  size_t totalBytes_ = 0;
};
using TransferPtr = std::shared_ptr<Transfer>;

// Throws Error{kInvalidArgument} if pieces of different parts overlap in the
// written memory. PieceBuilder checks the pieces within a part.
DLSLIME_API void refuseOverlap(
    const std::vector<Transfer::Part>& parts,
    bool write);
// Throws Error{kInvalidArgument} if written bytes overlap bytes read by the
// transfer, in the memory of a process or in a file mapped at both ends.
DLSLIME_API void refuseOverlapWithSources(
    const std::vector<Transfer::Part>& parts,
    bool write);

// Collects the pieces of a part from offsets into the two regions: checks each
// piece, leaves out empty pieces and merges neighbours.
class DLSLIME_API PieceBuilder {
 public:
  PieceBuilder(
      const Region& local,
      const RegionHandle& remote,
      bool write,
      size_t expected);

  // Throws Error{kInvalidArgument} if the piece is not inside the regions.
  void add(int64_t localOffset, int64_t remoteOffset, int64_t length) {
    const auto begin = static_cast<uint64_t>(localOffset);
    const auto there = static_cast<uint64_t>(remoteOffset);
    const auto size = static_cast<uint64_t>(length);
    // Negative values are huge after the conversion.
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
  // Returns the pieces. Throws Error{kInvalidArgument} if two pieces overlap in
  // the written memory, because the bytes left by both would be unknown.
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
