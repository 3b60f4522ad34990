//! Seals secrets for the database, and opens them.
//!
//! AES-256 in Galois/counter mode, with a random nonce. The project and the
//! name are authenticated with the value, so that a row that was moved or
//! renamed doesn't open. A sealed value begins with the id of its key, so that
//! keys can be replaced: new values are sealed with the current one, and what
//! earlier ones sealed opens until `outrigger secrets rotate` has sealed it
//! anew.

use std::fmt;

use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom as _, SystemRandom},
};
use sha2::{Digest as _, Sha256};

use crate::model::{base64, secret::SecretValue};

/// Bytes of a key.
const KEY_BYTES: usize = 32;

/// Bytes of a key's id.
const ID_BYTES: usize = 8;

/// What a sealed value begins with.
const FORMAT: u8 = 1;

/// Bytes in front of what is encrypted: format, key id, nonce. No two sealed
/// values have the same, so they tell whether a value has been replaced.
pub const STAMP_BYTES: usize = 1 + ID_BYTES + NONCE_LEN;

/// The keys that a host seals and opens with; `Debug` hides them.
#[derive(Default)]
pub struct Keyring {
    current: Option<Key>,
    previous: Vec<Key>,
}

struct Key {
    id: [u8; ID_BYTES],
    cipher: LessSafeKey,
}

/// A text that is no key. It is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no key: it must be 32 bytes, in hex or base64; `openssl rand -hex 32` makes one")]
pub struct BadKey;

/// Why a value can't be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// No key is configured.
    #[error(
        "this host has no key to seal secrets with: give all hosts the same one as `secrets.key` \
         (OUTRIGGER_SECRETS_KEY); `openssl rand -hex 32` makes one"
    )]
    NoKey,
    /// The system gave no random bytes, or the cipher failed.
    #[error("the secret can't be sealed: the system gave no random bytes")]
    NoRandomness,
}

/// Why a sealed value doesn't open.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It was sealed with a key that isn't here.
    #[error(
        "it is sealed with the key {0}, which this host doesn't have: set it as `secrets.key` \
         (OUTRIGGER_SECRETS_KEY), or among `secrets.previous_keys` \
         (OUTRIGGER_SECRETS_PREVIOUS_KEYS) if it was replaced"
    )]
    NoKey(String),
    /// It isn't what was sealed under this project and name.
    #[error("what is stored has been damaged, or moved from another place; set it again")]
    Damaged,
}

impl Keyring {
    /// A keyring of keys as they are configured.
    ///
    /// # Errors
    /// When one of them is no key.
    pub fn new<'a>(
        current: Option<&str>,
        previous: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, BadKey> {
        Ok(Self {
            current: current.map(Key::parse).transpose()?,
            previous: previous.into_iter().map(Key::parse).collect::<Result<_, _>>()?,
        })
    }

    /// Seals a value for its place.
    ///
    /// # Errors
    /// When there is no key to seal with.
    pub fn seal(
        &self,
        project: &str,
        name: &str,
        value: &SecretValue,
    ) -> Result<Vec<u8>, SealError> {
        let key = self.current.as_ref().ok_or(SealError::NoKey)?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| SealError::NoRandomness)?;
        let mut text = value.expose().as_bytes().to_vec();
        let place = Aad::from(place(project, name));
        key.cipher
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), place, &mut text)
            .map_err(|_| SealError::NoRandomness)?;
        Ok([&[FORMAT][..], &key.id, &nonce, &text].concat())
    }

    /// Opens what was sealed for this place.
    ///
    /// # Errors
    /// When its key isn't here, or it isn't what was sealed.
    pub fn open(&self, project: &str, name: &str, sealed: &[u8]) -> Result<SecretValue, OpenError> {
        let (id, nonce, text) = split(sealed).ok_or(OpenError::Damaged)?;
        let key = self.keys().find(|key| key.id == id).ok_or_else(|| OpenError::NoKey(hex(id)))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| OpenError::Damaged)?;
        let mut text = text.to_vec();
        let opened = key.cipher.open_in_place(nonce, Aad::from(place(project, name)), &mut text);
        let length = opened.map_err(|_| OpenError::Damaged)?.len();
        text.truncate(length);
        let text = String::from_utf8(text).map_err(|_| OpenError::Damaged)?;
        SecretValue::new(text).map_err(|_| OpenError::Damaged)
    }

    /// Whether there is a key to seal with.
    #[must_use]
    pub const fn can_seal(&self) -> bool {
        self.current.is_some()
    }

    /// Whether a value is sealed with the current key.
    #[must_use]
    pub fn is_current(&self, sealed: &[u8]) -> bool {
        let id = split(sealed).map(|(id, ..)| id);
        id.is_some() && id == self.current.as_ref().map(|key| &key.id[..])
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        self.current.iter().chain(&self.previous)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys().map(|key| hex(&key.id))).finish()
    }
}

impl Key {
    fn parse(text: &str) -> Result<Self, BadKey> {
        let bytes = if text.len() == 2 * KEY_BYTES { unhex(text) } else { base64::decode(text) };
        let bytes = bytes.filter(|bytes| bytes.len() == KEY_BYTES).ok_or(BadKey)?;
        let digest = Sha256::new().chain_update(b"outrigger key id\0").chain_update(&bytes);
        let mut id = [0; ID_BYTES];
        id.copy_from_slice(&digest.finalize()[..ID_BYTES]);
        let cipher = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| BadKey)?;
        Ok(Self { id, cipher: LessSafeKey::new(cipher) })
    }
}

/// The parts of a sealed value: key id, nonce, what is encrypted.
fn split(sealed: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (stamp, text) = sealed.split_at_checked(STAMP_BYTES)?;
    let (format, stamp) = stamp.split_first()?;
    let (id, nonce) = stamp.split_at(ID_BYTES);
    (*format == FORMAT).then_some((id, nonce, text))
}

/// Names have no U+0000, so no two places are written alike.
fn place(project: &str, name: &str) -> Vec<u8> {
    ["outrigger secret", project, name].join("\0").into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let pair = |pair: &[u8]| Some(digit(&pair[0])? << 4 | digit(&pair[1])?);
    text.as_bytes().chunks_exact(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
    const NEW: &str = "Dw8PDw8PDw8PDw8PDw8PDw8PDw8PDw8PDw8PDw8PDw8=";

    fn keyring(current: Option<&str>, previous: &[&str]) -> Keyring {
        Keyring::new(current, previous.iter().copied()).expect("keys")
    }

    fn value(text: &str) -> SecretValue {
        SecretValue::new(text.into()).expect("a value")
    }

    #[test]
    fn what_is_sealed_opens_in_its_place_alone() {
        let keys = keyring(Some(OLD), &[]);
        let hush = value("hush-hush \0 \u{1f980}");
        let sealed = keys.seal("shop", "SMTP_KEY", &hush).expect("sealed");
        assert!(!sealed.windows(4).any(|four| four == b"hush"), "{sealed:?}");
        assert_eq!(keys.open("shop", "SMTP_KEY", &sealed), Ok(hush.clone()));
        for (project, name) in [("shop", "OTHER"), ("other", "SMTP_KEY"), ("shopS", "MTP_KEY")] {
            assert_eq!(keys.open(project, name, &sealed), Err(OpenError::Damaged));
        }
        let again = keys.seal("shop", "SMTP_KEY", &hush).expect("sealed");
        assert_ne!(again[..STAMP_BYTES], sealed[..STAMP_BYTES], "each has a nonce of its own");
    }

    #[test]
    fn nothing_that_was_changed_opens() {
        let keys = keyring(Some(OLD), &[]);
        let sealed = keys.seal("shop", "K", &value("hush-hush")).expect("sealed");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            let error = keys.open("shop", "K", &changed).expect_err("changed");
            let of_key = (1..=ID_BYTES).contains(&at);
            assert_eq!(matches!(error, OpenError::NoKey(_)), of_key, "byte {at}: {error}");
        }
        for length in 0..sealed.len() {
            keys.open("shop", "K", &sealed[..length]).expect_err("cut off");
        }
    }

    #[test]
    fn a_replaced_key_still_opens() {
        let before = keyring(Some(OLD), &[]);
        let sealed = before.seal("shop", "K", &value("hush-hush")).expect("sealed");
        let after = keyring(Some(NEW), &[OLD]);
        assert!(before.is_current(&sealed) && !after.is_current(&sealed));
        let opened = after.open("shop", "K", &sealed).expect("an earlier key's");
        let anew = after.seal("shop", "K", &opened).expect("sealed");
        assert!(after.is_current(&anew));
        assert_eq!(keyring(Some(NEW), &[]).open("shop", "K", &anew), Ok(opened));
        let error = keyring(Some(NEW), &[]).open("shop", "K", &sealed).expect_err("no such key");
        assert!(error.to_string().contains("OUTRIGGER_SECRETS_PREVIOUS_KEYS"), "{error}");
        let error = keyring(None, &[]).open("shop", "K", &sealed).expect_err("no key at all");
        assert!(matches!(error, OpenError::NoKey(_)), "{error}");
    }

    #[test]
    fn without_a_key_nothing_is_sealed() {
        let keys = keyring(None, &[OLD]);
        assert!(!keys.can_seal());
        let error = keys.seal("shop", "K", &value("hush-hush")).expect_err("no key");
        assert!(error.to_string().contains("openssl rand -hex 32"), "{error}");
    }

    #[test]
    fn keys_are_hex_or_base64_and_hidden() {
        let unpadded = NEW.trim_end_matches('=');
        assert!(Keyring::new(Some(unpadded), [NEW, OLD]).is_ok());
        let shown = format!("{:?}", keyring(Some(OLD), &[NEW]));
        assert!(!shown.contains(&OLD[..8]) && !shown.contains(&NEW[..8]), "{shown}");
        for bad in ["", "hush", &OLD[1..], &format!("g{}", &OLD[1..]), &format!("{NEW}AAAA")] {
            let error = Keyring::new(Some(bad), []).expect_err(bad).to_string();
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
    }
}
