#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace dlslime::testing {

// What a child process does, by name: define one per role at namespace scope.
// Children are this executable, started anew by exec: a fork alone may not
// use an engine.
class ChildRole {
 public:
  using Run = std::function<int(const std::vector<std::string>& arguments)>;
  ChildRole(const std::string& name, Run run);
};

// A process that runs a role; killed at the latest by the destructor.
class ChildProcess {
 public:
  ChildProcess(
      const std::string& role,
      const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const {
    return pid_;
  }
  void signal(int number) const;
  // Waits for its end; the status as of waitpid().
  int join();

 private:
  pid_t pid_ = -1;
};

// A folder that is gone with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  std::filesystem::path path_;
};

// For main(): runs the role that the environment names, if there is one.
// -1: this is no child.
int runAsChild(int count, char** arguments);

} // namespace dlslime::testing
