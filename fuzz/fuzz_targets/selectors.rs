//! Label and field selectors: any text is one or an error, and a label selector that is printed and read again selects the same.

#![no_main]

use std::collections::BTreeMap;

use kube_rules::{FieldSelector, Selector};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match FieldSelector::parse(text) {
        Ok(selector) => {
            let _ = (selector.matches_by(|path| path.to_owned()), selector.required("metadata.name"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let selector = match Selector::parse(text) {
        Ok(selector) => selector,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let again = Selector::parse(&selector.to_string()).unwrap_or_else(|error| panic!("{selector}: {error}"));
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && !"-_./".contains(letter)).filter(|word| !word.is_empty());
    let words: Vec<String> = words.take(8).map(str::to_owned).collect();
    for labels in [
        BTreeMap::new(),
        words.iter().map(|word| (word.clone(), String::new())).collect(),
        words.iter().map(|word| (word.clone(), words[0].clone())).collect(),
        words.windows(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect(),
    ] {
        assert_eq!(selector.matches(&labels), again.matches(&labels), "{text:?} and {again}");
    }
});
