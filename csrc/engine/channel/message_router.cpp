#include "engine/channel/message_router.h"

#include <string>

#include "engine/channel/peer_channel.h"

namespace dlslime {

Status invalidMessage(const MessageHeader& header, const PeerIdentity& peer) {
  return {
      ErrorCode::kTransportFailed,
      "a message of type " + std::to_string(static_cast<int>(header.type)) +
          " from process " + std::to_string(peer.pid) +
          " is invalid at this point"};
}

Status MessageRouter::route(const MessageHeader& header, ByteSpan payload) {
  switch (header.type) {
    case MessageType::kJoin:
    case MessageType::kJoined:
    case MessageType::kStale:
    case MessageType::kLeave:
    case MessageType::kRefused:
      owner_.onGroupMessage(channel_.shared_from_this(), header);
      return {};
    case MessageType::kEager:
    case MessageType::kRts:
    case MessageType::kRevoke:
    case MessageType::kMoved:
    case MessageType::kPushed:
    case MessageType::kData:
    case MessageType::kRetracted:
      return toInbound(header, payload);
    case MessageType::kStreamRequest:
    case MessageType::kFinish:
    case MessageType::kCredit:
    case MessageType::kTruncated:
    case MessageType::kRtr:
    case MessageType::kRetract:
      return toOutbound(header);
    case MessageType::kResolved:
    case MessageType::kRevokeKey:
    case MessageType::kGetData:
    case MessageType::kPutAck:
      return toInitiator(header, payload);
    case MessageType::kResolve:
    case MessageType::kGetRequest:
    case MessageType::kPut:
    case MessageType::kKeyRevoked:
      return toTarget(header, payload);
    case MessageType::kShare:
    case MessageType::kUnshare:
    case MessageType::kReshare:
      return toGpus(header, payload);
    case MessageType::kNop:
      return {};
  }
  return invalidMessage(header, channel_.peer());
}

Status MessageRouter::toInbound(const MessageHeader& header, ByteSpan payload) {
  auto& in = parts_.in;
  switch (header.type) {
    case MessageType::kEager: {
      const auto eager = wire::decode<wire::Eager>(header);
      return in.onEager(groupOf(eager), eager, header.sequence, payload);
    }
    case MessageType::kRts: {
      const auto rts = wire::decode<wire::Rts>(header);
      return in.onRts(groupOf(rts), rts);
    }
    case MessageType::kRevoke: {
      const auto revoke = wire::decode<wire::Revoke>(header);
      in.onRevoke(groupOf(revoke), revoke);
      return {};
    }
    case MessageType::kMoved: {
      const auto moved = wire::decode<wire::Moved>(header);
      in.onMoved(groupOf(moved), moved);
      return {};
    }
    case MessageType::kData:
      in.rendezvous().onData(wire::decode<wire::Data>(header), payload);
      return {};
    case MessageType::kRetracted:
      in.advertised().onRetracted(wire::decode<wire::Retracted>(header));
      return {};
    default: {
      const auto pushed = wire::decode<wire::Pushed>(header);
      return in.onPushed(groupOf(pushed), pushed, header.sequence)
          ? Status()
          : invalidMessage(header, channel_.peer());
    }
  }
}

Status MessageRouter::toOutbound(const MessageHeader& header) {
  auto& out = parts_.out;
  switch (header.type) {
    case MessageType::kStreamRequest:
      out.onStreamRequest(wire::decode<wire::StreamRequest>(header));
      break;
    case MessageType::kFinish:
      out.onFinish(wire::decode<wire::Finish>(header));
      break;
    case MessageType::kCredit:
      out.onCredit(wire::decode<wire::Credit>(header));
      break;
    case MessageType::kTruncated: {
      const auto truncated = wire::decode<wire::Truncated>(header);
      out.onTruncated(groupOf(truncated), truncated);
      break;
    }
    case MessageType::kRtr:
      out.onRtr(wire::decode<wire::Rtr>(header));
      break;
    default:
      out.onRetract(wire::decode<wire::Retract>(header));
      break;
  }
  return {};
}

Status MessageRouter::toInitiator(
    const MessageHeader& header,
    ByteSpan payload) {
  auto& initiator = parts_.initiator;
  switch (header.type) {
    case MessageType::kResolved:
      initiator.onResolved(wire::decode<wire::Resolved>(header));
      break;
    case MessageType::kRevokeKey:
      initiator.onRevokeKey(wire::decode<wire::RevokeKey>(header));
      break;
    case MessageType::kGetData:
      initiator.receiver().onGetData(
          wire::decode<wire::GetData>(header), payload);
      break;
    default:
      initiator.receiver().onPutAck(wire::decode<wire::PutAck>(header));
      break;
  }
  return {};
}

Status MessageRouter::toTarget(const MessageHeader& header, ByteSpan payload) {
  auto& target = parts_.target;
  switch (header.type) {
    case MessageType::kResolve: {
      const auto resolve = wire::decode<wire::Resolve>(header);
      target.onResolve(groupOf(resolve) != nullptr, resolve);
      break;
    }
    case MessageType::kGetRequest: {
      const auto request = wire::decode<wire::GetRequest>(header);
      target.onGetRequest(groupOf(request) != nullptr, request, payload);
      break;
    }
    case MessageType::kPut: {
      const auto put = wire::decode<wire::Put>(header);
      target.onPut(groupOf(put) != nullptr, put, payload);
      break;
    }
    default:
      target.onKeyRevoked(wire::decode<wire::KeyRevoked>(header));
      break;
  }
  return {};
}

Status MessageRouter::toGpus(const MessageHeader& header, ByteSpan payload) {
  switch (header.type) {
    case MessageType::kShare:
      gpus_.onShare(wire::decode<wire::Share>(header), payload);
      break;
    case MessageType::kUnshare:
      gpus_.onUnshare(wire::decode<wire::Unshare>(header));
      break;
    default:
      parts_.out.onReshare(wire::decode<wire::Reshare>(header));
      break;
  }
  return {};
}

Placement MessageRouter::placementOf(
    const MessageHeader& header,
    ByteSpan begin) {
  if (header.type == MessageType::kGetData) {
    const auto data = wire::decode<wire::GetData>(header);
    return parts_.initiator.receiver().placementOf(data, header.payloadSize);
  }
  if (header.type != MessageType::kPut) {
    return {};
  }
  const auto put = wire::decode<wire::Put>(header);
  return groupOf(put) != nullptr
      ? parts_.target.placementOf(put, begin, header.payloadSize)
      : Placement{};
}

void MessageRouter::onPlaced(const MessageHeader& header, Fault fault) {
  if (header.type == MessageType::kGetData) {
    const auto data = wire::decode<wire::GetData>(header);
    parts_.initiator.receiver().onPlacedData(data, header.payloadSize, fault);
  } else {
    const auto put = wire::decode<wire::Put>(header);
    parts_.target.onPlacedPut(groupOf(put) != nullptr, put, fault);
  }
}

} // namespace dlslime
