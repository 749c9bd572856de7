//! Links of HTML pages: any bytes are a page, and stay as they are where no link is replaced.

#![no_main]

use libfuzzer_sys::fuzz_target;
use streaming::links::rewrite;

fuzz_target!(|page: &[u8]| {
    assert_eq!(rewrite(page, |_| None), page);
    let longer = rewrite(page, |link| Some(format!("/p{link}")));
    assert!(longer.len() >= page.len());
});
