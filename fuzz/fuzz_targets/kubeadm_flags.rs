//! A file of kubeadm's flags: taking it apart gives words that the table of flags can judge.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let words = node_config::node::flags::kubeadm_flags(&String::from_utf8_lossy(data));
    let length: usize = words.iter().map(String::len).sum();
    assert!(length <= String::from_utf8_lossy(data).len(), "words are no longer than the text");
    let _ = node_config::node::flags::Options::check(words);
});
