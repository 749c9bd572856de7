//! Text forms that faults, switches and filters of the call log share: result codes and patterns of names.

use hcn::HResult;

/// Whether `name` matches `pattern`; `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => {
            name.strip_prefix(head).is_some_and(|rest| (0..=rest.len()).any(|cut| rest.is_char_boundary(cut) && matches(tail, &rest[cut..])))
        }
    }
}

/// Reads a code: `0x803b0013`, a name as `HCN_E_PORT_ALREADY_EXISTS`, or the decimal number of an error record, as `2151350291`.
pub fn code(text: &str) -> Result<HResult, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        // A small decimal number is a count or a mistake, no code that anybody writes so.
        None => text.parse().ok().filter(|number| *number >= 0x8000_0000),
    };
    // The short form of Win32 codes, as Go programs print them.
    let short = |number: u32| if number != 0 && number < 0x1_0000 { 0x8007_0000 | number } else { number };
    let named = || HResult::known().find(|code| code.name() == Some(text));
    number
        .map(|number| HResult(short(number)))
        .or_else(named)
        .ok_or_else(|| format!("{text:?} is no result code: write it as 0x803b0013 or by its name"))
}
