//! VMCOREINFO: the text that the kernel prepares in memory for the readers of dumps.
//!
//! The kernel writes the text at boot, and appends the time of a crash before it starts a crash kernel. `vmcoreinfo_data` points to the text,
//! `vmcoreinfo_size` is the length.

use address::Gva;
use inspect::KernelView;
use thiserror::Error;

/// The kernel has a page for the text.
const MAX_BYTES: u64 = 64 << 10;
const FIRST_KEY: &str = "OSRELEASE";
/// The distance from the linked to the running address, in hexadecimal digits.
const OFFSET_KEY: &str = "KERNELOFFSET";

/// The reason why the kernel's text cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Missing {
    /// The kernel is built without the text.
    #[error("the kernel has no symbol `{0}`")]
    Symbol(&'static str),
    /// The kernel's boot has not come so far, or the memory is no longer the kernel's.
    #[error("the kernel's VMCOREINFO at {at} of {bytes} bytes is not prepared or not readable")]
    NotPrepared {
        /// The pointer to the text.
        at: Gva,
        /// The length.
        bytes: u64,
    },
}

/// Where the kernel runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    /// The distance from the linked to the running address.
    pub(crate) slide: i64,
    /// The kernel's `phys_base`, if the text's physical address is known.
    pub(crate) phys_base: Option<i64>,
}

/// Reads the kernel's text.
pub(crate) fn read(kernel: &KernelView<'_>) -> Result<Vec<u8>, Missing> {
    let word = |name| {
        let at = kernel.address_of(name).ok_or(Missing::Symbol(name))?;
        Ok(kernel.u64(at).unwrap_or(0))
    };
    let (at, bytes) = (Gva(word("vmcoreinfo_data")?), word("vmcoreinfo_size")?);
    let missing = Missing::NotPrepared { at, bytes };
    if bytes == 0 || bytes > MAX_BYTES {
        return Err(missing);
    }
    let mut text = vec![0; usize::try_from(bytes).unwrap_or(0)];
    kernel.read(at, &mut text).map_err(|_| missing)?;
    match has_key(&text, FIRST_KEY) {
        true => Ok(text),
        false => Err(missing),
    }
}

/// The text for a kernel without one. `banner` is the kernel's version line: `Linux version 6.1.0 (…`.
pub(crate) fn smallest(banner: Option<&str>) -> Vec<u8> {
    let release = banner.and_then(|banner| banner.split(' ').nth(2));
    let mut text = String::new();
    if let Some(release) = release {
        text.push_str(&format!("{FIRST_KEY}={release}\n"));
    }
    text.push_str("PAGESIZE=4096\n");
    text.into_bytes()
}

/// Adds the kernel's place, if `text` does not have it.
pub(crate) fn completed(mut text: Vec<u8>, located: Located) -> Vec<u8> {
    if text.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
    if !has_key(&text, OFFSET_KEY) {
        text.extend(format!("{OFFSET_KEY}={:x}\n", located.slide).into_bytes());
    }
    if let Some(phys_base) = located.phys_base
        && !has_key(&text, "NUMBER(phys_base)")
    {
        text.extend(format!("NUMBER(phys_base)={phys_base}\n").into_bytes());
    }
    text
}

/// The distance from the linked to the running address by `text`.
pub(crate) fn slide(text: &[u8]) -> Option<i64> {
    let digits = std::str::from_utf8(value(text, OFFSET_KEY)?).ok()?;
    Some(u64::from_str_radix(digits, 16).ok()?.cast_signed())
}

/// Whether a line of `text` begins with `key=`.
fn has_key(text: &[u8], key: &str) -> bool {
    value(text, key).is_some()
}

/// The rest of the line that begins with `key=`.
fn value<'t>(text: &'t [u8], key: &str) -> Option<&'t [u8]> {
    let mut lines = text.split(|byte| *byte == b'\n');
    lines.find_map(|line| line.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_slide_is_read_again() {
        for slide in [0, 0x1460_0000, -(2 << 20)] {
            let located = Located {
                slide,
                phys_base: None,
            };
            let text = completed(smallest(None), located);
            assert_eq!(super::slide(&text), Some(slide));
        }
        assert_eq!(super::slide(b"XKERNELOFFSET=1\nKERNELOFFSET=x\n"), None);
        assert_eq!(super::slide(b""), None);
    }
}
