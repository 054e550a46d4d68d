#pragma once

#include <memory>
#include <vector>

#include "base/threads/mutex.h"
#include "cuda/copy/stream_words.h"

namespace dlslime::cuda {

// Marks telling when a stream has come to a place: by a word written by the
// stream, at the cost of a look at memory, or, where the driver can't write
// words, by an event, at the cost of a call. Any thread.
class StreamMarks {
 public:
  explicit StreamMarks(std::shared_ptr<Gpu> gpu)
      : gpu_(std::move(gpu)), words_(gpu_) {}
  ~StreamMarks();
  StreamMarks(const StreamMarks&) = delete;
  StreamMarks& operator=(const StreamMarks&) = delete;

  // A place in a stream; dropped only once reached, or once the stream has
  // failed.
  class Mark {
   public:
    Mark() = default;
    Mark(Mark&& other) noexcept
        : marks_(std::exchange(other.marks_, nullptr)),
          word_(std::move(other.word_)),
          event_(std::exchange(other.event_, nullptr)) {}
    Mark& operator=(Mark&& other) noexcept {
      std::swap(marks_, other.marks_);
      std::swap(word_, other.word_);
      std::swap(event_, other.event_);
      return *this;
    }
    ~Mark() {
      if (event_ != nullptr) {
        marks_->giveBack(event_);
      }
    }
    explicit operator bool() const {
      return marks_ != nullptr;
    }
    // Returns false for ever after the stream has failed: ask for the stream's
    // health from time to time.
    bool reached() const;

   private:
    friend class StreamMarks;
    StreamMarks* marks_ = nullptr;
    StreamWords::Word word_;
    Event event_ = nullptr;
  };

  // Places a mark behind all work given to the stream so far. Throws Error.
  Mark place(Stream stream);

 private:
  void giveBack(Event event);
  Event takeEvent();

  const std::shared_ptr<Gpu> gpu_;
  StreamWords words_;
  Mutex mutex_;
  std::vector<Event> free_ GUARDED_BY(mutex_);
  size_t made_ GUARDED_BY(mutex_) = 0; // events
};

} // namespace dlslime::cuda
