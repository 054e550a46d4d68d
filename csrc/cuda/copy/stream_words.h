#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/threads/mutex.h"
#include "cuda/driver/gpu.h"

namespace dlslime::cuda {

// Words in pinned memory by which streams and processors wait for each other
// without a blocking call: a stream writes a word on coming to a place, or
// waits until a word is written. Any thread.
class StreamWords {
 public:
  explicit StreamWords(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~StreamWords();
  StreamWords(const StreamWords&) = delete;
  StreamWords& operator=(const StreamWords&) = delete;

  // Returns whether the driver can write words and wait for words.
  bool supported() const;

  // A single use of a word, set once. Dropped only when set, or if never given
  // to a stream.
  class Word {
   public:
    Word() = default;
    Word(Word&& other) noexcept
        : words_(std::exchange(other.words_, nullptr)),
          place_(std::exchange(other.place_, nullptr)),
          value_(other.value_) {}
    Word& operator=(Word&& other) noexcept {
      std::swap(words_, other.words_);
      std::swap(place_, other.place_);
      std::swap(value_, other.value_);
      return *this;
    }
    ~Word() {
      if (words_ != nullptr) {
        words_->giveBack(place_);
      }
    }
    explicit operator bool() const {
      return words_ != nullptr;
    }
    // Sets the word from a processor.
    void set() const {
      place_->store(value_, std::memory_order_release);
    }
    bool isSet() const {
      return place_->load(std::memory_order_acquire) == value_;
    }
    // Makes the stream set the word after all work given so far. Throws Error.
    void setBy(Stream stream) const;
    // Makes the stream wait until the word is set. Throws Error.
    void holdBack(Stream stream) const;

   private:
    friend class StreamWords;
    Word(StreamWords* words, std::atomic<uint32_t>* place, uint32_t value)
        : words_(words), place_(place), value_(value) {}
    DevicePointer address() const {
      return reinterpret_cast<DevicePointer>(place_);
    }

    StreamWords* words_ = nullptr;
    std::atomic<uint32_t>* place_ = nullptr;
    uint32_t value_ = 0; // one more than at the last use
  };

  // Returns a word for a single use. Throws Error if no pinned memory is left.
  Word take();

 private:
  void giveBack(std::atomic<uint32_t>* place);
  void addPage() REQUIRES(mutex_);

  const std::shared_ptr<Gpu> gpu_;
  Mutex mutex_;
  std::vector<void*> pages_ GUARDED_BY(mutex_);
  std::vector<std::atomic<uint32_t>*> free_ GUARDED_BY(mutex_);
};

} // namespace dlslime::cuda
