//! The agent's wall clock: a small library that is loaded into it adds an offset, which a file holds. The machine's clock stays.

use std::os::unix::fs::FileExt as _;
use std::process::Command;

use crate::machine::CLOCK;

const OFFSET: &str = "/run/clock.offset";

/// Seconds are added to CLOCK_REALTIME and its coarse form; all other clocks stay.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
__attribute__((constructor)) static void begin(void) {
    int fd = open("/run/clock.offset", O_RDONLY | O_CLOEXEC);
    void *page = fd < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (page != MAP_FAILED) offset = page;
}
int clock_gettime(clockid_t clock, struct timespec *to) {
    int failed = syscall(SYS_clock_gettime, clock, to);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) to->tv_sec += *offset;
    return failed;
}
int gettimeofday(struct timeval *to, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *to) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"#;

/// Builds the library, which agents load from now on.
pub fn preload() {
    std::fs::write(OFFSET, 0_i64.to_ne_bytes()).unwrap();
    std::fs::write("/run/clock.c", SOURCE).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o", CLOCK, "/run/clock.c"]).output().expect("cc");
    assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
}

/// Moves the clock to this many seconds beside the machine's.
pub fn set(offset: i64) {
    std::fs::File::options().write(true).open(OFFSET).unwrap().write_all_at(&offset.to_ne_bytes(), 0).unwrap();
}
