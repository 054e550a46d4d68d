#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "interface/transport.h"

namespace dlslime::testing {

// A route without another end: keeps what is sent, and does what a test says.
class ScriptedConnection final : public Connection {
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

  std::string_view route() const override {
    return "scripted";
  }
  std::string_view copyName() const override {
    return "none";
  }
  size_t maxPayload() const override {
    return mostPayload;
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
  MemoryRegistrar* registrar() override {
    return registers;
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
    if (pulling) {
      pulls.push_back({pullId, peerId, destination, false});
    }
    return pulling;
  }
  void abandon(uint64_t pullId) override {
    for (auto& pull : pulls) {
      pull.abandoned |= pull.id == pullId;
    }
  }
  PushRange pushRange() const override {
    return pushing ? PushRange{1, SIZE_MAX} : PushRange{};
  }
  std::optional<RemoteBuffer> offer(uint64_t id, MemoryView view) override {
    offered.push_back({id, view});
    return RemoteBuffer{1, {2}, static_cast<uint16_t>(id)};
  }
  void withdraw(uint64_t id) override {
    std::erase_if(offered, [id](const auto& one) { return one.id == id; });
  }
  Push push(
      uint64_t id,
      RemoteBuffer target,
      MemoryView source,
      uint64_t sequence) override {
    if (full) {
      return Push::kNoRoom;
    }
    pushes.push_back({id, target.slot, source, sequence});
    return Push::kPosted;
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

  Replaceable replaceable() const override {
    return replacing;
  }
  bool close(bool atOnce) override {
    return !onClose || onClose(atOnce);
  }

  size_t mostPayload = 64 * 1024;
  size_t mostPerPoll = SIZE_MAX, sincePoll = 0; // messages that are sent
  bool full = false, pulling = false, pushing = false, ended = false;
  Replaceable replacing = Replaceable::kNever;
  MemoryRegistrar* registers = nullptr;
  Status breakWith;
  std::vector<MessageHeader> sent;
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
