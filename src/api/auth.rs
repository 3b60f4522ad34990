//! Who may call: bearer keys, of which only the hash is kept.

use std::fmt;

use axum::{
    extract::{RawPathParams, Request, State, rejection::RawPathParamsRejection},
    http::{HeaderMap, header},
    middleware::Next,
};
use sha2::{Digest, Sha256};

use super::{
    Shared,
    problem::{Answer, Kind, Problem},
};
use crate::store::Role;

/// SHA-256 of an API key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The hash of a key.
    #[must_use]
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// The hash itself.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// Who makes a call.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// The one project that its key is for, `None` if for all.
    pub(super) project: Option<String>,
}

/// There was no randomness to make a key of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gave no random bytes to make a key of")]
pub struct NoRandomness;

/// Draws a new key: `or_` and 32 random bytes in hex. It is to be shown once
/// and kept as its [`KeyHash`] alone.
///
/// # Errors
/// When the system gives no random bytes.
pub fn generate_key() -> Result<String, NoRandomness> {
    let mut bytes = [0; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .map_err(|_| NoRandomness)?;
    Ok(bytes.iter().fold("or_".to_owned(), |key, byte| format!("{key}{byte:02x}")))
}

/// Lets a call through if its key may make it: any call with a key for all
/// projects, and those below its own project with a key for one.
pub(super) async fn check(
    State(app): State<Shared>,
    params: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Answer {
    let scope = scope(&app, request.headers()).await?;
    let params = params.map_err(|error| Problem::new(Kind::BadPath, error.body_text()))?;
    if let Some(own) = &scope {
        let meant = params.iter().find(|(name, _)| *name == "project").map(|(_, value)| value);
        if meant != Some(own.as_str()) {
            let detail = format!("this key is for the project `{own}` alone");
            return Err(Problem::new(Kind::Forbidden, detail));
        }
    }
    request.extensions_mut().insert(Caller { project: scope });
    Ok(next.run(request).await)
}

/// The project that the call's key is for, `None` if for all.
async fn scope(app: &Shared, headers: &HeaderMap) -> Answer<Option<String>> {
    let hash = KeyHash::of(bearer(headers)?);
    if app.api.settings.admin_key == Some(hash) {
        return Ok(None);
    }
    let Some(key) = app.api.store.key_by_hash(hash.as_bytes()).await? else {
        let detail = "there is no such key, or it was deleted or has expired";
        return Err(Problem::new(Kind::WrongKey, detail));
    };
    // A key that a later version made must not mean more here than there.
    if key.role != Role::Admin {
        let detail = "keys of this role are not supported by this version";
        return Err(Problem::new(Kind::Forbidden, detail));
    }
    Ok(key.project)
}

fn bearer(headers: &HeaderMap) -> Answer<&str> {
    let missing = || {
        let detail = "send the header `Authorization: Bearer …` with an API key";
        Problem::new(Kind::MissingKey, detail)
    };
    let value = headers.get(header::AUTHORIZATION).ok_or_else(missing)?;
    let (scheme, key) =
        value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(missing)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(key.trim()) } else { Err(missing()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_long_and_never_the_same() {
        let (a, b) = (generate_key().expect("a key"), generate_key().expect("a key"));
        assert_eq!(a.len(), 3 + 64);
        assert!(a.starts_with("or_") && a != b);
        assert_ne!(KeyHash::of(&a), KeyHash::of(&b));
        assert_eq!(format!("{:?}", KeyHash::of(&a)), "KeyHash(…)");
    }
}
