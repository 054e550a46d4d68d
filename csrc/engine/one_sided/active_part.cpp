#include "engine/one_sided/active_part.h"

namespace dlslime {

Status namingMemory(const ActivePart& active, const Status& fault) {
  const auto& part = active.part();
  switch (fault.code()) {
    case ErrorCode::kOwnFault:
      return {
          ErrorCode::kTransportFailed,
          "the local " + part.local->describe() + " " + fault.message()};
    case ErrorCode::kPeerFault:
      return {
          ErrorCode::kTransportFailed,
          part.remote->describe() + " " + fault.message()};
    default:
      return fault;
  }
}

} // namespace dlslime
