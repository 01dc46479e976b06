//! A connection that fails when the client takes no bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Permission for a client to stall without a time limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience(Arc<AtomicBool>);

impl Patience {
    /// Grants the permission for the present request.
    pub(crate) fn grant(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Ends the permission, at the start of a request.
    pub(super) fn revoke(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_granted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A stream whose writes fail after `limit` without progress.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    limit: Duration,
    patience: Patience,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, limit: Duration, patience: Patience) -> Self {
        Self {
            stream,
            limit,
            patience,
            stalled: None,
        }
    }

    fn check<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() || self.patience.is_granted() {
            self.stalled = None;
            return written;
        }
        let limit = self.limit;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        stalled
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    fn write(patience: &Patience) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let (ours, _theirs) = tokio::io::duplex(16);
            let mut paced = Paced::new(ours, LIMIT, patience.clone());
            let all = paced.write_all(&[0; 64]);
            tokio::time::timeout(LIMIT * 4, all).await.unwrap_or(Ok(()))
        })
    }

    #[test]
    fn client_that_takes_no_bytes_is_cut_off() {
        let error = write(&Patience::default()).expect_err("stalled");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn client_with_granted_patience_is_not_cut_off() {
        let patience = Patience::default();
        patience.grant();
        write(&patience).expect("nothing happens");
    }
}
