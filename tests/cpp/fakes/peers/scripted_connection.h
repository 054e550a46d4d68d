#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "interface/transport.h"

namespace dlslime::testing {

// A connection without a peer: keeps sent messages, and acts as a test says.
class ScriptedConnection final : public Connection,
                                 public PullAbility,
                                 public PushAbility,
                                 public CopyAbility,
                                 public ReplaceAbility {
 public:
  struct Pull {
    uint64_t id = 0;
    uint64_t peerId = 0;
    MemoryView destination;
    bool abandoned = false;
  };

  struct Offered {
    uint64_t id = 0;
    MemoryView view;
  };
  struct Pushed {
    uint64_t id = 0;
    uint16_t slot = 0;
    MemoryView source;
    uint64_t sequence = 0;
  };

  ScriptedConnection() : Connection({"scripted", size_t{64} * 1024}) {
    abilities_.pulling = this;
    abilities_.copying = this;
    abilities_.replacing = this;
  }
  void setMaxPayload(size_t bytes) {
    facts_.maxPayload = bytes;
  }
  void setRegistrar(MemoryRegistrar* registrar) {
    abilities_.registrar = registrar;
  }
  void setPushing(bool able) {
    abilities_.pushing = able ? this : nullptr;
  }
  ConnectionInfo info() const override {
    return ConnectionInfo("none");
  }
  bool hasRoom(size_t /*payload*/) override {
    return !full && sincePoll < mostPerPoll;
  }
  bool send(const MessageHeader& header, ByteSpan payload) override {
    if (full || sincePoll >= mostPerPoll) {
      return false;
    }
    ++sincePoll;
    sent.push_back(header);
    sent.back().payloadSize = static_cast<uint32_t>(payload.size());
    return true;
  }
  RemoteBuffer expose(uint64_t id, MemoryView /*view*/) override {
    exposed.push_back(id);
    return {};
  }
  void unexpose(uint64_t id) override {
    std::erase(exposed, id);
  }
  bool pull(
      uint64_t pullId,
      uint64_t peerId,
      RemoteBuffer /*source*/,
      MemoryView destination) override {
    if (canPull) {
      pulls.push_back({pullId, peerId, destination, false});
    }
    return canPull;
  }
  void abandon(uint64_t pullId) override {
    for (auto& pull : pulls) {
      pull.abandoned |= pull.id == pullId;
    }
  }
  Range range() const override {
    return {1, SIZE_MAX};
  }
  std::optional<RemoteBuffer> offer(uint64_t id, MemoryView view) override {
    offered.push_back({id, view});
    return RemoteBuffer{1, {2}, static_cast<uint16_t>(id)};
  }
  void withdraw(uint64_t id) override {
    std::erase_if(offered, [id](const auto& one) { return one.id == id; });
  }
  Result push(
      uint64_t id,
      RemoteBuffer target,
      MemoryView source,
      uint64_t sequence) override {
    if (full) {
      return Result::kNoRoom;
    }
    pushes.push_back({id, target.slot, source, sequence});
    return Result::kPosted;
  }
  bool poll(ConnectionEvents& events, Status& broken, int /*most*/) override {
    broken = breakWith;
    sincePoll = 0;
    return onPoll ? onPoll(events) : false;
  }
  bool claimCopy(CopyJob& job) override {
    if (jobs.empty()) {
      return false;
    }
    job = jobs.front();
    jobs.pop_front();
    return true;
  }
  void finishCopy(const CopyJob& job) override {
    finished.push_back(job);
  }
  void endPulls() override {
    ended = true;
  }

  When replaceable() const override {
    return when;
  }
  void sever() override {}
  std::vector<SentMessage> unconfirmed() const override {
    return lost;
  }
  bool close(bool atOnce) override {
    return !onClose || onClose(atOnce);
  }

  size_t mostPerPoll = SIZE_MAX, sincePoll = 0; // sent messages
  bool full = false, canPull = false, ended = false;
  When when = When::kNever;
  Status breakWith;
  std::vector<MessageHeader> sent;
  std::vector<SentMessage> lost; // told when the connection is given up
  std::vector<uint64_t> exposed;
  std::vector<Pull> pulls;
  std::vector<Offered> offered;
  std::vector<Pushed> pushes;
  std::deque<CopyJob> jobs;
  std::vector<CopyJob> finished;
  std::function<bool(ConnectionEvents&)> onPoll;
  std::function<bool(bool)> onClose;
};

} // namespace dlslime::testing
