#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/driver/gpu.h"

namespace dlslime::cuda {

// Words in pinned memory by which a stream and processors wait for each other
// without a call that blocks: a stream writes one when it has come there, or
// waits until one is written. Any thread.
class StreamWords {
 public:
  explicit StreamWords(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~StreamWords();
  StreamWords(const StreamWords&) = delete;
  StreamWords& operator=(const StreamWords&) = delete;

  // Whether the driver can do it at all.
  bool supported() const;

  // One use of a word: it is set once. Must be set, or never have been given to
  // a stream, before it is dropped.
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
    // By a processor.
    void set() const {
      place_->store(value_, std::memory_order_release);
    }
    bool isSet() const {
      return place_->load(std::memory_order_acquire) == value_;
    }
    // By the stream, when it has come there. Throws Error.
    void setBy(Stream stream) const;
    // The stream goes on once it is set. Throws Error.
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

  // Throws Error: no pinned memory is left.
  Word take();

 private:
  void giveBack(std::atomic<uint32_t>* place);
  void addPage();

  const std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<void*> pages_;
  std::vector<std::atomic<uint32_t>*> free_;
};

} // namespace dlslime::cuda
