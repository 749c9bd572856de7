//! Tar headers and registry hives carry checksums that random changes hardly ever get right.
#![allow(dead_code, reason = "each target needs one of these")]

/// The input with the checksum of every block that looks like a header put right, so that what lies behind it is reached.
pub fn checksums(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    for block in data.chunks_exact_mut(512).filter(|block| block[257..].starts_with(b"ustar")) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    data
}

/// The input with the checksum of a registry hive's header put right.
pub fn hive(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    if data.len() >= 512 {
        let words = data[..508].chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        let sum = words.fold(0, |sum, word| sum ^ word);
        data[508..512].copy_from_slice(&sum.to_le_bytes());
    }
    data
}
