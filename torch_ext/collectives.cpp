#include "torch_ext/collectives.h"

namespace dlslime {

c10::intrusive_ptr<c10d::Backend> Collectives::forDevice(
    c10::DeviceType device) {
  const std::lock_guard<std::mutex> making(makeMutex_);
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    TORCH_CHECK(!closed_, "dlslime: the process group has been shut down");
    const auto found = backends_.find(device);
    if (found != backends_.end()) {
      return found->second;
    }
  }
  auto backend =
      make_(c10::DeviceTypeName(device, /*lower_case=*/true), agree_(device));
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!uid_.empty()) {
    backend->setGroupUid(uid_);
    backend->setGroupDesc(description_);
  }
  backends_[device] = backend;
  return backend;
}

std::vector<c10::intrusive_ptr<c10d::Backend>> Collectives::made() {
  const std::lock_guard<std::mutex> guard(mutex_);
  std::vector<c10::intrusive_ptr<c10d::Backend>> all;
  for (const auto& [device, backend] : backends_) {
    all.push_back(backend);
  }
  return all;
}

void Collectives::setNames(
    const std::string& uid,
    const std::string& description) {
  const std::lock_guard<std::mutex> guard(mutex_);
  uid_ = uid;
  description_ = description;
  for (const auto& [device, backend] : backends_) {
    backend->setGroupUid(uid);
  }
}

void Collectives::close() {
  const std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
}

} // namespace dlslime
