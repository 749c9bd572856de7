//! Certificates with keys in files of others, as the node agent reads them: what can be read is written so that it reads the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pki::{Key, Pair, SigningRequest, Subject};

fuzz_target!(|text: &str| {
    if let Ok(pair) = Pair::parse(text, text) {
        let again = Pair::parse(&pair.cert_pem(), pair.key_pem()).expect("a pair that was read");
        assert_eq!((&again, again.leaf()), (&pair, pair.leaf()));
        assert!(pair.ends() <= pair.leaf().not_after);
    }
    let Ok(key) = Key::from_pem(text) else { return };
    let again = Key::from_pem(&key.pem()).expect("a key that was read");
    assert_eq!(again.public_der(), key.public_der());
    let request = key.request(&Subject { common_name: "system:node:a".to_owned(), ..Subject::default() }).expect("a request");
    assert_eq!(SigningRequest::parse(request.as_bytes()).expect("the request").public_key(), key.public_der());
});
