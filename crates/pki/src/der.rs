//! As much DER as it takes to put another subject into a signed document, which rcgen cannot (it keeps one value of each attribute), and to
//! put older forms of keys into PKCS#8.

/// The first element of `der`, whole and its content, and what follows it.
pub fn element(der: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let first = usize::from(*der.get(1)?);
    let (length, begin) = match first {
        0..=0x7f => (first, 2),
        0x81..=0x84 => {
            let count = first & 0x7f;
            let bytes = der.get(2..2 + count)?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), 2 + count)
        }
        _ => return None,
    };
    let end = begin.checked_add(length)?;
    Some((der.get(..end)?, der.get(begin..end)?, der.get(end..)?))
}

/// The elements of a content.
pub fn elements(mut content: &[u8]) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    while !content.is_empty() {
        let (whole, _, rest) = element(content)?;
        found.push(whole);
        content = rest;
    }
    Some(found)
}

/// An element of these parts.
pub fn encoded(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = vec![tag];
    if length < 0x80 {
        out.extend(length.to_be_bytes().last());
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        out.extend((0x80 | bytes.len()).to_be_bytes().last());
        out.extend(bytes);
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out
}

pub const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;

/// A signed document (`SEQUENCE { SEQUENCE { ... }, algorithm, signature }`) with the element at `place` of its body replaced, signed
/// again. None when it is no such document, or cannot be signed.
pub fn replaced(document: &[u8], place: usize, by: &[u8], sign: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let parts = elements(element(document)?.1)?;
    let [body, algorithm, _] = parts.as_slice() else { return None };
    let mut members = elements(element(body)?.1)?;
    *members.get_mut(place)? = by;
    let body = encoded(SEQUENCE, &members);
    let signature = encoded(BIT_STRING, &[&[0], &sign(&body)?]);
    Some(encoded(SEQUENCE, &[&body, algorithm, &signature]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_element_is_replaced_and_the_rest_kept() {
        let body = encoded(SEQUENCE, &[&[2, 1, 7], &[4, 1, 9]]);
        let document = encoded(SEQUENCE, &[&body, &[5, 0], &[3, 2, 0, 1]]);
        let long = encoded(4, &[&[1; 300]]);
        assert_eq!(long[..4], [4, 0x82, 1, 44], "lengths above 127 take bytes of their own");
        let made = replaced(&document, 1, &long, |body| Some(vec![body.len().to_be_bytes()[7]])).unwrap();
        let (_, content, rest) = element(&made).unwrap();
        assert!(rest.is_empty());
        let parts = elements(content).unwrap();
        assert_eq!(elements(element(parts[0]).unwrap().1).unwrap(), [&[2, 1, 7][..], &long]);
        assert_eq!((parts[1], parts[2][..3].to_vec()), (&[5, 0][..], vec![3, 2, 0]));
        assert!(replaced(&document, 2, &long, |_| Some(vec![])).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64), place in 0..8_usize) {
            let _ = replaced(&bytes, place, &[5, 0], |body| Some(body.to_vec()));
        }
    }
}
