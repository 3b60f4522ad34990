//! Keeps the folder below its size.

use std::{
    cmp::Reverse,
    fs::{self, Metadata},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::file::{SUFFIX, UNFINISHED};
use crate::model::units::Bytes;

/// How old a file is that its host will never finish.
const ABANDONED: Duration = Duration::from_hours(1);

/// Removes what was not used for longest until the rest has no more than
/// `max`, and what dead hosts left unfinished. `newest` was written just `now`,
/// and stays.
pub(super) fn prune(folder: &Path, max: Bytes, newest: &str, now: SystemTime) -> io::Result<()> {
    let mut kept: Vec<(PathBuf, Metadata)> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Another host may have removed it since.
        let Ok(metadata) = entry.metadata() else { continue };
        if name.starts_with(UNFINISHED) {
            if age(&metadata, now) > ABANDONED {
                remove(&entry.path());
            }
        } else if name.ends_with(SUFFIX) && name != newest && metadata.is_file() {
            kept.push((entry.path(), metadata));
        }
    }
    let of_newest = fs::metadata(folder.join(newest)).map_or(0, |metadata| metadata.len());
    let mut sum = of_newest + kept.iter().map(|(_, metadata)| metadata.len()).sum::<u64>();
    kept.sort_by_cached_key(|(_, metadata)| Reverse(age(metadata, now)));
    for (path, metadata) in kept {
        if sum <= max.get() {
            break;
        }
        remove(&path);
        sum = sum.saturating_sub(metadata.len());
    }
    Ok(())
}

/// How long ago a file was used; what is newer than now counts as new.
fn age(metadata: &Metadata, now: SystemTime) -> Duration {
    let modified = metadata.modified().unwrap_or(now);
    now.duration_since(modified).unwrap_or_default()
}

/// Another host may have done it already.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::debug!(file = %path.display(), %error, "a cached file can't be removed");
    }
}
