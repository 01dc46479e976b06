//! Frames: a head of eight bytes and a payload.
//!
//! ```text
//!   0        4      5   6      8
//!   channel  kind   0   length payload …        little-endian
//! ```

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Maximum number of a channel's bytes in flight in one direction.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Maximum payload of one frame in bytes.
pub(super) const PAYLOAD_BYTES: usize = 32 << 10;
const HEAD_BYTES: usize = 8;

/// A connection's number.
pub(super) type Channel = u32;

/// The message of a frame about its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The channel opens. Only the outer side sends `Open`.
    Open,
    /// Bytes of the connection.
    Data(Vec<u8>),
    /// Number of bytes passed on to the connection: the receiver of `Passed` gets room for as many new bytes.
    Passed(u32),
    /// The sender has no more bytes for the channel.
    End,
    /// The channel is closed; both sides remove it.
    Reset,
}

/// A frame: a channel's number and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) channel: Channel,
    pub(super) message: Message,
}

const OPEN: u8 = 1;
const DATA: u8 = 2;
const PASSED: u8 = 3;
const END: u8 = 4;
const RESET: u8 = 5;

impl Frame {
    /// Appends the encoded frame to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let passed;
        let (kind, payload): (u8, &[u8]) = match &self.message {
            Message::Open => (OPEN, &[]),
            Message::Data(bytes) => (DATA, bytes),
            Message::Passed(count) => {
                passed = count.to_le_bytes();
                (PASSED, &passed)
            }
            Message::End => (END, &[]),
            Message::Reset => (RESET, &[]),
        };
        let len = u16::try_from(payload.len());
        let len = len.expect("nobody puts more than PAYLOAD_BYTES into a frame");
        out.extend_from_slice(&self.channel.to_le_bytes());
        out.extend_from_slice(&[kind, 0]);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(payload);
    }

    /// Reads one frame; `None` at the end of the stream.
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD_BYTES];
        if from.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut head[1..]).await?;
        let [c0, c1, c2, c3, kind, _, l0, l1] = head;
        let len = usize::from(u16::from_le_bytes([l0, l1]));
        let mut payload = vec![0; len.min(PAYLOAD_BYTES)];
        from.read_exact(&mut payload).await?;
        let message = match kind {
            OPEN if len == 0 => Message::Open,
            DATA if (1..=PAYLOAD_BYTES).contains(&len) => Message::Data(payload),
            PASSED if len == 4 => Message::Passed(u32::from_le_bytes([
                payload[0], payload[1], payload[2], payload[3],
            ])),
            END if len == 0 => Message::End,
            RESET if len == 0 => Message::Reset,
            _ => {
                let text = format!("a frame of kind {kind} with {len} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        };
        Ok(Some(Self {
            channel: u32::from_le_bytes([c0, c1, c2, c3]),
            message,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<Frame>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(async {
            let mut from = bytes;
            let mut frames = Vec::new();
            while let Some(frame) = Frame::read(&mut from).await? {
                frames.push(frame);
            }
            Ok(frames)
        })
    }

    #[test]
    fn frames_come_back_as_they_were() {
        let messages = [
            Message::Open,
            Message::Data(vec![7; PAYLOAD_BYTES]),
            Message::Passed(u32::MAX),
            Message::End,
            Message::Reset,
        ];
        let frames: Vec<Frame> = (0..)
            .zip(messages)
            .map(|(channel, message)| Frame { channel, message })
            .collect();
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes));
        assert_eq!(read(&bytes).expect("frames"), frames);
    }

    #[test]
    fn malformed_frame_is_an_error() {
        for wrong in [
            &[0, 0, 0, 0, 9, 0, 0, 0][..],
            &[0, 0, 0, 0, OPEN, 0, 1, 0, 7],
            &[0, 0, 0, 0, DATA, 0, 0, 0],
            &[0, 0, 0, 0, PASSED, 0, 2, 0, 1, 1],
            &[0, 0, 0],
            &[0, 0, 0, 0, DATA, 0, 9, 0, 1],
        ] {
            read(wrong).expect_err("no frame");
        }
        let mut long = vec![0, 0, 0, 0, DATA, 0, 0xff, 0xff];
        long.resize(HEAD_BYTES + 0xffff, 0);
        read(&long).expect_err("too long");
    }
}
