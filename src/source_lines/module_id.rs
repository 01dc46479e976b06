//! A module of the guest, as frames name it.

use serde::{Deserialize, Serialize};

/// As many digits as the longest build-id has.
const MAX_ID_DIGITS: usize = 128;

/// A module of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ModuleId {
    /// The name, as `lsmod` prints it.
    pub(crate) name: String,
    /// The build-id in hexadecimal digits.
    pub(crate) build_id: String,
}

impl ModuleId {
    /// Whether the build-id has the form of one. A guest may write anything there, and the build-id becomes part of a path and of an address.
    pub(super) fn has_build_id(&self) -> bool {
        let digits = &self.build_id;
        !digits.is_empty()
            && digits.len() <= MAX_ID_DIGITS
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}
