#include "fakes/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>

#include "base/random.h"

extern char** environ;

namespace dlslime::testing {

namespace {

constexpr const char* kVariable = "DLSLIME_TEST_ROLE";

std::map<std::string, ChildRole::Run>& roles() {
  static auto* all = new std::map<std::string, ChildRole::Run>;
  return *all;
}

} // namespace

ChildRole::ChildRole(const std::string& name, Run run) {
  roles().emplace(name, std::move(run));
}

int runAsChild(int count, char** arguments) {
  const char* const role = std::getenv(kVariable);
  if (role == nullptr) {
    return -1;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto found = roles().find(role);
  if (found == roles().end()) {
    return 99;
  }
  return found->second({arguments + 1, arguments + count});
}

ChildProcess::ChildProcess(
    const std::string& role,
    const std::vector<std::string>& arguments) {
  std::string variable(kVariable);
  variable.append("=").append(role);
  std::vector<char*> environment{const_cast<char*>(variable.c_str())};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  std::vector<char*> line{const_cast<char*>("dlslime_tests")};
  for (const auto& argument : arguments) {
    line.push_back(const_cast<char*>(argument.c_str()));
  }
  line.push_back(nullptr);
  const int error = posix_spawn(
      &pid_,
      "/proc/self/exe",
      nullptr,
      nullptr,
      line.data(),
      environment.data());
  EXPECT_EQ(error, 0);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)) {}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    join();
  }
}

void ChildProcess::signal(int number) const {
  EXPECT_EQ(kill(pid_, number), 0);
}

int ChildProcess::join() {
  int status = -1;
  waitpid(std::exchange(pid_, -1), &status, 0);
  return status;
}

TemporaryFolder::TemporaryFolder()
    : path_(
          std::filesystem::temp_directory_path() /
          ("dlslime-test-" + hex(randomBytes(8)))) {
  std::filesystem::create_directory(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

} // namespace dlslime::testing
