//! Text of files that users write, on Windows often with Windows PowerShell.

/// The text of a file. Windows PowerShell writes UTF-16 with a byte order mark (`Out-File`, `>`), or UTF-8 with one. What is no text becomes
/// the replacement character, so that readers name what they cannot use.
pub fn decode_text(bytes: &[u8]) -> String {
    let utf16 = |rest: &[u8], read: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = rest.chunks(2).map(|pair| if let [a, b] = pair { read([*a, *b]) } else { 0xd800 }).collect();
        String::from_utf16_lossy(&units)
    };
    match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, rest @ ..] => String::from_utf8_lossy(rest).into_owned(),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_windows_powershell_are_read() {
        let text = "name: Müller\r\n";
        let little: Vec<u8> = [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        let big: Vec<u8> = [0xfe, 0xff].into_iter().chain(text.encode_utf16().flat_map(u16::to_be_bytes)).collect();
        let marked = [&[0xef, 0xbb, 0xbf], text.as_bytes()].concat();
        for bytes in [&little[..], &big, &marked, text.as_bytes()] {
            assert_eq!(decode_text(bytes), text);
        }
        assert_eq!(decode_text(&little[..little.len() - 1]), "name: Müller\r\u{fffd}", "half a character is none");
        assert_eq!(decode_text(b"a\xffb"), "a\u{fffd}b");
    }
}
