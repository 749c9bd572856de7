/*
 * bcryptprimitives.dll for Wine: ProcessPrng, and nothing else.
 *
 * Rust's standard library and Go's runtime take their random numbers from ProcessPrng, which Windows has in
 * bcryptprimitives.dll and Wine 8 (Debian 12) has not, so no program of either starts there. Wine does have the older
 * RtlGenRandom (exported by advapi32 as SystemFunction036), which reads the kernel's generator; this passes on to it.
 *
 * It must lie in system32: Go loads system libraries from there only.
 */
#include <windows.h>

BOOLEAN WINAPI SystemFunction036(PVOID buffer, ULONG length);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T length)
{
    while (length > 0) {
        ULONG part = length > 0x10000000 ? 0x10000000 : (ULONG)length;
        /* The real one always succeeds and callers do not look: never hand out a buffer that is not random. */
        if (!SystemFunction036(buffer, part))
            TerminateProcess(GetCurrentProcess(), 1);
        buffer += part;
        length -= part;
    }
    return TRUE;
}
