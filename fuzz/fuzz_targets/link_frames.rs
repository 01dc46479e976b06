//! The link of a nested run's control socket: frames of the other side.

#![cfg_attr(fuzzing, no_main)]

use std::sync::LazyLock;

use hyprobe_control::mux::fuzzing::{follow, rewrite};
use hyprobe_fuzz::arbitrary::{self, Arbitrary};
use hyprobe_fuzz::fuzz_target;
use tokio::runtime::{Builder, Runtime};

/// The number of channels open from the beginning, and the bytes of the other side.
#[derive(Arbitrary, Debug)]
struct Case {
    connected: u8,
    pieces: Vec<Piece>,
}

/// Bytes that arrive in one piece.
#[derive(Arbitrary, Debug)]
enum Piece {
    /// A frame.
    Frame { channel: u8, message: Message },
    /// Frames arrived together, before any task of a channel runs.
    Burst(Vec<(u8, Message)>),
    /// Several copies of a frame with data.
    Flood { channel: u8, len: u16, copies: u8 },
    /// Anything.
    Bytes(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
enum Message {
    Open,
    Data(Vec<u8>),
    Passed(u32),
    End,
    Reset,
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_current_thread()
        .enable_all()
        // The runtime polls the clients' sockets after each task.
        .event_interval(1)
        .build()
        .expect("a runtime")
});

fuzz_target!(|case: Case| {
    let pieces: Vec<Vec<u8>> = case.pieces.iter().map(Piece::bytes).collect();
    let bytes = pieces.concat();
    RUNTIME.block_on(async {
        if let Ok(frames) = rewrite(&bytes).await {
            assert!(frames.len() == bytes.len(), "a frame changes its length");
            let again = rewrite(&frames).await;
            assert_eq!(again.expect("frames"), frames);
        }
        if let Ok(answer) = follow(pieces, case.connected % 4).await {
            rewrite(&answer).await.expect("the answer is frames");
        }
    });
});

impl Piece {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Frame { channel, message } => message.frame(*channel),
            Self::Burst(frames) => {
                let frames = frames.iter();
                frames
                    .flat_map(|(channel, message)| message.frame(*channel))
                    .collect()
            }
            Self::Flood {
                channel,
                len,
                copies,
            } => {
                let payload = vec![0x5a; usize::from(*len)];
                frame(*channel, 2, &payload).repeat(usize::from(copies % 8))
            }
            Self::Bytes(bytes) => bytes.clone(),
        }
    }
}

impl Message {
    fn frame(&self, channel: u8) -> Vec<u8> {
        let (kind, payload) = self.parts();
        frame(channel, kind, &payload)
    }

    fn parts(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Open => (1, Vec::new()),
            Self::Data(bytes) => (2, bytes.clone()),
            Self::Passed(count) => (3, count.to_le_bytes().to_vec()),
            Self::End => (4, Vec::new()),
            Self::Reset => (5, Vec::new()),
        }
    }
}

/// A frame for one of few channels, so most frames are for an open channel.
fn frame(channel: u8, kind: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
    let mut frame = vec![channel % 8, 0, 0, 0, kind, 0];
    frame.extend(len.to_le_bytes());
    frame.extend(payload);
    frame
}
