#include "engine/connect/control_connector.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/bootstrap/listener.h"
#include "engine/bootstrap/net_address.h"
#include "engine/bootstrap/rendezvous_directory.h"
#include "engine/bootstrap/unix_address.h"
#include "fakes/child_process.h"
#include "fakes/status_of.h"

namespace dlslime::testing {
namespace {

// An address of this host that refuses connections. No other process can listen
// at the port meanwhile.
class ClosedAddress {
 public:
  ClosedAddress() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto own = NetAddress::parse("127.0.0.1:1");
    auto* const name = reinterpret_cast<sockaddr*>(&own.name);
    reinterpret_cast<sockaddr_in*>(name)->sin_port = 0; // the kernel chooses
    EXPECT_EQ(::bind(fd_.get(), name, own.size), 0);
    EXPECT_EQ(::getsockname(fd_.get(), name, &own.size), 0);
    text = own.text();
  }

  std::string text;

 private:
  UniqueFd fd_;
};

constexpr const char* kRemedy =
    "; let TCP connections to the ports of net.ipv4.ip_local_port_range "
    "through "
    "firewalls, or choose an interface on the peer's host with "
    "DLSLIME_SOCKET_IFNAME";

class ControlConnectorTest : public ::testing::Test {
 protected:
  ControlConnector& toLocal(const std::string& socketName) {
    peer.socketName = socketName;
    return connector.emplace(self, directory.get(), peer);
  }
  // Makes the peer a process of another host.
  ControlConnector& toRemote(std::vector<std::string> addresses) {
    peer.identity.bootId = "another";
    peer.identity.host = "b2";
    peer.addresses = std::move(addresses);
    return connector.emplace(self, directory.get(), peer);
  }
  static void await(pollfd entry) {
    EXPECT_EQ(::poll(&entry, 1, 5000), 1);
  }
  // Waits for what the connector waits for.
  void awaitEvent(short wanted) const {
    std::vector<pollfd> fds;
    connector->addTo(fds);
    ASSERT_EQ(fds.size(), 1U);
    EXPECT_EQ(fds[0].events, wanted);
    await(fds[0]);
  }
  // Waits for the socket, and returns whether the connection is complete.
  bool proceed() {
    EXPECT_TRUE(connector->connecting());
    awaitEvent(POLLOUT);
    return connector->onWritable();
  }
  Status failure() {
    return statusOf([this] { proceed(); });
  }
  void expectConnectedTo(Listener& listener) {
    EXPECT_FALSE(connector->connecting());
    EXPECT_FALSE(connector->gone());
    auto accepted = accept(listener);
    ASSERT_TRUE(accepted);
    accepted->sendFrame(Bytes(3));
    awaitEvent(POLLIN);
    EXPECT_EQ(connector->socket()->receiveFrame(), Bytes(3));
  }
  static std::optional<ControlSocket> accept(Listener& listener) {
    await({listener.fd(), POLLIN, 0});
    return listener.accept();
  }
  static std::string refused(const ClosedAddress& address) {
    return address.text + " (" + errnoText(ECONNREFUSED) + ")";
  }

  std::shared_ptr<const RendezvousDirectory> directory; // null: none
  PeerIdentity self = makeIdentity();
  AddressRecord peer = [] {
    AddressRecord made;
    made.identity = makeIdentity();
    return made;
  }();
  std::optional<ControlConnector> connector;
  ClosedAddress closed, closedToo;
  Listener network = Listener::onTheNetwork("=lo");
  const std::string open = network.names().front();
};

TEST_F(ControlConnectorTest, ProcessOfThisHostIsReachedByItsUnixSocket) {
  auto listener = Listener::onThisHost();
  auto& local = toLocal(listener.names().front());
  EXPECT_FALSE(local.socket());
  EXPECT_NO_THROW(local.requireAddress());
  local.start();
  expectConnectedTo(listener);
  EXPECT_EQ(local.peerPid(), static_cast<uint32_t>(getpid()));
  EXPECT_FALSE(local.mayTryNext());
}

TEST_F(ControlConnectorTest, UnixSocketIsPreferredToAddresses) {
  auto listener = Listener::onThisHost();
  peer.addresses = {open};
  auto& local = toLocal(listener.names().front());
  local.start();
  expectConnectedTo(listener);
  EXPECT_FALSE(network.accept());
  EXPECT_FALSE(local.mayTryNext());
}

TEST_F(ControlConnectorTest, NameWithoutAListenerIsOfAProcessThatIsGone) {
  const std::string name = Listener::onThisHost().names().front();
  auto& local = toLocal(name);
  const auto why = statusOf([&] { local.start(); });
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed) << why.message();
  EXPECT_TRUE(local.gone());
  EXPECT_FALSE(local.socket());
}

TEST_F(ControlConnectorTest, ProcessWithAFullQueueIsNotGone) {
  const std::string name = "dlslime-full-queue-" + std::to_string(getpid());
  const UnixAddress address(name);
  const UniqueFd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listening.get(), address.get(), address.size()), 0);
  ASSERT_EQ(::listen(listening.get(), 0), 0);
  std::vector<ControlSocket> waiting;
  const auto full = statusOf([&] {
    for (int i = 0; i < 100; ++i) {
      waiting.push_back(ControlSocket::connectTo(name));
    }
  });
  ASSERT_EQ(full.code(), ErrorCode::kExhausted) << full.message();
  auto& local = toLocal(name);
  const auto why = statusOf([&] { local.start(); });
  EXPECT_EQ(why.code(), ErrorCode::kExhausted) << why.message();
  EXPECT_FALSE(local.gone());
}

TEST_F(ControlConnectorTest, RecordOfAnotherHostNeedsAnAddress) {
  const auto why = statusOf([&] { toRemote({}).requireAddress(); });
  EXPECT_EQ(why.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(why, "on another host (b2)")) << why.message();
  EXPECT_NO_THROW(toRemote({open}).requireAddress());
}

TEST_F(ControlConnectorTest, RecordOfAnotherUserNeedsAnAddress) {
  peer.identity.hostUid = self.hostUid + 7;
  const auto cause = "of another user (uid " +
      std::to_string(self.hostUid + 7) + ", this process of uid " +
      std::to_string(self.hostUid) + ")";
  const auto why = statusOf([&] { toLocal("any").requireAddress(); });
  EXPECT_EQ(why.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(why, cause.c_str())) << why.message();
  peer.addresses = {open};
  EXPECT_NO_THROW(toLocal("any").requireAddress());
}

TEST_F(ControlConnectorTest, ProcessOfAnotherUserIsReachedByTheNetwork) {
  peer.identity.hostUid = self.hostUid + 7;
  peer.addresses = {open};
  toLocal("any").start();
  EXPECT_TRUE(proceed());
  expectConnectedTo(network);
  EXPECT_EQ(connector->peerPid(), 0U);
}

// The peer of a container beside, with a directory in common.
class ControlConnectorInDirectoryTest : public ControlConnectorTest {
 protected:
  ControlConnectorInDirectoryTest() {
    directory = RendezvousDirectory::open(folder.path(), "DIR=" + text);
    self.directory = peer.identity.directory = directory->id();
    peer.identity.networkNamespace = self.networkNamespace + 1;
  }

  TemporaryFolder folder;
  const std::string text = folder.path();
};

TEST_F(ControlConnectorInDirectoryTest, ContainerIsReachedByTheDirectory) {
  auto abstract = Listener::onThisHost();
  const auto name = abstract.names().front();
  auto inDirectory = Listener::inDirectory(directory, name, {});
  peer.addresses = {open};
  auto& local = toLocal(name);
  EXPECT_NO_THROW(local.requireAddress());
  local.start();
  expectConnectedTo(inDirectory);
  EXPECT_EQ(local.peerPid(), static_cast<uint32_t>(getpid()));
  EXPECT_FALSE(abstract.accept());
  EXPECT_FALSE(network.accept());
}

TEST_F(ControlConnectorInDirectoryTest, ProcessOfOneNetworkIsNot) {
  auto abstract = Listener::onThisHost();
  const auto name = abstract.names().front();
  auto inDirectory = Listener::inDirectory(directory, name, {});
  peer.identity.networkNamespace = self.networkNamespace;
  toLocal(name).start();
  expectConnectedTo(abstract);
  EXPECT_FALSE(inDirectory.accept());
}

TEST_F(ControlConnectorInDirectoryTest, NoSocketIsAProcessThatIsGone) {
  auto& local = toLocal("dlslime-none");
  const auto why = statusOf([&] { local.start(); });
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
  EXPECT_TRUE(mentions(why, ("DIR=" + text).c_str())) << why.message();
  EXPECT_TRUE(local.gone());
}

TEST_F(ControlConnectorInDirectoryTest, ContainerWithoutTheDirectoryNeedsIt) {
  peer.identity.directory.clear();
  const auto why = statusOf([&] { toLocal("any").requireAddress(); });
  EXPECT_EQ(why.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(mentions(why, "another network namespace (a container)"))
      << why.message();
  EXPECT_TRUE(mentions(why, "mount one directory into both containers"))
      << why.message();
  peer.addresses = {open};
  EXPECT_NO_THROW(toLocal("any").requireAddress());
}

TEST_F(
    ControlConnectorInDirectoryTest,
    OtherUserOfTheHostIsReachedByTheNetwork) {
  peer.identity.hostUid = self.hostUid + 7;
  const auto why = statusOf([&] { toLocal("any").requireAddress(); });
  EXPECT_TRUE(mentions(why, "of another user (uid ")) << why.message();
  peer.addresses = {open};
  toLocal("any").start();
  EXPECT_TRUE(proceed());
  expectConnectedTo(network);
}

TEST_F(ControlConnectorTest, AddressAfterAddressIsTriedUntilAProcessListens) {
  auto& remote = toRemote({closed.text, closedToo.text, open, "b2:1"});
  remote.start();
  EXPECT_FALSE(proceed());
  EXPECT_FALSE(proceed());
  EXPECT_TRUE(proceed());
  expectConnectedTo(network);
  EXPECT_EQ(remote.peerPid(), 0U);
  EXPECT_EQ(
      remote.recordAsReached().addresses,
      (std::vector<std::string>{open, "b2:1", closed.text, closedToo.text}));
}

TEST_F(ControlConnectorTest, AddressThatFailsAtOnceIsPassedOver) {
  auto& remote = toRemote({"b2:1", open});
  remote.start();
  EXPECT_TRUE(proceed());
  expectConnectedTo(network);
  EXPECT_EQ(remote.recordAsReached().addresses.front(), open);
}

TEST_F(ControlConnectorTest, ErrorAfterTheLastAddressNamesAllAndTheirCauses) {
  auto& remote = toRemote({closed.text, closedToo.text});
  remote.start();
  EXPECT_FALSE(proceed());
  EXPECT_FALSE(remote.gone());
  const auto why = failure();
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(
      why.message(),
      "no process answers at " + refused(closed) + "; " + refused(closedToo));
  EXPECT_TRUE(remote.gone());
  EXPECT_FALSE(remote.mayTryNext());
  EXPECT_EQ(remote.recordAsReached().addresses, peer.addresses);
}

TEST_F(ControlConnectorTest, ErrorOfTheOnlyAddressComesAtTheStart) {
  auto& remote = toRemote({"b2:1"});
  const auto why = statusOf([&] { remote.start(); });
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
  EXPECT_TRUE(mentions(why, "b2:1 (")) << why.message();
  EXPECT_FALSE(remote.mayTryNext());
}

TEST_F(ControlConnectorTest, ProcessWithAnAddressThatStaysSilentIsNotGone) {
  auto& remote = toRemote({open, closed.text});
  remote.start();
  remote.tryNext(Status(ErrorCode::kTimeout, "no answer for 5 s"));
  const auto why = failure();
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(
      why.message(),
      "no process answers at " + open + " (no answer for 5 s); " +
          refused(closed) + kRemedy);
  EXPECT_FALSE(remote.gone());
}

// The refusal comes from a listener, which may be the peer's.
TEST_F(ControlConnectorTest, ProcessWithAnAddressThatHasAnsweredIsNotGone) {
  auto& remote = toRemote({open, closed.text});
  remote.start();
  ASSERT_TRUE(proceed());
  EXPECT_TRUE(remote.mayTryNext());
  remote.tryNext(Status(ErrorCode::kPeerFailed, "a wrong process"));
  const auto why = failure();
  EXPECT_EQ(why.code(), ErrorCode::kPeerFailed);
  EXPECT_TRUE(mentions(why, "(a wrong process)")) << why.message();
  EXPECT_TRUE(mentions(why, refused(closed).c_str())) << why.message();
  EXPECT_FALSE(remote.gone());
}

TEST_F(ControlConnectorTest, AddressAfterAWrongProcessMayBeThePeers) {
  auto peers = Listener::onTheNetwork("=lo");
  auto& remote = toRemote({open, peers.names().front()});
  remote.start();
  ASSERT_TRUE(proceed());
  expectConnectedTo(network);
  remote.tryNext(Status(ErrorCode::kPeerFailed, "a wrong process"));
  EXPECT_TRUE(proceed());
  expectConnectedTo(peers);
  EXPECT_EQ(remote.recordAsReached().addresses.front(), peers.names().front());
}

// By the code the caller knows that the peer has given up the pair, or that a
// later try may find room.
TEST_F(ControlConnectorTest, RefusalByThePeerAtAnAddressIsTheFinalError) {
  for (const auto code : {ErrorCode::kTransportFailed, ErrorCode::kExhausted}) {
    auto& remote = toRemote({closed.text, open, closedToo.text});
    remote.start();
    EXPECT_FALSE(proceed());
    ASSERT_TRUE(proceed());
    remote.tryNext(Status(code, "refused"));
    const auto why = failure();
    EXPECT_EQ(why.code(), code);
    EXPECT_EQ(
        why.message(),
        "no process answers at " + refused(closed) + "; " + open +
            " (refused); " + refused(closedToo));
    EXPECT_FALSE(remote.gone());
  }
}

TEST_F(ControlConnectorTest, NewStartBeginsWithTheReachedAddress) {
  auto& remote = toRemote({closed.text, open});
  remote.start();
  EXPECT_FALSE(proceed());
  ASSERT_TRUE(proceed());
  expectConnectedTo(network);
  remote.close();
  EXPECT_FALSE(remote.mayTryNext());
  remote.start();
  EXPECT_TRUE(proceed());
  expectConnectedTo(network);
}

TEST_F(ControlConnectorTest, TakenSocketIsTheCallers) {
  auto& remote = toRemote({open});
  remote.start();
  ASSERT_TRUE(proceed());
  auto taken = remote.take();
  EXPECT_FALSE(remote.socket());
  std::vector<pollfd> fds;
  remote.addTo(fds);
  EXPECT_TRUE(fds.empty());
  auto accepted = accept(network);
  ASSERT_TRUE(accepted);
  EXPECT_FALSE(accepted->ended());
  taken.sendFrame(Bytes(3));
  await({accepted->fd(), POLLIN, 0});
  EXPECT_EQ(accepted->receiveFrame(), Bytes(3));
}

TEST_F(ControlConnectorTest, WantOfDescriptorsIsNotAFailureOfTheAddress) {
  auto& remote = toRemote({"127.0.0.1:9", "127.0.0.1:10"});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto status = statusOf([&] { remote.start(); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(status.code(), ErrorCode::kExhausted) << status.message();
  EXPECT_FALSE(remote.gone());
}

} // namespace
} // namespace dlslime::testing
