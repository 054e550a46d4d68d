#include "engine/two_sided/push_sends.h"

#include <string>
#include <utility>

#include "engine/progress/ends_anyway.h"

namespace dlslime {

wire::Rts rtsOf(const MessageHeader& header) {
  const auto eager = wire::decode<wire::Eager>(header);
  wire::Rts rts;
  rts.group = eager.group;
  rts.source = eager.source;
  rts.tag = eager.tag;
  rts.length = eager.length;
  return rts;
}

PushAbility::Result PushSends::tryPush(
    const OperationPtr& operation,
    const MessageHeader& eager) {
  const auto* const offer = offers_.find(operation->groupKey, operation->tag());
  if (offer == nullptr) {
    return PushAbility::Result::kNever;
  }
  auto& connection = *output_.connection();
  const auto view = operation->view();
  auto* const pushing = connection.pushing();
  const bool possible = pushing != nullptr &&
      (!view.onDevice() || connection.takesGpus()) &&
      pushing->range().contains(view.size) && view.size <= offer->capacity;
  if (!possible) {
    return PushAbility::Result::kNever;
  }
  const auto number = output_.next();
  const auto id = pushes_.insert({operation, rtsOf(eager), number});
  const auto result = pushing->push(id, offer->memory, view, number);
  if (result != PushAbility::Result::kPosted) {
    pushes_.take(id);
    return result;
  }
  operation->stage = Operation::Stage::kPushing;
  operation->transferId = id;
  noteSent(*operation, output_.takeNumber());
  return result;
}

void PushSends::onPushed(uint64_t pushId, const Status& status) {
  auto* const push = pushes_.find(pushId);
  if (push == nullptr) {
    return;
  }
  if (output_.severed() && !output_.failed() && !status.ok()) {
    push->over = true;
    return; // the next connection ends the push
  }
  auto operation = pushes_.take(pushId).operation;
  const EndsAnyway ends(completions_, operation);
  auto ended = status.ok()
      ? status
      : Status(
            status.code(),
            operation->describe() + " failed: " + status.message());
  completions_.finish(std::move(operation), std::move(ended));
}

void PushSends::release() {
  for (const auto id : pushes_.ids()) {
    completions_.finish(pushes_.find(id)->operation, {});
    pushes_.take(id);
  }
}

} // namespace dlslime
