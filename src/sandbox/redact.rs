//! Finds secrets in text that is to be shown: as they are, line by line, and in
//! the forms that programs print them in.
//!
//! One pass looks for *seeds*, short pieces of every form at regular distances.
//! From a seed the text is compared with the form in both directions, so that a
//! part of a long secret is found too: what a line's limit has cut off, or a
//! line of an encoding that wraps.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::model::{
    base64,
    names::{self, storable},
    secret::SecretValue,
};

/// Bytes of a seed.
const SEED: usize = 16;

/// Shortest part of a long form that is taken out; shorter forms are whole.
const PART: usize = 32;

/// How far apart seeds are: less than the lines of an encoding that wraps.
const STRIDE: usize = 48;

/// Seeds at the most; beyond, they are farther apart.
const SEEDS_MAX: usize = 12_000;

/// Forms of which one seed may be a part.
const SHARED_MAX: usize = 64;

/// Shortest line of a longer secret that is looked for by itself.
const LINE_MIN: usize = 4;

/// Finds the secrets of one trigger.
pub(super) struct Redactor {
    forms: Vec<Form>,
    /// For each seed, where it may stand: form and offset.
    seeds: Vec<Vec<(usize, usize)>>,
    search: AhoCorasick,
    stride: usize,
}

/// One way in which a secret may be written.
struct Form {
    mark: Arc<str>,
    text: Vec<u8>,
}

/// A part of a text that is a secret's.
struct Found<'a> {
    start: usize,
    end: usize,
    mark: &'a str,
}

impl Redactor {
    /// Looks for these secrets.
    ///
    /// # Errors
    /// When they are too much to be looked for.
    pub(super) fn new(values: &BTreeMap<String, SecretValue>) -> Result<Self, String> {
        let mut forms = Vec::new();
        for (name, value) in values {
            let mark: Arc<str> = format!("[secret {name}]").into();
            let texts = texts(value.expose()).into_iter();
            forms.extend(texts.map(|text| Form { mark: Arc::clone(&mark), text }));
        }
        let bytes: usize = forms.iter().map(|form| form.text.len()).sum();
        let stride = STRIDE.max(bytes.div_ceil(SEEDS_MAX));
        let mut places: HashMap<&[u8], Vec<(usize, usize)>> = HashMap::new();
        for (index, form) in forms.iter().enumerate() {
            for (offset, seed) in form.seeds(stride) {
                let shared = places.entry(seed).or_default();
                if shared.len() < SHARED_MAX {
                    shared.push((index, offset));
                }
            }
        }
        let (texts, seeds): (Vec<_>, Vec<_>) = places.into_iter().unzip();
        let search = AhoCorasick::builder()
            .match_kind(MatchKind::Standard)
            // Compact, whatever there is to be found.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts)
            .map_err(|error| error.to_string())?;
        Ok(Self { forms, seeds, search, stride })
    }

    /// How far behind a limit a text is to be known, so that no secret that
    /// begins before it is missed.
    pub(super) const fn reach(&self) -> usize {
        self.stride + SEED + PART
    }

    /// What [`storable`] makes of a text, with marks for secrets.
    pub(super) fn storable(&self, text: &[u8], limit: usize) -> String {
        let seen = &text[..text.len().min(limit.saturating_add(self.reach()))];
        let cut = text.len() > limit;
        let mut end = seen.len().min(limit);
        let mut out = Vec::with_capacity(end);
        let mut from = 0;
        for Found { start, end: behind, mark } in self.find(seen) {
            if start >= end {
                break;
            }
            out.extend_from_slice(&seen[from..start]);
            out.extend_from_slice(mark.as_bytes());
            from = behind;
        }
        // Not within a character: what is left of it would look like a fault.
        while cut && end > from && seen.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
            end -= 1;
        }
        out.extend_from_slice(&seen[from.min(end)..end]);
        // Marks may be longer than what they stand for.
        let mut text = storable(&String::from_utf8_lossy(&out), limit);
        if cut && !text.ends_with(names::CUT) {
            text.push_str(names::CUT);
        }
        text
    }

    /// Where secrets are, in order, none overlapping another.
    fn find(&self, text: &[u8]) -> Vec<Found<'_>> {
        let mut found: Vec<Found<'_>> = Vec::new();
        for hit in self.search.find_overlapping_iter(text) {
            let within = |last: &Found<'_>| hit.start() >= last.start && hit.end() <= last.end;
            if found.last().is_some_and(within) {
                continue;
            }
            let places = self.seeds[hit.pattern().as_usize()].iter();
            let grown = places.filter_map(|place| self.grow(text, *place, hit.start()..hit.end()));
            // The longest; the first of several.
            let longest = grown.min_by_key(|one| Reverse(one.end - one.start));
            let Some(mut new) = longest else { continue };
            while let Some(last) = found.pop_if(|last| last.end > new.start) {
                new.start = new.start.min(last.start);
                new.end = new.end.max(last.end);
            }
            found.push(new);
        }
        found
    }

    /// As much as there is of a form around one of its seeds, if it is enough.
    fn grow(
        &self,
        text: &[u8],
        (form, offset): (usize, usize),
        seed: Range<usize>,
    ) -> Option<Found<'_>> {
        let form = &self.forms[form];
        let same = |(a, b): &(&u8, &u8)| a == b;
        let behind = text[seed.end..].iter().zip(&form.text[offset + seed.len()..]);
        let before = text[..seed.start].iter().rev().zip(form.text[..offset].iter().rev());
        // What is farther away was found from an earlier seed.
        let before = before.take(self.stride + SEED).take_while(same).count();
        let (start, end) = (seed.start - before, seed.end + behind.take_while(same).count());
        let enough = end - start >= form.text.len().min(PART);
        enough.then_some(Found { start, end, mark: &form.mark })
    }
}

impl Form {
    /// Pieces by which it is found, with their offsets.
    fn seeds(&self, stride: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let whole = self.text.len() < PART;
        let length = if whole { self.text.len() } else { SEED };
        let offsets = (0..=self.text.len() - length).step_by(stride);
        offsets.map(move |offset| (offset, &self.text[offset..offset + length]))
    }
}

/// The forms in which a value may be printed.
fn texts(value: &str) -> HashSet<Vec<u8>> {
    // Blanks around it are easily lost.
    let text = match value.trim() {
        trimmed if trimmed.len() < LINE_MIN => value,
        trimmed => trimmed,
    };
    let mut texts = HashSet::from([text.as_bytes().to_vec()]);
    // As hosts and names of header fields are written, whatever they were.
    texts.insert(text.to_ascii_lowercase().into_bytes());
    texts.insert(text.to_ascii_uppercase().into_bytes());
    if text.contains('\n') {
        let lines = text.lines().map(str::trim).filter(|line| line.len() >= LINE_MIN);
        let telling = lines.filter(|line| line.contains(char::is_alphanumeric));
        texts.extend(telling.map(|line| line.as_bytes().to_vec()));
    }
    if let Ok(json) = serde_json::to_string(text) {
        texts.insert(json.as_bytes()[1..json.len() - 1].to_vec());
    }
    for digits in [b"0123456789abcdef", b"0123456789ABCDEF"] {
        texts.insert(text.bytes().flat_map(|byte| pair(byte, digits)).collect());
        for (plain, blank) in [("-_.~", None), ("-_.~!'()*", None), ("-_.*", Some(b'+'))] {
            texts.insert(percent(text, digits, plain, blank));
        }
    }
    for ahead in 0..3 {
        let digits = aligned(text, ahead);
        let url = |digit: &u8| match digit {
            b'+' => b'-',
            b'/' => b'_',
            other => *other,
        };
        texts.insert(digits.iter().map(url).collect());
        texts.insert(digits);
    }
    texts
}

fn pair(byte: u8, digits: &[u8; 16]) -> [u8; 2] {
    [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]
}

/// A text as a part of a URL: with these characters, letters and digits as they
/// are, and a blank as `blank` if there is one for it.
fn percent(text: &str, digits: &[u8; 16], plain: &str, blank: Option<u8>) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        match blank {
            Some(blank) if byte == b' ' => encoded.push(blank),
            _ if byte.is_ascii_alphanumeric() || plain.as_bytes().contains(&byte) => {
                encoded.push(byte);
            }
            _ => {
                encoded.push(b'%');
                encoded.extend(pair(byte, digits));
            }
        }
    }
    encoded
}

/// The digits of base64 that depend on the text alone, where so many bytes
/// stand in front of it.
fn aligned(text: &str, ahead: usize) -> Vec<u8> {
    let bytes = [&[0; 3][..ahead], text.as_bytes()].concat();
    let digits = base64::encode(&bytes).into_bytes();
    digits[(8 * ahead).div_ceil(6)..8 * bytes.len() / 6].to_vec()
}

#[cfg(test)]
mod tests;
