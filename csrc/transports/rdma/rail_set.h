#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "interface/transport.h"
#include "transports/rdma/rail/rail.h"

namespace dlslime::rdma {

// The rails of a connection. If a rail breaks, the whole set breaks. Messages
// and pushes go over the first rail, which keeps their immediates in order.
class RailSet final : public BatchAbility {
 public:
  using Rails = std::vector<std::unique_ptr<Rail>>;
  // Takes the requests that the device has refused once the set is broken; no
  // completions come for them.
  using OnRefused = std::function<void(const Rail&, SendQueue::Refused)>;

  // `rails`: at least one.
  RailSet(Rails rails, OnRefused onRefused)
      : rails_(std::move(rails)), onRefused_(std::move(onRefused)) {}
  RailSet(const RailSet&) = delete;
  RailSet& operator=(const RailSet&) = delete;

  Rail& first() {
    return *rails_.front();
  }
  const Rail& first() const {
    return *rails_.front();
  }
  const Rails& all() const {
    return rails_;
  }
  // Drops the rails whose bit is not set in `numbers`. Throws Error if no rail
  // is left.
  void keep(uint32_t numbers);
  std::vector<NicPtr> nics() const;
  // Fills the devices, lanes and merit in.
  void describe(ConnectionInfo& info) const;

  const Status& broken() const {
    return broken_;
  }
  bool whole() const {
    return broken_.ok();
  }
  // Breaks the set because of a fault of the rail; later calls only hand over
  // what devices have refused.
  void breakWith(const Rail& rail, const std::string& what);
  // Makes the NICs stop accessing memory.
  void toError() noexcept;

  // Tells that the peer can receive.
  void peerIsReady() {
    peerReady_ = true;
  }
  bool peerReady() const {
    return peerReady_;
  }
  // True if the first rail can take a request for the peer.
  bool mayPost() const {
    return whole() && peerReady_ && first().queue.room();
  }
  // Posts a request to the rail, which must have room. Returns false, with the
  // set broken, if the device refuses the request, which the text calls `what`.
  bool post(Rail& rail, ibv_send_wr& request, RequestId id, const char* what);
  // Tells the peer that all units before `position` have been consumed.
  bool postCredit(Rail& rail, uint32_t position, RequestKind kind);

  void beginBatch() override;
  void endBatch() override;

 private:
  size_t meritOf(size_t lanes) const;

  Rails rails_;
  const OnRefused onRefused_;
  Status broken_;
  // Always set at the initiator, and at the acceptor after the first immediate
  // received.
  bool peerReady_ = false;
};

} // namespace dlslime::rdma
