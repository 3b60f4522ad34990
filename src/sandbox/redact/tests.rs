use super::*;

const SHORT: &str = "p@ss w/rd+\"1\"?";

fn redactor(secrets: &[(&str, &str)]) -> Redactor {
    let value = |text: &str| SecretValue::new(text.to_owned()).expect("a value");
    let values = secrets.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect();
    Redactor::new(&values).expect("not too much")
}

fn shown(redactor: &Redactor, text: &str) -> String {
    redactor.storable(text.as_bytes(), 1 << 20)
}

/// Text with no two places alike.
fn long(bytes: usize) -> String {
    let words = (0_u64..).map(|n| format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    words.take(bytes.div_ceil(16)).collect::<String>()[..bytes].to_owned()
}

fn encode(text: &str) -> String {
    base64::encode(text.as_bytes())
}

#[test]
fn every_form_is_found() {
    let redactor = redactor(&[("KEY", SHORT), ("OTHER", "another one")]);
    for form in [
        SHORT,
        r#"p@ss w/rd+\"1\"?"#,
        "p%40ss%20w%2Frd%2B%221%22%3F",
        "p%40ss%20w%2frd%2b%221%22%3f",
        "p%40ss+w%2Frd%2B%221%22%3F",
        "7040737320772f72642b2231223f",
        "7040737320772F72642B2231223F",
        "P@SS W/RD+\"1\"?",
    ] {
        for (before, after) in [("", ""), ("a", "b"), (":", "\n")] {
            let text = format!("{before}{form}{after}");
            assert_eq!(shown(&redactor, &text), format!("{before}[secret KEY]{after}"), "{text}");
        }
    }
    let both = format!("{SHORT}another one{SHORT} another on");
    let marks = "[secret KEY][secret OTHER][secret KEY] another on";
    assert_eq!(shown(&redactor, &both), marks);
    assert_eq!(shown(&redactor, "nothing of it: p@ss w/rd"), "nothing of it: p@ss w/rd");
}

#[test]
fn base64_is_found_wherever_the_secret_begins_in_it() {
    // Their base64 has the digits that differ between the alphabets.
    for secret in [SHORT, "\u{3ff}\u{7ff}?>\u{7bf}~~~"] {
        let redactor = redactor(&[("KEY", secret)]);
        for before in ["", "u", "us", "user:", "user::"] {
            for after in ["", "\n", "@@", "@@@"] {
                let text = encode(&format!("{before}{secret}{after}"));
                let url = text.replace('+', "-").replace('/', "_");
                for text in [&text, &url, url.trim_end_matches('=')] {
                    let shown = shown(&redactor, text);
                    let (head, tail) = shown.split_once("[secret KEY]").unwrap_or_else(|| {
                        panic!("{before:?} {after:?} {text}: {shown}");
                    });
                    // One digit on each side may have bits of both.
                    assert!(head.len() <= (before.len() * 8).div_ceil(6), "{text}: {shown}");
                    assert!(tail.len() <= (after.len() * 8).div_ceil(6) + 3, "{text}: {shown}");
                }
            }
        }
    }
}

#[test]
fn the_lines_of_a_secret_are_found_one_by_one() {
    let pem = "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA0\r\n  cut4\n}\n-----END KEY-----\n";
    let redactor = redactor(&[("PEM", pem)]);
    for line in ["-----BEGIN KEY-----", "MIIEpAIBAAKCAQEA0", "cut4", "-----END KEY-----"] {
        assert_eq!(shown(&redactor, line), "[secret PEM]");
    }
    assert_eq!(shown(&redactor, "}"), "}", "it tells nothing");
    assert_eq!(shown(&redactor, &format!("all of it: {pem}")), "all of it: [secret PEM]\n");
}

#[test]
fn a_part_of_a_long_secret_is_found() {
    let secret = long(1000);
    let redactor = redactor(&[("KEY", &secret)]);
    for part in [&secret[..32], &secret[..500], &secret[500..], &secret[301..364]] {
        assert_eq!(shown(&redactor, &format!("<{part}>")), "<[secret KEY]>", "{part}");
    }
    let wrapped = encode(&secret);
    for line in wrapped.as_bytes().chunks(64).filter(|line| line.len() > 62) {
        let line = String::from_utf8_lossy(line);
        assert_eq!(shown(&redactor, &line), "[secret KEY]", "{line}");
    }
}

#[test]
fn a_cut_leaves_no_half() {
    let secret = "sesame-open-0123456789";
    let redactor = redactor(&[("KEY", secret)]);
    for place in 0..40 {
        let text = format!("{}{secret}{secret} and more and more and more", ".".repeat(place));
        for limit in 0..text.len() {
            let shown = redactor.storable(text.as_bytes(), limit);
            assert!(!shown.contains("sesa") && !shown.contains("789"), "{place} {limit}: {shown}");
            assert!(shown.ends_with(names::CUT), "{place} {limit}: {shown}");
            assert!(shown.len() <= limit + names::CUT.len(), "{place} {limit}: {shown}");
        }
    }
    assert_eq!(redactor.storable("\u{e4}\0\u{e4}".as_bytes(), 3), "\u{e4}\u{fffd}… (cut)");
    assert_eq!(redactor.storable(b"", 10), "");
}

#[test]
fn what_is_behind_the_limit_does_not_come_into_view() {
    let secret = long(4000);
    let redactor = redactor(&[("KEY", &secret)]);
    // A long secret shrinks to its mark: the beginning of the next one is in
    // what is looked at, and must not slip in.
    let text = format!("{secret}{}", &secret[..40]);
    let seen = &text.as_bytes()[..4010 + redactor.reach().min(30)];
    assert_eq!(redactor.storable(seen, 4010), "[secret KEY][secret KEY]… (cut)");
}

#[test]
fn the_largest_secrets_are_found_in_little_memory_and_time() {
    let values: Vec<String> = (0..4).map(|n| long((64 << 10) - n)).collect();
    let named = ["A", "B", "C", "D"];
    let secrets: Vec<_> = named.iter().zip(&values).map(|(n, v)| (*n, v.as_str())).collect();
    let redactor = redactor(&secrets);
    assert!(redactor.search.memory_usage() < 16 << 20, "{}", redactor.search.memory_usage());
    assert_eq!(redactor.storable(values[2].as_bytes(), 8 << 10), "[secret A]… (cut)");
    // One that is as bad as can be: every seed is alike.
    let redactor = self::redactor(&[("KEY", &"a".repeat(64 << 10))]);
    assert_eq!(redactor.storable("a".repeat(200 << 10).as_bytes(), 1 << 20), "[secret KEY]");
}
