//! Descriptors left open by the parent process.

#![expect(
    unsafe_code,
    reason = "nothing in this process owns the descriptors, so no safe type can close them"
)]

use std::io;
use std::os::fd::RawFd;

/// The first descriptor behind standard input, output and error.
const FIRST: RawFd = 3;

/// Descriptors inherited from the parent process, for example from a shell's `7</root/secret`. Unless closed, the descriptor's rights
/// would survive the change of the user and of the root directory.
#[derive(Debug)]
pub struct Inherited(Vec<RawFd>);

impl Inherited {
    /// Lists the open descriptors. Must be called before the process opens a file.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn list() -> io::Result<Self> {
        let mut open: Vec<RawFd> = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let name = entry?.file_name();
            open.extend(name.to_str().and_then(|name| name.parse::<RawFd>().ok()));
        }
        // The listing's own descriptor is closed by now.
        // SAFETY: the call touches no memory, whatever the number.
        let is_open = |fd: &RawFd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } != -1;
        open.retain(|fd| *fd >= FIRST && is_open(fd));
        Ok(Self(open))
    }

    /// Closes the descriptors.
    pub(crate) fn close(&self) {
        for fd in &self.0 {
            // SAFETY: no part of this process owns the descriptor: it was open before the process opened a file.
            unsafe { libc::close(*fd) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn open_descriptors_are_listed_and_the_listing_itself_is_not() {
        let file = std::fs::File::open("/dev/null").expect("a file");
        let listed = Inherited::list().expect("a list").0;
        assert!(listed.contains(&file.as_raw_fd()), "{listed:?}");
        assert!(listed.iter().all(|fd| *fd >= FIRST), "{listed:?}");
        let again = Inherited::list().expect("a list").0;
        assert_eq!(listed, again);
    }
}
