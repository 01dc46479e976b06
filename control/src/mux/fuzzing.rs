//! One side of a link, for the fuzz target `link_frames` alone.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::frame::{Channel, Frame, Message};
use super::link::{Link, Opened};

/// More than all windows: the answer never waits for room.
const ANSWER_BYTES: usize = 32 << 20;
/// The time for a connection to take its last bytes. The clients have taken theirs before: a longer time finds no more.
const FAREWELL: Duration = Duration::from_millis(1);
/// The maximum number of channels that the other side opens.
const CHANNELS: usize = 16;

/// Reads the frames in `bytes` to the end, and writes them again.
///
/// # Errors
///
/// If the bytes are not frames.
pub async fn rewrite(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut written = Vec::new();
    while let Some(frame) = Frame::read(&mut bytes).await? {
        frame.write(&mut written);
    }
    Ok(written)
}

/// Follows the frames in `pieces`, and lets all tasks run after each piece. The clients of all channels send back all received bytes.
/// `connected` channels are open from the beginning, as on the outer side. In the end, the other side resets the remaining channels.
/// Returns the written frames.
///
/// # Errors
///
/// If the other side breaks the rules.
///
/// # Panics
///
/// If a task has panicked, or if channels or tasks are left after the resets.
pub async fn follow(pieces: Vec<Vec<u8>>, connected: u8) -> io::Result<Vec<u8>> {
    let (to, mut answer) = tokio::io::duplex(ANSWER_BYTES);
    let (from, mut port) = tokio::io::duplex(ANSWER_BYTES);
    let (link, writing) = Link::new(to, FAREWELL);
    let writing = tokio::spawn(writing);
    let (mut tasks, mut clients) = (JoinSet::new(), Clients::new(link.clone()));
    for channel in 0..Channel::from(connected) {
        let stream = (&mut clients)
            .opened()
            .ok_or(io::ErrorKind::QuotaExceeded)?;
        link.connect(channel, stream, &mut tasks);
    }
    let feeding = tokio::spawn(async move {
        for piece in pieces {
            // An error means that the link has ended.
            if port.write_all(&piece).await.is_err() {
                return;
            }
            for _ in 0..CHANNELS {
                tokio::task::yield_now().await;
            }
        }
    });
    let followed = link.follow(from, &mut clients, &mut tasks).await;
    feeding.abort();
    if followed.is_ok() {
        let resets = link.resets();
        let reset = link.follow(&resets[..], &mut clients, &mut tasks).await;
        reset.expect("a reset is always allowed");
        assert!(link.numbers().is_empty(), "a channel is left");
        // A task that never ends is a timeout.
        while let Some(task) = tasks.join_next().await {
            task.expect("a channel's task does not panic");
        }
    }
    link.hang_up();
    tasks.shutdown().await;
    drop((link, clients));
    let mut frames = Vec::new();
    answer.read_to_end(&mut frames).await?;
    writing.await?;
    followed.map(|()| frames)
}

impl Link {
    /// A reset of each channel.
    fn resets(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for channel in self.numbers() {
            let message = Message::Reset;
            Frame { channel, message }.write(&mut bytes);
        }
        bytes
    }
}

/// Clients that send back all received bytes.
struct Clients {
    link: Link,
    tasks: JoinSet<()>,
}

impl Clients {
    fn new(link: Link) -> Self {
        Self {
            link,
            tasks: JoinSet::new(),
        }
    }
}

impl Opened for &mut Clients {
    fn opened(&mut self) -> Option<UnixStream> {
        if self.link.connections() >= CHANNELS {
            return None;
        }
        let (ours, mut theirs) = UnixStream::pair().ok()?;
        self.tasks.spawn(async move {
            let (mut from, mut to) = theirs.split();
            // An error means that the channel has ended.
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
        Some(ours)
    }
}
