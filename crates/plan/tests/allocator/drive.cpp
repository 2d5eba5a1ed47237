// Replays "a ID BYTES" and "f ID" lines through PyTorch's own caching allocator and prints its counters.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/PeerToPeerAccess.h>
#include <cstdio>
#include <cstring>
#include <unordered_map>
using namespace c10::cuda;
static void print(const char* what) {
  auto s = CUDACachingAllocator::getDeviceStats(0);
  auto at = [](const auto& a) { return a[0]; };
  printf("%s %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld %lld\n", what, (long long)at(s.requested_bytes).current,
    (long long)at(s.allocated_bytes).current, (long long)at(s.allocated_bytes).peak, (long long)at(s.inactive_split_bytes).current,
    (long long)at(s.reserved_bytes).current, (long long)at(s.reserved_bytes).peak, (long long)at(s.segment).current,
    (long long)s.num_device_alloc, (long long)s.num_device_free, (long long)s.num_alloc_retries, (long long)s.num_ooms);
}
int main() {
  c10::cuda::detail::init_p2p_access_cache(1);
  CUDACachingAllocator::init(1);
  // Other handles ask the management library what the fabric can do.
  CUDACachingAllocator::CUDAAllocatorConfig::set_expandable_segments_handle_type(
      CUDACachingAllocator::Expandable_Segments_Handle_Type::POSIX_FD);
  std::unordered_map<long long, void*> live;
  char line[256];
  while (fgets(line, sizeof line, stdin)) {
    long long id; unsigned long long bytes;
    if (sscanf(line, "a %lld %llu", &id, &bytes) == 2) {
      try { live[id] = CUDACachingAllocator::raw_alloc(bytes); } catch (const c10::OutOfMemoryError& e) { live.erase(id); if (getenv("SAY")) fprintf(stderr, "%s\n", e.what()); }
    } else if (sscanf(line, "f %lld", &id) == 1) {
      auto it = live.find(id);
      if (it != live.end()) { CUDACachingAllocator::raw_delete(it->second); live.erase(it); }
    } else if (line[0] == 'c') {
      CUDACachingAllocator::emptyCache();
    }
    line[strcspn(line, "\n")] = 0;
    if (line[0] == 'p' || getenv("EACH")) print(line);
  }
  print("end");
}
