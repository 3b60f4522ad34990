//! Bytes as text (RFC 4648).

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes in the standard alphabet, with padding.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let at = |n: usize| u32::from(group.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for n in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * n) & 63) as usize];
            text.push(if n <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The bytes of a text in the standard or the URL-safe alphabet, with padding
/// or without; nothing if it is neither.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if digits.len() % 4 == 1 || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.as_bytes().chunks(4) {
        let mut bits = 0;
        for byte in group {
            bits = bits << 6 | value(*byte)?;
        }
        bits <<= 6 * (4 - group.len());
        let [_, first, second, third] = bits.to_be_bytes();
        bytes.extend_from_slice(&[first, second, third][..group.len() - 1]);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    let digit = match digit {
        b'-' => b'+',
        b'_' => b'/',
        other => other,
    };
    DIGITS.iter().position(|one| *one == digit).and_then(|place| u32::try_from(place).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_bytes_go_together() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foobar", "Zm9vYmFy"),
            (&[0xff, 0xfe, 0xfd], "//79"),
        ] {
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text).as_deref(), Some(bytes));
            assert_eq!(decode(text.trim_end_matches('=')).as_deref(), Some(bytes));
        }
        assert_eq!(decode("__79").as_deref(), Some(&[0xff, 0xfe, 0xfd][..]));
        for bad in ["Z", "Zg===", "Z g=", "Zm9v\n", "ä"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
