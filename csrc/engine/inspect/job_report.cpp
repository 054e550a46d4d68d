#include "engine/inspect/job_report.h"

#include <unistd.h>

#include "base/library/build_id.h"
#include "engine/inspect/json.h"
#include "engine/peer/group_report.h"
#include "engine/record/times_report.h"
#include "engine/state/engine_lock.h"

namespace dlslime {

namespace {

void addCounters(JsonWriter& json, const Counters& counters) {
  json.member("sent_messages", counters.sentMessages)
      .member("sent_bytes", counters.sentBytes)
      .member("received_messages", counters.receivedMessages)
      .member("received_bytes", counters.receivedBytes)
      .member("eager_messages", counters.eagerMessages)
      .member("pushed_messages", counters.pushedMessages)
      .member("rendezvous_messages", counters.rendezvousMessages)
      .member("cuda_ipc_messages", counters.cudaIpcMessages)
      .member("gpudirect_messages", counters.gpuDirectMessages)
      .member("read_bytes", counters.readBytes)
      .member("written_bytes", counters.writtenBytes);
}

void addPeer(JsonWriter& json, const PeerReport& peer) {
  json.open('{')
      .member("rank", peer.rank)
      .member("route", peer.route)
      .member("copy", peer.copy)
      .member("devices", peer.devices)
      .member("pid", peer.peer.pid)
      .member("host", peer.peer.host)
      .member("network_namespace", peer.peer.networkNamespace)
      .member("replaced_connections", peer.replaced)
      .member("pending_sends", peer.pendingSends)
      .member("pending_receives", peer.pendingReceives);
  addCounters(json, peer.counters);
  json.key("nics").open('[');
  for (const auto& traffic : peer.nics) {
    json.open('{')
        .member("nic", traffic.nic)
        .member("requests", traffic.requests)
        .member("sent_bytes", traffic.sentBytes)
        .member("read_bytes", traffic.readBytes)
        .close('}');
  }
  json.close(']').key("rejected").open('[');
  for (const auto& route : peer.rejected) {
    json.open('{')
        .member("route", route.route)
        .member("reason", route.reason)
        .close('}');
  }
  json.close(']').close('}');
}

void addGroup(JsonWriter& json, uint32_t id, Group& group)
    REQUIRES(kEngineLock) {
  json.open('{')
      .member("id", id)
      .member("name", group.options().name)
      .member("rank", group.options().rank)
      .member("size", group.size())
      .member("failures", describeFailures(group))
      .key("peers")
      .open('[');
  for (const auto& peer : reportPeers(group)) {
    addPeer(json, peer);
  }
  json.close(']').close('}');
}

void addHistogram(JsonWriter& json, const HistogramReport& histogram) {
  json.open('{').member("count", histogram.count).member("sum", histogram.sum);
  json.key("buckets").open('[');
  for (const auto& [end, count] : histogram.buckets) {
    json.open('[').value(end).value(count).close(']');
  }
  json.close(']').close('}');
}

void addOperations(
    JsonWriter& json,
    const std::vector<OperationReport>& reports) {
  json.key("operations").open('{');
  for (const auto& report : reports) {
    json.key(report.kind).open('{').key("nanoseconds").open('[');
    for (const auto& histogram : report.nanoseconds) {
      addHistogram(json, histogram);
    }
    json.close(']').key("bytes");
    addHistogram(json, report.bytes);
    json.close('}');
  }
  json.close('}');
}

} // namespace

std::string jobReport(EngineState& state) {
  JsonWriter json;
  json.open('{')
      .member("build", buildId())
      .member("pid", getpid())
      .member("host", state.self.host)
      .member("eager_limit", state.config.eagerLimitBytes);
  const double tick = Ticks::nanoseconds(); // may wait: not under the lock
  const EngineLock lock(state);
  addOperations(json, reportTimes(state.completions.recorder(), tick));
  json.member("connections", state.channels.size()).key("groups").open('[');
  for (const auto& [id, group] : state.groupRegistry.groups()) {
    addGroup(json, id, *group);
  }
  return json.close(']').close('}').take();
}

} // namespace dlslime
