//! Placeholders for Windows' calls on other systems, where the tools are built for their tests only.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::{Echo, Request};

/// `ERROR_CALL_NOT_IMPLEMENTED`
const MISSING: u32 = 120;

pub(super) fn echo(_: Ipv4Addr, _: &Request) -> Result<Echo, u32> {
    Err(MISSING)
}

pub(super) fn note_interrupts() {}

pub(super) fn is_interrupted() -> bool {
    false
}

pub(super) fn key_within(time: Duration) -> bool {
    std::thread::sleep(time);
    false
}

pub(super) fn user_name() -> Option<String> {
    None
}

pub(super) fn await_event(_: &str, _: Option<Duration>) -> Result<bool, u32> {
    Err(MISSING)
}

pub(super) fn set_event(_: &str) {}
