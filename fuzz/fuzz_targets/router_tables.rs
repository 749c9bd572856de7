//! What BIRD and FRRouting answer when they are asked for their routes.

#![no_main]

use fabric::router::{bird, frr};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let routes = bird::parse(&text);
    assert!(routes.len() <= text.lines().count());
    for route in frr::parse(&text).unwrap_or_default() {
        assert!(!route.on_link && route.metric == 0);
    }
});
