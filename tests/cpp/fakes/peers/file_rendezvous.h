#pragma once

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "base/unique_fd.h"
#include "interface/rendezvous.h"

namespace dlslime::testing {

// A store in a folder, for processes of a host.
class FileRendezvous final : public Rendezvous {
 public:
  explicit FileRendezvous(std::filesystem::path folder)
      : folder_(std::move(folder)) {}

  void set(const std::string& key, const Bytes& value) override {
    const auto temporary = place(key + hex(randomBytes(4)));
    std::ofstream(temporary, std::ios::binary)
        .write(
            reinterpret_cast<const char*>(value.data()),
            static_cast<std::streamsize>(value.size()));
    std::filesystem::rename(temporary, place(key));
  }
  std::optional<Bytes> tryGet(const std::string& key) override {
    std::ifstream file(place(key), std::ios::binary);
    if (!file) {
      return std::nullopt;
    }
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const auto bytes = std::as_bytes(std::span(text));
    return Bytes(bytes.begin(), bytes.end());
  }
  uint64_t increment(const std::string& key) override {
    const auto path = place("count-" + key);
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    flock(fd.get(), LOCK_EX);
    uint64_t value = 0;
    [[maybe_unused]] auto moved = pread(fd.get(), &value, sizeof(value), 0);
    ++value;
    moved = pwrite(fd.get(), &value, sizeof(value), 0);
    return value;
  }

 private:
  std::filesystem::path place(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return folder_ / key;
  }

  const std::filesystem::path folder_;
};

} // namespace dlslime::testing
