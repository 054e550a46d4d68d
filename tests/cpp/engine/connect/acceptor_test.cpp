// The end that answers unproven connections, without an engine.
#include "engine/connect/acceptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/random.h"
#include "fakes/world.h"

namespace dlslime::testing {
namespace {

// Lets the acceptor look once, as if all sockets were ready.
void lookAtListeners(Acceptor& acceptor) {
  std::vector<pollfd> fds;
  acceptor.addTo(fds);
  std::set<int> all;
  for (const auto& entry : fds) {
    all.insert(entry.fd);
  }
  acceptor.onPoll(all);
}

// A member names the process at once, so a connection with an unfinished
// greeting keeps no place.
TEST(AcceptorTest, StrangersThatHaveSaidAByteLeaveAtOnceForOthers) {
  auto self = makeIdentity();
  self.instance = randomBytes(kInstanceBytes);
  Acceptor acceptor(
      {self, nullptr, "=lo", "set by a test"},
      [](const Greeting& /*greeting*/) { return Bytes(32); });
  const auto most = HandshakeLimits::ofProcess().unproven;
  std::vector<ControlSocket> strangers;
  for (size_t i = 0; i < 4 * most; ++i) {
    strangers.push_back(ControlSocket::connectTo(acceptor.socketName()));
    ASSERT_EQ(::send(strangers.back().fd(), "x", 1, MSG_NOSIGNAL), 1);
  }
  for (size_t i = 0; i < strangers.size(); i += 64) { // connections of a look
    lookAtListeners(acceptor);
  }
  const auto gone = std::count_if(
      strangers.begin(), strangers.end(), [](const ControlSocket& one) {
        return one.ended();
      });
  EXPECT_EQ(static_cast<size_t>(gone), 3 * most);
}

} // namespace
} // namespace dlslime::testing
