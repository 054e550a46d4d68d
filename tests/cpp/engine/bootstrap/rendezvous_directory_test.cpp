// Processes of separate network namespaces meet by sockets in a directory.
#include "engine/bootstrap/rendezvous_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <fstream>

#include "engine/bootstrap/control_socket.h"
#include "engine/bootstrap/listener.h"
#include "fakes/child_process.h"
#include "fakes/status_of.h"

namespace dlslime::testing {
namespace {

using DirectoryPtr = std::shared_ptr<const RendezvousDirectory>;

DirectoryPtr openAt(const std::filesystem::path& path) {
  return RendezvousDirectory::open(
      path, "DLSLIME_RENDEZVOUS_DIR=" + path.string());
}

class RendezvousDirectoryTest : public ::testing::Test {
 protected:
  Listener listen(const std::string& name) const {
    return Listener::inDirectory(directory, name, {});
  }
  // Leaves a socket as a killed process does.
  void leaveSocket(const std::string& name, int age) const {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = directory->address(name);
    ASSERT_EQ(::bind(fd.get(), address.get(), address.size()), 0);
    ASSERT_EQ(::listen(fd.get(), 1), 0);
    makeOld(name, age);
  }
  // Moves the file's time into the past.
  void makeOld(const std::string& name, int age) const {
    const timespec then{std::time(nullptr) - age, 0};
    const timespec both[] = {then, then};
    ASSERT_EQ(
        utimensat(AT_FDCWD, (path / name).c_str(), both, AT_SYMLINK_NOFOLLOW),
        0);
  }
  bool has(const std::string& name) const {
    return std::filesystem::symlink_status(path / name).type() !=
        std::filesystem::file_type::not_found;
  }
  static std::optional<ControlSocket> accept(Listener& listener) {
    pollfd entry{listener.fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 5000), 1);
    return listener.accept();
  }

  TemporaryFolder folder;
  const std::filesystem::path path = folder.path();
  DirectoryPtr directory = openAt(path);
};

TEST_F(RendezvousDirectoryTest, OneDirectoryHasOneIdUnderAllPaths) {
  const auto link = folder.path() / "link";
  const auto other = folder.path() / "other";
  std::filesystem::create_directory_symlink(path, link);
  std::filesystem::create_directory(other);
  EXPECT_EQ(openAt(link)->id(), directory->id());
  EXPECT_EQ(openAt(path / "other" / "..")->id(), directory->id());
  EXPECT_NE(openAt(other)->id(), directory->id());
  EXPECT_FALSE(directory->id().empty());
}

TEST_F(RendezvousDirectoryTest, NoPathIsNoDirectory) {
  EXPECT_EQ(RendezvousDirectory::open("", "DLSLIME_RENDEZVOUS_DIR="), nullptr);
}

TEST_F(RendezvousDirectoryTest, PathThatIsNoDirectoryIsRefusedBySetting) {
  std::ofstream(path / "file") << "text";
  for (const char* const name : {"missing", "file", "file/below"}) {
    const auto why = statusOf([&] { openAt(path / name); });
    EXPECT_EQ(why.code(), ErrorCode::kInvalidArgument) << name;
    const auto setting = "DLSLIME_RENDEZVOUS_DIR=" + (path / name).string();
    EXPECT_TRUE(mentions(why, setting.c_str())) << why.message();
    EXPECT_TRUE(mentions(why, "mount the directory")) << why.message();
  }
}

TEST_F(RendezvousDirectoryTest, PathOfAnyLengthServes) {
  auto deep = path;
  for (int i = 0; i < 10; ++i) {
    deep /= std::string(60, 'd');
  }
  std::filesystem::create_directories(deep);
  directory = openAt(deep);
  auto listener = listen("dlslime-0123456789abcdef");
  auto socket =
      ControlSocket::connectIn(*directory, "dlslime-0123456789abcdef");
  EXPECT_TRUE(accept(listener));
  EXPECT_TRUE(std::filesystem::is_socket(deep / "dlslime-0123456789abcdef"));
}

TEST_F(RendezvousDirectoryTest, NameLongerThanASocketsIsRefused) {
  const auto why = statusOf([&] { directory->address(std::string(100, 'x')); });
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
}

// --- what killed processes leave -------------------------------------------

TEST_F(RendezvousDirectoryTest, OldSocketOfAKilledProcessIsRemoved) {
  leaveSocket("dlslime-old", 3600);
  leaveSocket("dlslime-older", 11);
  directory->removeStale();
  EXPECT_FALSE(has("dlslime-old"));
  EXPECT_FALSE(has("dlslime-older"));
  leaveSocket("dlslime-old", 3600);
  directory->removeStale();
  EXPECT_FALSE(has("dlslime-old")) << "each call reads the whole directory";
}

TEST_F(RendezvousDirectoryTest, YoungSocketStays) {
  leaveSocket("dlslime-young", 0);
  directory->removeStale();
  EXPECT_TRUE(has("dlslime-young"));
}

TEST_F(RendezvousDirectoryTest, SocketOfALivingProcessStaysWithoutANews) {
  auto listener = listen("dlslime-living");
  makeOld("dlslime-living", 3600);
  directory->removeStale();
  EXPECT_TRUE(has("dlslime-living"));
  EXPECT_FALSE(listener.accept()) << "the question is no connection";
}

TEST_F(RendezvousDirectoryTest, OtherFilesStay) {
  leaveSocket("foreign-socket", 3600);
  std::ofstream(path / "dlslime-file") << "text";
  std::filesystem::create_directory(path / "dlslime-folder");
  leaveSocket("dlslime-target", 0);
  std::filesystem::create_symlink("dlslime-target", path / "dlslime-link");
  for (const char* const name :
       {"dlslime-file", "dlslime-folder", "dlslime-link"}) {
    makeOld(name, 3600);
  }
  directory->removeStale();
  for (const char* const name :
       {"foreign-socket",
        "dlslime-file",
        "dlslime-folder",
        "dlslime-link",
        "dlslime-target"}) {
    EXPECT_TRUE(has(name)) << name;
  }
}

TEST_F(RendezvousDirectoryTest, ListenerThatBeginsRemovesWhatWasLeft) {
  leaveSocket("dlslime-old", 3600);
  const auto listener = listen("dlslime-new");
  EXPECT_FALSE(has("dlslime-old"));
  EXPECT_TRUE(has("dlslime-new"));
}

TEST_F(RendezvousDirectoryTest, DirectoryThatIsGoneHasNothingToRemove) {
  std::filesystem::remove(path);
  EXPECT_NO_THROW(directory->removeStale());
  EXPECT_NO_THROW(directory->remove("dlslime-any"));
}

// --- the listener -----------------------------------------------------------

TEST_F(RendezvousDirectoryTest, ListenerAcceptsAndKnowsItsUser) {
  auto listener = listen("dlslime-one");
  EXPECT_EQ(listener.names(), std::vector<std::string>{"dlslime-one"});
  auto socket = ControlSocket::connectIn(*directory, "dlslime-one");
  auto accepted = accept(listener);
  ASSERT_TRUE(accepted);
  EXPECT_TRUE(socket.local());
  EXPECT_EQ(accepted->credentials().uid, geteuid());
  EXPECT_EQ(socket.requireUser(geteuid()), static_cast<uint32_t>(getpid()));
  accepted->sendFrame(Bytes(3));
  EXPECT_EQ(socket.receiveFrame(), Bytes(3));
}

TEST_F(RendezvousDirectoryTest, ListenersEndRemovesItsSocketAlone) {
  const auto other = listen("dlslime-other");
  {
    auto moved = listen("dlslime-one");
    const Listener kept = std::move(moved);
    EXPECT_TRUE(has("dlslime-one"));
  }
  EXPECT_FALSE(has("dlslime-one"));
  EXPECT_TRUE(has("dlslime-other"));
}

// A forked child runs the destructors of a copy of the parent's objects.
TEST_F(RendezvousDirectoryTest, ListenersEndInAForkedChildRemovesNothing) {
  auto listener = std::make_unique<Listener>(listen("dlslime-parent"));
  const pid_t child = fork();
  if (child == 0) {
    listener.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(has("dlslime-parent"));
  ControlSocket::connectIn(*directory, "dlslime-parent");
  EXPECT_TRUE(accept(*listener));
}

TEST_F(RendezvousDirectoryTest, TakenNameIsAnErrorOfTheSetting) {
  const auto first = listen("dlslime-one");
  const auto why = statusOf([&] { listen("dlslime-one"); });
  EXPECT_EQ(why.code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(mentions(why, directory->setting().c_str())) << why.message();
  EXPECT_TRUE(has("dlslime-one")) << "the first listener's";
}

// --- connecting --------------------------------------------------------------

TEST_F(RendezvousDirectoryTest, NoSocketIsAProcessThatHasEnded) {
  const auto why =
      statusOf([&] { ControlSocket::connectIn(*directory, "dlslime-none"); });
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
  EXPECT_TRUE(mentions(why, directory->setting().c_str())) << why.message();
}

TEST_F(RendezvousDirectoryTest, SocketWithoutAProcessIsOneThatHasEnded) {
  leaveSocket("dlslime-left", 0);
  const auto why =
      statusOf([&] { ControlSocket::connectIn(*directory, "dlslime-left"); });
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
}

TEST_F(RendezvousDirectoryTest, FullQueueIsNoDeath) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = directory->address("dlslime-full");
  ASSERT_EQ(::bind(fd.get(), address.get(), address.size()), 0);
  ASSERT_EQ(::listen(fd.get(), 0), 0);
  std::vector<ControlSocket> waiting;
  const auto why = statusOf([&] {
    for (int i = 0; i < 100; ++i) {
      waiting.push_back(ControlSocket::connectIn(*directory, "dlslime-full"));
    }
  });
  EXPECT_EQ(why.code(), ErrorCode::kExhausted) << why.message();
}

} // namespace
} // namespace dlslime::testing
