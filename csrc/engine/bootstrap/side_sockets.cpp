#include "engine/bootstrap/side_sockets.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <thread>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "engine/bootstrap/control_socket.h"
#include "engine/bootstrap/handshake_limits.h"
#include "engine/bootstrap/session_key.h"

namespace dlslime {

namespace {

// Most sockets expected at once: as many as incoming handshakes may be under
// way (HandshakeLimits::proven).
constexpr size_t kMostExpected = 256;
// Time for a peer without room to have room again: unproven connections end
// after kProofTime.
constexpr milliseconds kRoomTime = 3 * HandshakeLimits::kProofTime;
constexpr milliseconds kFirstPause{1}; // between tries
constexpr milliseconds kLongestPause{50};

// Returns false when the descriptor is not ready by the deadline.
bool isReady(int fd, short wanted, TimePoint deadline) {
  pollfd entry{fd, wanted, 0};
  int count = 0;
  do {
    count = poll(&entry, 1, pollTimeoutMs(deadline));
  } while (count < 0 && errno == EINTR);
  return count == 1;
}

ControlSocket connectedTo(const std::string& address, TimePoint deadline) {
  auto socket = ControlSocket::startConnecting(address);
  if (!isReady(socket.fd(), POLLOUT, deadline)) {
    throw Error(ErrorCode::kTimeout, "no answer in time");
  }
  socket.finishConnecting();
  return socket;
}

} // namespace

SideSockets::Place SideSockets::find(const std::string& nonce) {
  return std::find_if(
      expected_.begin(), expected_.end(), [&](const Expected& entry) {
        return entry.nonce == nonce;
      });
}

bool SideSockets::mayCome(const std::string& nonce) {
  const auto found = find(nonce);
  return !closed_ && found != expected_.end() && !found->socket.fd;
}

void SideSockets::expect(const std::string& nonce) {
  const MutexLock lock(mutex_);
  if (expected_.size() >= kMostExpected) {
    const auto oldest = std::find_if(
        expected_.begin(), expected_.end(), [](const Expected& entry) {
          return !entry.awaited;
        });
    if (oldest != expected_.end()) {
      expected_.erase(oldest);
    }
  }
  expected_.push_back({nonce, {}, false});
}

bool SideSockets::bring(const std::string& nonce, SideSocket socket) {
  const MutexLock lock(mutex_);
  const auto found = find(nonce);
  if (found == expected_.end() || found->socket.fd) {
    return false;
  }
  found->socket = std::move(socket);
  changed_.notifyAll();
  return true;
}

SideSocket SideSockets::take(const std::string& nonce, TimePoint deadline) {
  MutexLock lock(mutex_);
  if (const auto found = find(nonce); found != expected_.end()) {
    found->awaited = true;
  }
  while (mayCome(nonce) && changed_.waitUntil(lock, deadline)) {
  }
  const auto found = find(nonce);
  SideSocket socket;
  if (found != expected_.end()) {
    socket = std::move(found->socket);
    expected_.erase(found);
  }
  if (!socket.fd) {
    throw Error(
        closed_ ? ErrorCode::kCancelled : ErrorCode::kTimeout,
        closed_ ? "this process has ended its connections"
                : "the other end has not opened its second socket");
  }
  return socket;
}

void SideSockets::forget(const std::string& nonce) {
  const MutexLock lock(mutex_);
  if (const auto found = find(nonce); found != expected_.end()) {
    expected_.erase(found);
    changed_.notifyAll();
  }
}

void SideSockets::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  changed_.notifyAll();
}

namespace {

Challenge awaitChallenge(ControlSocket& socket, TimePoint deadline) {
  for (;;) {
    if (!isReady(socket.fd(), POLLIN, deadline)) {
      throw Error(
          ErrorCode::kTimeout,
          "the peer has accepted the second socket, but does not answer");
    }
    if (const auto frame = socket.receiveFrame()) {
      return decodeChallenge(*frame);
    }
  }
}

// Greets the acceptor, and returns the acceptor's answer.
Challenge
greet(ControlSocket& socket, const Greeting& greeting, TimePoint deadline) {
  try {
    socket.sendFrame(encode(greeting));
  } catch (const Error&) {
    // An acceptor short of room tells why before hanging up.
    if (const auto told = socket.receiveFrame()) {
      return decodeChallenge(*told);
    }
    throw;
  }
  return awaitChallenge(socket, deadline);
}

// Returns the socket once the process at the far end has proved to be the peer.
// Throws Error{kExhausted} when the peer asks to try again, or hangs up: a
// genuine peer does so only to make room for other connections, or when this
// end was late.
SideSocket
proven(const SideSocketWay& way, ControlSocket& socket, TimePoint deadline) {
  auto greeting = way.greeting;
  greeting.nonce = randomBytes(kNonceBytes);
  Challenge challenge;
  try {
    challenge = greet(socket, greeting, deadline);
    const SessionKey key(way.secret, greeting, challenge.nonce);
    if (challenge.verdict == Verdict::kAccepted &&
        key.provenBy(challenge.proof)) {
      socket.sendFrame(key.seal(SessionKey::End::kInitiator, 0, way.hello));
      return socket.release();
    }
  } catch (const Error& error) {
    const bool hungUp =
        error.status().code() == ErrorCode::kPeerFailed && socket.ended();
    throw Error(
        hungUp ? ErrorCode::kExhausted : error.status().code(), error.what());
  }
  if (challenge.verdict == Verdict::kLater) {
    throw Error(ErrorCode::kExhausted, challenge.text);
  }
  throw Error(
      ErrorCode::kPeerFailed,
      "the answering process does not know the secret: " + challenge.text);
}

// Opens a side socket over a socket made by connect(). Tries again for a while
// when the peer has no room; a shortage of this process is left to the caller,
// which then gives up the first socket, too.
SideSocket openBy(
    const std::function<ControlSocket()>& connect,
    const SideSocketWay& way,
    TimePoint deadline) {
  const auto last = std::min(deadline, deadlineAfter(kRoomTime));
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    auto socket = connect();
    try {
      return proven(way, socket, deadline);
    } catch (const Error& error) {
      if (error.status().code() != ErrorCode::kExhausted ||
          Clock::now() + pause >= last) {
        throw;
      }
    }
    std::this_thread::sleep_for(pause);
  }
}

} // namespace

ControlSocket connectOnThisHost(
    const PeerIdentity& self,
    const RendezvousDirectory* directory,
    const AddressRecord& peer) {
  return sameHost(self, peer.identity) || directory == nullptr
      ? ControlSocket::connectTo(peer.socketName)
      : ControlSocket::connectIn(*directory, peer.socketName);
}

// Each address but the last gets half of the remaining time, since an address
// may lead to a wrong process.
SideSocket openSideSocket(const SideSocketWay& way, TimePoint deadline) {
  if (meetLocally(way.self, way.record.identity)) {
    const auto connect = [&way] {
      auto socket =
          connectOnThisHost(way.self, way.directory.get(), way.record);
      socket.requireUser(way.self.uid);
      return socket;
    };
    return openBy(connect, way, deadline);
  }
  std::string tried;
  auto code = ErrorCode::kPeerFailed;
  for (const auto& address : way.record.addresses) {
    const bool last = &address == &way.record.addresses.back();
    const auto now = Clock::now();
    const auto limit = last ? deadline : now + (deadline - now) / 2;
    try {
      return openBy([&] { return connectedTo(address, limit); }, way, limit);
    } catch (const Error& error) {
      tried +=
          (tried.empty() ? "" : "; ") + address + " (" + error.what() + ")";
      if (error.status().code() == ErrorCode::kExhausted) {
        code = ErrorCode::kExhausted;
      }
    }
  }
  throw Error(code, "a second socket to the peer can't be opened: " + tried);
}

} // namespace dlslime
