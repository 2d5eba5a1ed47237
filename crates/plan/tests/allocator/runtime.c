// The rest of the runtime, without its header: answers "done", or stops where an answer would be needed.
#include <stdio.h>
#include <stdlib.h>
int cudaStreamGetCaptureInfo(void* s, int* c, ...) { *c = 0; return 0; }
#define OK(name) int name() { return 0; }
OK(cudaDeviceSynchronize) OK(cudaStreamSynchronize) OK(cudaThreadExchangeStreamCaptureMode) OK(cudaEventQuery) OK(cudaEventSynchronize)
#define NO(name) int name() { fprintf(stderr, "not there: %s\n", #name); abort(); }
NO(cudaDeviceEnablePeerAccess) NO(cudaDeviceGetDefaultMemPool) NO(cudaDeviceGetGraphMemAttribute) NO(cudaDeviceSetGraphMemAttribute)
NO(cudaEventCreateWithFlags) NO(cudaEventDestroy) NO(cudaEventElapsedTime) NO(cudaEventRecord) NO(cudaFreeAsync)
NO(cudaGraphNodeGetDependencies) NO(cudaIpcCloseMemHandle) NO(cudaIpcGetMemHandle) NO(cudaIpcOpenMemHandle) NO(cudaMallocAsync)
NO(cudaMemPoolGetAttribute) NO(cudaMemPoolSetAccess) NO(cudaMemPoolSetAttribute) NO(cudaMemPoolTrimTo) NO(cudaMemcpy) NO(cudaMemcpyAsync)
NO(cudaMemcpyPeerAsync) NO(cudaStreamCreateWithPriority) NO(cudaStreamWaitEvent)