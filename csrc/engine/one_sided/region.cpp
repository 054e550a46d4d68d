#include "engine/one_sided/region.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/printable.h"
#include "base/random.h"
#include "engine/bootstrap/wire_records.h"

namespace dlslime {

Bytes encode(const RegionHandle& handle) {
  ByteWriter writer;
  writePreamble(writer);
  writer.blob(handle.instance);
  writer.number(handle.pid);
  writer.text(handle.host);
  writer.number(handle.id);
  writer.number(handle.secret);
  writer.number(handle.address);
  writer.number(handle.size);
  writer.number(static_cast<uint8_t>(handle.readOnly));
  writer.text(handle.name);
  writer.text(handle.pages.file);
  writer.number(handle.pages.offset);
  return writer.take();
}

RegionHandle decodeRegion(ByteSpan bytes) {
  constexpr auto kWhat = "the handle of a region";
  ByteReader reader(bytes);
  readPreamble(reader, kWhat);
  RegionHandle handle;
  const auto instance = reader.blob();
  handle.instance.assign(instance.begin(), instance.end());
  handle.pid = reader.number<uint32_t>();
  handle.host = printable(reader.text());
  handle.id = reader.number<uint64_t>();
  handle.secret = reader.number<uint64_t>();
  handle.address = reader.number<uint64_t>();
  handle.size = reader.number<uint64_t>();
  handle.readOnly = reader.number<uint8_t>() != 0;
  handle.name = printable(reader.text());
  handle.pages.file = reader.text();
  handle.pages.offset = reader.number<uint64_t>();
  const bool wraps = handle.address + handle.size < handle.address ||
      handle.pages.offset + handle.size < handle.pages.offset;
  requireWhole(
      reader, !wraps && handle.instance.size() == kInstanceBytes, kWhat);
  return handle;
}

std::string RegionHandle::title() const {
  return "region " + (name.empty() ? std::to_string(id) : '"' + name + '"');
}

std::string Region::describe() const {
  return handle_.title() + " (" + std::to_string(view_.size) + " bytes)";
}

RegionPtr RegionTable::add(
    MemoryView view,
    std::string name,
    std::shared_ptr<void> keeper,
    SharedPages pages) {
  RegionHandle handle;
  handle.instance = self_.instance;
  handle.pid = self_.pid;
  handle.host = self_.host;
  handle.id = nextId_++;
  std::memcpy(
      &handle.secret,
      randomBytes(sizeof(handle.secret)).data(),
      sizeof(handle.secret));
  handle.address = reinterpret_cast<uint64_t>(view.data);
  handle.size = view.size;
  handle.readOnly = view.readOnly;
  handle.name = std::move(name);
  handle.pages = std::move(pages);
  const auto id = handle.id;
  // The program may unmap or protect the memory while peers have the handle.
  view.mayFault = true;
  return regions_[id] = std::make_shared<Region>(
             std::move(handle), view, std::move(keeper));
}

RegionPtr RegionTable::find(uint64_t id, uint64_t secret) const {
  const auto found = regions_.find(id);
  const bool theirs = found != regions_.end() && !found->second->closing &&
      found->second->handle().secret == secret;
  return theirs ? found->second : nullptr;
}

std::vector<RegionPtr> RegionTable::lent() const {
  std::vector<RegionPtr> found;
  for (const auto& [id, region] : regions_) {
    if (region->lent()) {
      found.push_back(region);
    }
  }
  return found;
}

void RegionTable::registerLater(
    const RegionPtr& region,
    MemoryRegistrar* registrar) {
  if (!known_.contains({region.get(), registrar})) {
    wanted_.push_back({region, registrar});
    region->beginRegistering();
    known_.emplace(region.get(), registrar);
    wake_();
  }
}

} // namespace dlslime
