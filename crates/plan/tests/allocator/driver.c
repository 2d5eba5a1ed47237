// A CUDA runtime and driver without a device: hands out address ranges up to a capacity and counts them.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda_runtime_api.h>
#include <cuda.h>

static size_t capacity(void) {
  static size_t c = 0;
  if (!c) { const char* t = getenv("FAKE_DEVICE_BYTES"); c = t ? strtoull(t, 0, 10) : (size_t)1 << 50; }
  return c;
}
static size_t used = 0;
static uintptr_t next_address = (uintptr_t)1 << 44;
#define MOST 2000000
static struct { uintptr_t at; size_t bytes; } pieces[MOST];
static int count = 0;
static cudaError_t last = cudaSuccess;

cudaError_t cudaMalloc(void** p, size_t n) {
  if (used + n > capacity()) { last = cudaErrorMemoryAllocation; return last; }
  used += n;
  *p = (void*)next_address;
  pieces[count].at = next_address; pieces[count++].bytes = n;
  next_address += (n + (2u << 20) - 1) / (2u << 20) * (2u << 20);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  for (int i = 0; i < count; i++) if (pieces[i].at == (uintptr_t)p) { used -= pieces[i].bytes; pieces[i] = pieces[--count]; return cudaSuccess; }
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = cudaSuccess; return e; }
cudaError_t cudaGetDevice(int* d) { *d = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) { *t = capacity(); *f = capacity() - used; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* p, int d) { memset(p, 0, sizeof *p); p->totalGlobalMem = capacity(); p->major = 9; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { *v = 13020; return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) { *a = 0; *b = -5; return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus* c) { *c = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* r, int a, int b) { *r = 0; return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t e) { return e == cudaErrorMemoryAllocation ? "out of memory" : "error"; }
const char* cudaGetErrorName(cudaError_t e) { return cudaGetErrorString(e); }

// The driver's virtual memory.
static struct { CUmemGenericAllocationHandle h; size_t bytes; } handles[MOST];
static int handle_count = 0;
static CUmemGenericAllocationHandle next_handle = 1;
static CUresult f_reserve(CUdeviceptr* p, size_t n, size_t a, CUdeviceptr x, unsigned long long f) { *p = next_address; next_address += n; return CUDA_SUCCESS; }
static CUresult f_create(CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* p, unsigned long long f) {
  if (used + n > capacity()) return CUDA_ERROR_OUT_OF_MEMORY;
  used += n; *h = next_handle++; handles[handle_count].h = *h; handles[handle_count++].bytes = n; return CUDA_SUCCESS;
}
static CUresult f_release(CUmemGenericAllocationHandle h) {
  for (int i = 0; i < handle_count; i++) if (handles[i].h == h) { used -= handles[i].bytes; handles[i] = handles[--handle_count]; return CUDA_SUCCESS; }
  return CUDA_SUCCESS;
}
static CUresult f_granularity(size_t* g, const CUmemAllocationProp* p, CUmemAllocationGranularity_flags o) { *g = 2u << 20; return CUDA_SUCCESS; }
static CUresult f_ok() { return CUDA_SUCCESS; }
static CUresult f_error(CUresult e, const char** s) { *s = "driver error"; return CUDA_SUCCESS; }
static CUresult f_attribute(int* v, CUdevice_attribute a, CUdevice d) { *v = a == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED; return CUDA_SUCCESS; }
static CUresult f_no() { return CUDA_ERROR_NOT_SUPPORTED; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** fn, unsigned version, unsigned long long flags, enum cudaDriverEntryPointQueryResult* r) {
  if (r) *r = cudaDriverEntryPointSuccess;
  if (!strcmp(name, "cuMemAddressReserve")) *fn = f_reserve;
  else if (!strcmp(name, "cuMemCreate")) *fn = f_create;
  else if (!strcmp(name, "cuMemRelease")) *fn = f_release;
  else if (!strcmp(name, "cuGetErrorString")) *fn = f_error;
  else if (!strcmp(name, "cuDeviceGetAttribute")) *fn = f_attribute;
  else if (!strcmp(name, "cuMemGetAllocationGranularity")) *fn = f_granularity;
  else if (!strcmp(name, "cuMemMap") || !strcmp(name, "cuMemUnmap") || !strcmp(name, "cuMemSetAccess") || !strcmp(name, "cuMemAddressFree") || !strcmp(name, "cuCtxGetCurrent")) *fn = f_ok;
  else *fn = f_no;
  return cudaSuccess;
}
