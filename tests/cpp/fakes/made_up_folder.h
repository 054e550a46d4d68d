#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace dlslime::testing {

namespace fs = std::filesystem;

// A folder with files like the kernel's, for its life.
class MadeUpFolder {
 public:
  MadeUpFolder() {
    std::string name = fs::temp_directory_path() / "made-up.XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~MadeUpFolder() {
    fs::remove_all(root_);
  }
  MadeUpFolder(const MadeUpFolder&) = delete;
  MadeUpFolder& operator=(const MadeUpFolder&) = delete;

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  // Makes `path` a link to a file of the folder.
  void link(const std::string& path, const std::string& to) {
    fs::create_directories((root_ / path).parent_path());
    fs::create_symlink(
        fs::relative(root_ / to, (root_ / path).parent_path()), root_ / path);
  }
  const fs::path& root() const {
    return root_;
  }

 private:
  fs::path root_;
};

} // namespace dlslime::testing
