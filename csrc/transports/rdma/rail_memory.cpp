#include "transports/rdma/rail_memory.h"

#include <algorithm>

#include "base/log.h"

namespace dlslime::rdma {

namespace {

MemoryRegionPtr acquireWith(const Nic& nic, MemoryView view) {
  return view.onDevice() ? nic.gpuMemory().acquire(view)
                         : nic.memory().acquire(view);
}

RegistrationPtr prepareWith(const Nic& nic, MemoryView view) {
  return view.onDevice() ? nic.gpuMemory().acquire(view)
                         : nic.memory().prepare(view);
}

// Registrations of the same memory with several NICs.
struct Registrations final : Registration {
  std::vector<RegistrationPtr> parts;
};

} // namespace

void RailMemory::use(const std::vector<std::unique_ptr<Rail>>& rails) {
  nics_.clear();
  for (const auto& rail : rails) {
    const bool known =
        std::any_of(nics_.begin(), nics_.end(), [&](const Numbered& entry) {
          return entry.nic == rail->nic;
        });
    if (!known) {
      nics_.push_back({rail->nicNumber, rail->nic});
    }
  }
}

RailMemory::Regions RailMemory::acquire(MemoryView view) const {
  Regions regions;
  regions[nics_.front().number] = acquireWith(*nics_.front().nic, view);
  for (size_t i = 1; i < nics_.size() && view.size >= kLeastStriped; ++i) {
    try {
      regions[nics_[i].number] = acquireWith(*nics_[i].nic, view);
    } catch (const Error& error) {
      logWarning(
          std::string(error.what()) + "; the transfer goes over other NICs");
    }
  }
  return regions;
}

MemoryRegionPtr RailMemory::findFirst(MemoryView view) const {
  const auto& nic = *nics_.front().nic;
  return view.onDevice() ? nic.gpuMemory().find(view) : nic.memory().find(view);
}

RailMemory::Regions RailMemory::worthwhile(MemoryView view) const {
  if (view.onDevice() || view.size > RegistrationCache::kMostCopied) {
    return acquire(view);
  }
  Regions regions;
  regions[nics_.front().number] = findFirst(view);
  return regions;
}

RemoteBuffer RailMemory::remote(const Regions& regions, MemoryView view) {
  RemoteBuffer remote;
  for (size_t i = 0; i < regions.size(); ++i) {
    if (regions[i]) {
      remote.address = reinterpret_cast<uint64_t>(view.data);
      remote.keys[i] = regions[i]->remoteKey();
    }
  }
  return remote;
}

RailMemory::Regions RailMemory::of(const RegisteredRegion& memory) const {
  Regions regions;
  for (const auto& [number, nic] : nics_) {
    const auto found = memory.regions.find(nic.get());
    if (found != memory.regions.end()) {
      regions[number] = found->second;
    }
  }
  return regions;
}

// Registers the memory with every NIC possible. A failure with some NICs only
// leaves the transfers to the remaining NICs.
RegistrationPtr RailRegistrar::registerRegion(MemoryView view) {
  auto registration = std::make_shared<RegisteredRegion>();
  Status problem;
  for (const auto& nic : nics_) {
    try {
      registration->regions[nic.get()] = view.onDevice()
          ? nic->gpuMemory().make(view)
          : std::make_shared<MemoryRegion>(nic->domain(), view);
    } catch (const Error& error) {
      problem = error.status();
    }
  }
  if (registration->regions.empty()) {
    throw Error(problem);
  }
  if (!problem.ok()) {
    logWarning(problem.message() + "; transfers go over other NICs");
  }
  return registration;
}

MemoryUse RailRegistrar::memoryUse() {
  MemoryUse use;
  for (const auto& nic : nics_) {
    use.idle += nic->memory().bytes();
  }
  return use;
}

void RailRegistrar::dropFreed() {
  for (const auto& nic : nics_) {
    nic->gpuMemory().dropFreed();
  }
}

void RailRegistrar::trim() {
  for (const auto& nic : nics_) {
    nic->memory().trim();
    nic->gpuMemory().trim();
  }
}

RegistrationPtr RailRegistrar::prepare(MemoryView view) {
  if (!view.onDevice() && view.size < kLeastPushed) {
    return nullptr; // such a small message is copied
  }
  const size_t count = view.size >= kLeastStriped ? nics_.size() : 1;
  if (count == 1) {
    return prepareWith(*nics_.front(), view);
  }
  auto prepared = std::make_shared<Registrations>();
  for (const auto& nic : nics_) {
    prepared->parts.push_back(prepareWith(*nic, view));
  }
  return prepared;
}

} // namespace dlslime::rdma
