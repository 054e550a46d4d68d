#include "cuda/copy/stream_mark.h"

#include "base/log.h"

namespace dlslime::cuda {

StreamMarks::~StreamMarks() {
  for (const auto event : free_) {
    gpu_->driver().eventDestroy(event);
  }
}

bool StreamMarks::Mark::reached() const {
  if (event_ == nullptr) {
    return word_.isSet();
  }
  // An error belongs to the stream: the check of the stream's health finds it.
  try {
    const Gpu::Scope scope(*marks_->gpu_);
    return marks_->gpu_->driver().eventQuery(event_) == Result::kSuccess;
  } catch (const Error&) {
    return false;
  }
}

StreamMarks::Mark StreamMarks::place(Stream stream) {
  Mark mark;
  mark.marks_ = this;
  if (words_.supported()) {
    mark.word_ = words_.take();
    mark.word_.setBy(stream);
    return mark;
  }
  mark.event_ = takeEvent();
  const Gpu::Scope scope(*gpu_);
  gpu_->driver().check(
      gpu_->driver().eventRecord(mark.event_, stream),
      "recording an event (cuEventRecord)");
  return mark;
}

Event StreamMarks::takeEvent() {
  {
    const MutexLock lock(mutex_);
    if (!free_.empty()) {
      const auto event = free_.back();
      free_.pop_back();
      return event;
    }
    free_.reserve(++made_); // giveBack() must not throw
  }
  const Gpu::Scope scope(*gpu_);
  Event event = nullptr;
  gpu_->driver().check(
      gpu_->driver().eventCreate(&event, kEventDisableTiming),
      "making an event (cuEventCreate)");
  return event;
}

void StreamMarks::giveBack(Event event) {
  const MutexLock lock(mutex_);
  free_.push_back(event);
}

} // namespace dlslime::cuda
