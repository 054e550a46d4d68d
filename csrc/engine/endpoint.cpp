#include "engine/endpoint.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/random.h"
#include "engine/bootstrap/address_directory.h"
#include "engine/bootstrap/wire_records.h"

namespace dlslime {

namespace {
struct Address {
  Bytes id;
  Bytes records[2]; // as rank 0 and as rank 1
};

Address decode(ByteSpan bytes) {
  constexpr auto kWhat = "the address of an endpoint";
  ByteReader reader(bytes);
  readPreamble(reader, kWhat);
  const auto take = [&] {
    const auto blob = reader.blob();
    return Bytes(blob.begin(), blob.end());
  };
  Address address;
  address.id = take();
  for (auto& record : address.records) {
    record = take();
  }
  requireWhole(reader, address.id.size() == kEndpointIdBytes, kWhat);
  for (const auto& record : address.records) {
    decodeAddress(record);
  }
  return address;
}
} // namespace

Bytes endpointAddress(ByteSpan id, ByteSpan first, ByteSpan second) {
  ByteWriter writer;
  writePreamble(writer);
  writer.blob(id);
  writer.blob(first);
  writer.blob(second);
  return writer.take();
}

GroupOptions groupOptions(
    const Endpoint::Options& options,
    int rank,
    std::shared_ptr<Rendezvous> exchange) {
  GroupOptions group;
  group.name = options.name;
  group.rank = rank;
  group.size = 2;
  group.timeout = options.timeout;
  group.route = options.route;
  group.fallback = options.fallback;
  group.carrierSource = options.carrierSource;
  group.rendezvous = std::move(exchange);
  group.oneLife = true;
  return group;
}

Endpoint::Endpoint(std::shared_ptr<Engine> engine, const Options& options)
    : engine_(std::move(engine)), id_(randomBytes(kEndpointIdBytes)) {
  Bytes records[2];
  for (int rank = 0; rank < 2; ++rank) {
    exchanges_[rank] = std::make_shared<MapRendezvous>();
    groups_[rank] =
        engine_->join(groupOptions(options, rank, exchanges_[rank]));
    records[rank] = *exchanges_[rank]->tryGet(addressKey(rank));
  }
  address_ = endpointAddress(id_, records[0], records[1]);
}

void Endpoint::leave() {
  std::shared_ptr<Group> left[2];
  {
    const MutexLock lock(mutex_);
    if (std::exchange(left_, true)) {
      return;
    }
    std::copy(std::begin(groups_), std::end(groups_), left);
  }
  for (const auto& group : left) {
    engine_->leave(*group);
  }
}

void Endpoint::connect(ByteSpan peer) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, why);
  };
  Address other;
  try {
    other = decode(peer);
  } catch (const Error& error) {
    refuse(error.what());
  }
  if (other.id == id_) {
    refuse("an endpoint can't be connected to itself: make a second one");
  }
  const MutexLock lock(mutex_);
  if (left_) {
    refuse("the endpoint has been closed");
  }
  if (!peerAddress_.empty()) {
    if (peerAddress_ != Bytes(peer.begin(), peer.end())) {
      refuse(
          "the endpoint is connected already, and has one peer: make a second "
          "endpoint for a second peer");
    }
    return;
  }
  const int rank = id_ < other.id ? 0 : 1;
  const auto& record = other.records[1 - rank];
  engine_->pair(
      *groups_[rank], 1 - rank, decodeAddress(record), *groups_[1 - rank]);
  rank_ = rank;
  exchanges_[rank]->set(addressKey(1 - rank), record);
  peerAddress_.assign(peer.begin(), peer.end());
}

} // namespace dlslime
