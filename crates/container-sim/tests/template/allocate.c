/* allocate MIB SECONDS: commits MIB mebibytes one by one, says how many there are, and keeps them for a while. */
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

int main(int count, char **args)
{
    int wanted = count > 1 ? atoi(args[1]) : 0, seconds = count > 2 ? atoi(args[2]) : 0, mib;
    for (mib = 0; mib < wanted; mib++)
        if (!VirtualAlloc(NULL, 1 << 20, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE)) {
            printf("refused at %d with error %lu\n", mib, GetLastError());
            return 8;
        }
    printf("committed %d\n", mib);
    fflush(stdout);
    Sleep(seconds * 1000);
    return 0;
}
