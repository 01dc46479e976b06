//! Port I/O: the accesses of `in` and `out`.

use iced_x86::{Mnemonic, OpKind, Register};

use super::decode::Decoded;

/// A port access of 1, 2 or 4 bytes between a port and RAX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAccess {
    /// Whether the instruction writes (`out`) rather than reads (`in`).
    pub write: bool,
    /// The port in the instruction; `None` if the port is in DX.
    pub port: Option<u8>,
    /// 1, 2 or 4.
    pub bytes: usize,
}

/// The port access of `decoded`; `None` if `decoded` is no `in` or `out`, or a string form.
#[must_use]
pub fn port_access(decoded: &Decoded) -> Option<PortAccess> {
    let instruction = decoded.instruction();
    let (write, data, port) = match instruction.mnemonic() {
        Mnemonic::Out => (true, 1, 0),
        Mnemonic::In => (false, 0, 1),
        _ => return None,
    };
    let bytes = match instruction.op_register(data) {
        Register::AL => 1,
        Register::AX => 2,
        Register::EAX => 4,
        _ => return None,
    };
    let port = match instruction.op_kind(port) {
        OpKind::Immediate8 => Some(instruction.immediate8()),
        _ => None,
    };
    Some(PortAccess { write, port, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::insn::decode;
    use address::Gva;

    #[test]
    fn each_form_of_port_access_is_decoded() {
        let cases: [(&[u8], Option<PortAccess>); 7] = [
            (
                &[0xee],
                Some(PortAccess {
                    write: true,
                    port: None,
                    bytes: 1,
                }),
            ),
            (
                &[0x66, 0xef],
                Some(PortAccess {
                    write: true,
                    port: None,
                    bytes: 2,
                }),
            ),
            (
                &[0xef],
                Some(PortAccess {
                    write: true,
                    port: None,
                    bytes: 4,
                }),
            ),
            (
                &[0xe6, 0x80],
                Some(PortAccess {
                    write: true,
                    port: Some(0x80),
                    bytes: 1,
                }),
            ),
            (
                &[0xec],
                Some(PortAccess {
                    write: false,
                    port: None,
                    bytes: 1,
                }),
            ),
            (
                &[0xe5, 0x71],
                Some(PortAccess {
                    write: false,
                    port: Some(0x71),
                    bytes: 4,
                }),
            ),
            // outsb: no access.
            (&[0x6e], None),
        ];
        for (bytes, access) in cases {
            let decoded = decode(bytes, Gva(0x1000)).expect("an instruction");
            assert_eq!(port_access(&decoded), access, "{bytes:x?}");
        }
    }
}
