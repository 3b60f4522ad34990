use super::*;

fn grant(text: &str) -> HttpGrant {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The request for a URL without a path.
fn request(method: &str, url: &str) -> Result<Outgoing, &'static str> {
    let (scheme, authority) = url.split_once("://").expect("a URL");
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    Outgoing::new(method, scheme, authority)
}

fn covers(text: &str, url: &str) -> bool {
    request("GET", url).is_ok_and(|request| grant(text).covers(&request))
}

#[test]
fn a_grant_covers_what_it_says_and_nothing_else() {
    for (text, covered, not) in [
        (
            "a.example",
            &["https://a.example", "http://a.example", "https://a.example:443"][..],
            &["https://a.example:8443", "https://b.a.example", "https://ba.example"][..],
        ),
        (
            "*.example.com",
            &["https://a.example.com", "http://a.b.example.com", "https://a.example.com:443"],
            &["https://example.com", "https://aexample.com", "https://a.example.com.evil.example"],
        ),
        (
            "a.example:8443",
            &["https://a.example:8443", "http://a.example:8443"],
            &["https://a.example", "http://a.example"],
        ),
        (
            "https://a.example",
            &["https://a.example"],
            &["http://a.example", "http://a.example:443"],
        ),
        ("http://a.example:443", &["http://a.example:443"], &["https://a.example"]),
        ("GET a.example", &["https://a.example"], &["https://b.example"]),
        ("POST a.example", &[], &["https://a.example"]),
        ("10.0.0.1", &["http://10.0.0.1"], &["http://10.0.0.2", "http://[::1]"]),
        ("[2001:db8::1]:8080", &["http://[2001:db8:0:0::1]:8080"], &["http://[2001:db8::1]"]),
    ] {
        for url in covered {
            assert!(covers(text, url), "{text} doesn't cover {url}");
        }
        for url in not {
            assert!(!covers(text, url), "{text} covers {url}");
        }
    }
}

#[test]
fn however_a_host_is_written_it_is_the_same_one() {
    for (text, url) in [
        ("a.example", "https://A.ExAmPlE."),
        ("A.Example.", "https://a.example"),
        ("münchen.example", "https://xn--mnchen-3ya.example"),
        ("xn--mnchen-3ya.example", "https://MÜNCHEN.example"),
        ("*.münchen.example", "https://a.xn--mnchen-3ya.example"),
        ("a.example", "https://ａ.example"),
        ("a.example", "https://a。example"),
        ("127.0.0.1", "http://2130706433"),
        ("127.0.0.1", "http://0x7f000001"),
        ("127.0.0.1", "http://0177.0.0.1"),
        ("127.0.0.1", "http://127.1"),
        ("127.0.0.1", "http://127.0.0.1."),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]"),
        ("127.0.0.1", "http://[::ffff:7f00:1]"),
        ("127.0.0.1", "http://１２７.0.0.1"),
        ("0x7f.1", "http://127.0.0.1"),
        ("[::FFFF:127.0.0.1]", "http://127.0.0.1"),
    ] {
        assert!(covers(text, url), "{text} doesn't cover {url}");
    }
}

#[test]
fn a_user_before_the_host_never_helps() {
    for url in [
        "https://a.example@evil.example",
        "https://a.example:443@evil.example",
        "https://evil.example@a.example",
        "https://@a.example",
        "https://a.example\\@evil.example",
        "https://a.example%40evil.example",
        "https://a.example:",
        "https://a.example:0",
        "https://a.example:65536",
        "https://a.example:+443",
        "https://a.example:443:443",
        "https://a.example/",
        "https://a.example?",
        "https://a.example#.evil.example",
        "https://a b.example",
        "https://::1",
        "https://[::1",
        "https://[fe80::1%25eth0]",
        "https://[::1].example",
        "https://256.256.256.256",
        "https://1.2.3.4.5",
        "https://a..example",
        "https://",
        "https://.",
    ] {
        request("GET", url).expect_err(url);
    }
}

#[test]
fn what_is_no_grant_is_refused_with_the_reason() {
    for (text, why) in [
        ("", "is empty"),
        ("*", "isn't the whole first label"),
        ("*.*.example", "more than one `*`"),
        ("a.*.example", "isn't the whole first label"),
        ("*a.example", "isn't the whole first label"),
        ("*.10.0.0.1", "before an address"),
        ("*.", "no host"),
        ("https://", "no host"),
        ("https://a.example/", "has a path"),
        ("a.example/v1", "has a path"),
        ("a.example?x", "has a path"),
        ("ftp://a.example", "neither `http` nor `https`"),
        ("user@a.example", "has a user in it"),
        ("https://user:word@a.example", "has a user in it"),
        ("a.example:0", "between 1 and 65535"),
        ("a.example:70000", "between 1 and 65535"),
        ("a.example:", "between 1 and 65535"),
        ("a.example:8*", "between 1 and 65535"),
        ("::1", "stands in brackets"),
        ("get a.example", "begins with no method"),
        (" a.example", "begins with no method"),
        ("GET  a.example", "no part of a host"),
        ("GET a.example ", "no part of a host"),
        ("GET POST a.example", "no part of a host"),
        ("CONNECT a.example", "CONNECT"),
        ("a%2eexample", "no part of a host"),
        ("a..example", "empty or too long"),
        ("1.2.3.4.5", "no host"),
    ] {
        let error = text.parse::<HttpGrant>().expect_err(text).to_string();
        assert!(error.contains(why), "{text}: {error}");
        assert!(error.contains(&format!("`{text}`")), "{error}");
    }
}

#[test]
fn a_list_is_checked_to_its_end() {
    let list = |count: usize| vec!["a.example".to_owned(); count];
    assert_eq!(check("grants.http", &list(1_000)), Ok(()));
    let error = check("grants.http", &list(1_001)).expect_err("too many");
    assert_eq!(error.to_string(), "grants.http has 1001 entries; the limit is 1000");
    let error = check("allow.http", &["a.example".into(), "*".into()]).expect_err("a star");
    assert!(error.to_string().starts_with("allow.http has `*`, which"), "{error}");
}

#[test]
fn what_is_shown_can_be_written() {
    for text in [
        "a.example",
        "*.a.example",
        "a.example:8443",
        "https://a.example",
        "http://a.example",
        "GET https://a.example:8443",
        "POST *.a.example",
        "10.0.0.1:8080",
        "[2001:db8::1]",
    ] {
        assert_eq!(grant(text).to_string(), text);
    }
    for (text, shown) in [
        ("https://a.example:443", "https://a.example"),
        ("HTTPS://A.Example.", "https://a.example"),
        ("0x7f.1", "127.0.0.1"),
        ("[::ffff:10.0.0.1]", "10.0.0.1"),
    ] {
        assert_eq!(grant(text).to_string(), shown);
    }
}

#[test]
fn what_two_grants_have_in_common_is_the_least_of_both() {
    for (a, b, both) in [
        ("a.example", "a.example", Some("a.example")),
        ("*.example", "a.example", Some("a.example")),
        ("*.example", "*.a.example", Some("*.a.example")),
        ("*.a.example", "*.b.example", None),
        ("*.example", "example", None),
        ("GET a.example", "a.example:8443", None),
        ("GET a.example", "https://a.example", Some("GET https://a.example")),
        ("GET a.example", "POST a.example", None),
        ("a.example", "a.example:443", Some("https://a.example")),
        ("a.example:80", "a.example", Some("http://a.example")),
        ("https://a.example", "http://a.example", None),
        ("*.example", "10.0.0.1", None),
    ] {
        for (a, b) in [(a, b), (b, a)] {
            let met = grant(a).meet(&grant(b)).map(|grant| grant.to_string());
            assert_eq!(met.as_deref(), both, "{a} and {b}");
        }
    }
    assert!(grant("GET https://a.example").is_within(&grant("*.example")));
    assert!(!grant("*.example").is_within(&grant("a.example")));
    assert!(!grant("a.example").is_within(&grant("https://a.example")));
    assert!(!grant("a.example").is_within(&grant("GET a.example")));
}

#[test]
fn a_request_is_shown_without_what_may_be_secret() {
    for (url, shown, grants) in [
        ("https://A.example:443", "GET https://a.example", "a.example"),
        ("http://a.example:8080", "GET http://a.example:8080", "a.example:8080"),
        ("http://[::1]:443", "GET http://[::1]:443", "[::1]:443"),
    ] {
        let request = request("GET", url).expect(url);
        assert_eq!(request.to_string(), shown);
        let narrowest = HttpGrant::for_request(&request);
        assert_eq!(narrowest.to_string(), grants);
        assert!(narrowest.covers(&request));
    }
}
