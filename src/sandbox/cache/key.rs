//! The key that proves that an artifact is one of this host's.

use std::{
    fs,
    io::{self, ErrorKind},
    path::Path,
};

use ring::{
    hmac,
    rand::{SecureRandom as _, SystemRandom},
};

use super::file::{self, Unfit};

/// Its file.
const NAME: &str = "key";
const LENGTH: usize = 32;

/// How often it is looked for: another host may make or replace it meanwhile.
const LOOKS: u32 = 4;

/// The folder's key; made if there is none, or none that only this user knows.
pub(super) fn of(folder: &Path) -> io::Result<hmac::Key> {
    let path = folder.join(NAME);
    for _ in 0..LOOKS {
        let why = match file::read_own(&path, file::SEEN, LENGTH as u64) {
            Ok((_, bytes)) if bytes.len() == LENGTH => {
                return Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes));
            }
            Ok(_) => "it is cut off",
            Err(Unfit::Not(why)) => why,
            Err(Unfit::Failed(error)) if error.kind() == ErrorKind::NotFound => {
                make(folder, &path)?;
                continue;
            }
            Err(Unfit::Failed(error)) => return Err(error),
        };
        let file = path.display();
        tracing::warn!(%file, why, "the key of cached artifacts isn't used: another is made");
        fs::remove_file(&path)?;
    }
    Err(io::Error::other("the key changes all the time"))
}

/// Makes a key unless somebody else is first. It has its name only once it is
/// whole, so nobody reads half of one.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    let mut bytes = [0; LENGTH];
    let no_chance = |_| io::Error::other("the system has no random numbers");
    SystemRandom::new().fill(&mut bytes).map_err(no_chance)?;
    let made = file::put(folder, &[&bytes], |unfinished| {
        // Unlike a change of name, this fails if the name is taken.
        fs::hard_link(unfinished, path)?;
        fs::remove_file(unfinished)
    });
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}
