/*
 * explorer.exe for containers: ends at once.
 *
 * There is no screen, so no shell on it, which would cost each session a process; Wine starts one for whoever asks for the
 * desktop, and complains when there is none.
 */
void __stdcall ExitProcess(unsigned);
void entry(void) { ExitProcess(0); }
