// SPDX-License-Identifier: Apache-2.0
//! How tests of tasks run.
#![allow(dead_code)] // no test needs all of it

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::timeout;

use crate::processes::LONG;

pub fn run<F: Future>(task: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(LONG, task).await.expect("it hangs") })
}

/// Two at once in one task, as join! has them; that brings a parser of Rust with it, which takes longer to
/// compile than all else here.
pub async fn both<'a, A: Unpin + 'a, B: Unpin + 'a>(
    one: impl Future<Output = A> + 'a,
    other: impl Future<Output = B> + 'a,
) -> (A, B) {
    Both { one: Box::pin(one), other: Box::pin(other), done: (None, None) }.await
}

struct Both<'a, A, B> {
    one: Pin<Box<dyn Future<Output = A> + 'a>>,
    other: Pin<Box<dyn Future<Output = B> + 'a>>,
    done: (Option<A>, Option<B>),
}

impl<A: Unpin, B: Unpin> Future for Both<'_, A, B> {
    type Output = (A, B);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<(A, B)> {
        let this = &mut *self;
        if this.done.0.is_none() {
            if let Poll::Ready(value) = this.one.as_mut().poll(context) {
                this.done.0 = Some(value);
            }
        }
        if this.done.1.is_none() {
            if let Poll::Ready(value) = this.other.as_mut().poll(context) {
                this.done.1 = Some(value);
            }
        }
        match (this.done.0.take(), this.done.1.take()) {
            (Some(one), Some(other)) => Poll::Ready((one, other)),
            done => {
                this.done = done;
                Poll::Pending
            }
        }
    }
}
