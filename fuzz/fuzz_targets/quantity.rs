//! Quantities: the canonical form reads as the same number.

#![no_main]

use libfuzzer_sys::fuzz_target;
use kube_rules::Quantity;

fuzz_target!(|text: &str| {
    let Ok(quantity) = Quantity::parse(text) else { return };
    let shown = quantity.to_string();
    let again = Quantity::parse(&shown).expect("a quantity that was printed can be read");
    assert_eq!(again, quantity, "{text:?} {shown:?}");
    let _ = (quantity.value(), quantity.milli_value(), quantity.as_f64(), quantity.div_ceil(Quantity::from_millis(1)));
    let _ = (quantity + again, quantity - again, quantity.cmp(&Quantity::ZERO));
});
