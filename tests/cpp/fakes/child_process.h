#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace dlslime::testing {

// The work of a child process, by name: define a role at namespace scope. A
// child runs the test's executable, started by exec, since a mere fork may not
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
  // Waits for the end; returns the status as of waitpid().
  int join();

 private:
  pid_t pid_ = -1;
};

// A folder that is removed with the object.
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

// Runs the role named by the environment, for main(). Returns a negative number
// if the environment names no role.
int runAsChild(int count, char** arguments);

} // namespace dlslime::testing
