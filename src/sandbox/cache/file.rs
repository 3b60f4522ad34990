//! One artifact as a file: a MAC, what it is of, the code.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::Path,
    time::{Duration, SystemTime},
};

use ring::hmac;
use uuid::Uuid;

use crate::sandbox::compile::{Artifact, Limit};

/// How the names of artifacts end.
pub(super) const SUFFIX: &str = ".artifact";

/// How the names of files begin that aren't whole yet.
pub(super) const UNFINISHED: &str = ".unfinished-";

/// Length of the MAC, which comes first and is of all the rest.
const MAC: usize = 32;

/// Format and version.
const MAGIC: [u8; 8] = *b"ORARTF\0\x01";

/// Most bytes that precede the code.
const HEADER_MAX: u64 = 1 << 10;

/// Why a file isn't used.
#[derive(Debug)]
pub(super) enum Unfit {
    /// It is not what this host wrote.
    Not(&'static str),
    /// It can't be read.
    Failed(io::Error),
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Creates the folder, for its owner alone, if there is none.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Reads an artifact and verifies it. It is in memory by then: nobody can
/// change between the two what is run.
pub(super) fn read(path: &Path, name: &str, key: &hmac::Key) -> Result<Artifact, Unfit> {
    let (file, bytes) = read_own(path, WRITABLE, Limit::Artifact.max() + HEADER_MAX)?;
    let (mac, signed) = bytes.split_at_checked(MAC).ok_or(Unfit::Not("it is cut off"))?;
    hmac::verify(key, signed, mac).map_err(|_| Unfit::Not("its MAC doesn't fit its content"))?;
    let head = signed.get(..head(name, Duration::ZERO).len()).unwrap_or_default();
    let millis = head.get(MAGIC.len()..MAGIC.len() + 8).and_then(<[u8]>::first_chunk);
    let took = Duration::from_millis(millis.map_or(0, |millis| u64::from_le_bytes(*millis)));
    if *head != self::head(name, took) {
        return Err(Unfit::Not("it was kept under another name"));
    }
    let start = MAC + head.len();
    // So that it counts as used now. In a folder that can't be written to
    // nothing is removed either.
    let _ = touch(&file);
    Ok(Artifact::new(bytes, start, took))
}

/// Writes an artifact, whole or not at all; answers when, by the clock of the
/// folder's file system.
pub(super) fn write(
    folder: &Path,
    name: &str,
    key: &hmac::Key,
    artifact: &Artifact,
) -> io::Result<SystemTime> {
    let head = head(name, artifact.took);
    let mut mac = hmac::Context::with_key(key);
    mac.update(&head);
    mac.update(artifact.code());
    let mac = mac.sign();
    put(folder, &[mac.as_ref(), &head, artifact.code()], |unfinished| {
        fs::rename(unfinished, folder.join(name))
    })
}

/// What is said of an artifact before its code.
fn head(name: &str, took: Duration) -> Vec<u8> {
    let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).to_le_bytes();
    let length = u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes();
    [&MAGIC[..], &millis, &length, name.as_bytes()].concat()
}

/// Writes a file for its owner alone, and gives it its name once it is on the
/// disk; answers when.
pub(super) fn put(
    folder: &Path,
    parts: &[&[u8]],
    name: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<SystemTime> {
    let unfinished = folder.join(format!("{UNFINISHED}{}", Uuid::new_v4()));
    let written = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&unfinished)?;
        for part in parts {
            file.write_all(part)?;
        }
        file.sync_all()?;
        let written = file.metadata()?.modified()?;
        name(&unfinished)?;
        Ok(written)
    })();
    if written.is_err() {
        // What is left here is removed later.
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// Rights that others must not have: to write a file, or to see it at all.
pub(super) const WRITABLE: u32 = 0o022;
pub(super) const SEEN: u32 = 0o077;

/// Reads a file that this process's user wrote and nobody else could have.
#[cfg(unix)]
pub(super) fn read_own(path: &Path, others: u32, most: u64) -> Result<(File, Vec<u8>), Unfit> {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

    use rustix::{fs::OFlags, io::Errno, process::geteuid};

    // A pipe in its place must not keep anybody waiting.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let file = options.open(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => Unfit::Not("it is a symbolic link"),
        Some(Errno::ACCESS) => Unfit::Not("it can't be opened"),
        _ => Unfit::Failed(error),
    })?;
    // What is open is looked at, not what may have its name by now.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Unfit::Not("it is no file"));
    }
    if metadata.uid() != geteuid().as_raw() {
        return Err(Unfit::Not("it belongs to somebody else"));
    }
    if metadata.mode() & others != 0 {
        return Err(Unfit::Not("others have rights to it"));
    }
    if metadata.len() > most {
        return Err(Unfit::Not("it is larger than what is kept"));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    (&file).take(most).read_to_end(&mut bytes)?;
    Ok((file, bytes))
}

/// Where it can't be known who wrote a file, none is used.
#[cfg(not(unix))]
pub(super) fn read_own(_: &Path, _: u32, _: u64) -> Result<(File, Vec<u8>), Unfit> {
    Err(Unfit::Failed(io::ErrorKind::Unsupported.into()))
}

/// Counts a file as used now, by the file system's clock.
#[cfg(unix)]
fn touch(file: &File) -> io::Result<()> {
    use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, futimens};

    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    };
    Ok(futimens(file, &times)?)
}

#[cfg(not(unix))]
fn touch(_: &File) -> io::Result<()> {
    Ok(())
}
