// What Go's standard library does with each socket for datagrams: it asks for two settings, and uses the socket if both are accepted. What nobody
// knows is refused. Then a datagram to itself.
#include <stdio.h>
#include <string.h>
#include <winsock2.h>

static int asked(SOCKET socket, DWORD code) {
    DWORD off = 0, returned = 0;
    return WSAIoctl(socket, code, &off, sizeof off, NULL, 0, &returned, NULL, NULL) == 0 ? 0 : WSAGetLastError();
}

int main(void) {
    WSADATA data;
    WSAStartup(MAKEWORD(2, 2), &data);
    SOCKET one = WSASocketW(AF_INET, SOCK_DGRAM, IPPROTO_UDP, NULL, 0, WSA_FLAG_OVERLAPPED);
    printf("connreset %d netreset %d mode %d unknown %d\n", asked(one, 0x9800000c), asked(one, 0x9800000f), asked(one, 0x9800012c),
           asked(one, 0x980000fe));
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int size = sizeof here;
    if (bind(one, (struct sockaddr *)&here, size) || getsockname(one, (struct sockaddr *)&here, &size)) return 1;
    char got[8] = "";
    if (sendto(one, "hello", 5, 0, (struct sockaddr *)&here, size) != 5 || recvfrom(one, got, sizeof got, 0, NULL, NULL) != 5) return 2;
    printf("%s\n", got);
    return 0;
}
