//! Moves parked messages back to the exchange, each acknowledged only when the broker has confirmed its copy. A crash
//! in between leaves both, and the upsert takes the second for known.

use lapin::Channel;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions};
use serde::Serialize;
use tokio::time::{Instant, timeout};

use super::bulk::{ANSWER_TIMEOUT, close, ready};
use super::{OutgoingMessage, PublishError, Publisher};

/// How many messages are under way at once.
const WINDOW: usize = 100;

/// What came of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    /// Messages that are back in the queue of sign-ups.
    pub replayed: u64,
    /// The highest number of times that one of them has been replayed, this time included.
    pub most_replays: u32,
    /// Messages that were parked when the replay began.
    pub parked_before: u32,
}

impl Publisher {
    /// Replays up to `limit` parked messages, the oldest first, and none that is parked again meanwhile.
    pub async fn replay(&self, limit: u32, deadline: Instant) -> Result<Replayed, PublishError> {
        let channel = self.open_channel(deadline).await?;
        let queue = self.inner.topology.parked_queue();
        let parked_before = ready(&channel, &queue, deadline).await?;
        let mut report = Replayed { parked_before, ..Replayed::default() };
        let mut left = limit.min(parked_before);
        while left > 0 && Instant::now() < deadline {
            let taken = take(&channel, &queue, WINDOW.min(left as usize)).await?;
            if taken.is_empty() {
                break;
            }
            left -= taken.len() as u32;
            let messages: Vec<_> = taken
                .iter()
                .map(|message| OutgoingMessage::replayed(&self.inner.topology, &message.delivery))
                .collect();
            let replays: Vec<u32> = messages.iter().map(OutgoingMessage::replays).collect();
            let sent = self.send_all(messages, deadline).await;
            for ((message, replays), confirmed) in taken.iter().zip(replays).zip(sent.confirmed) {
                if confirmed {
                    crate::fail_point!("replay.before-ack");
                    acknowledge(message).await?;
                    report.replayed += 1;
                    report.most_replays = report.most_replays.max(replays);
                } else {
                    put_back(message).await?;
                }
            }
            if let Some(error) = sent.failure {
                return Err(error);
            }
        }
        close(channel);
        Ok(report)
    }
}

async fn take(channel: &Channel, queue: &str, count: usize) -> Result<Vec<BasicGetMessage>, PublishError> {
    let mut taken = Vec::with_capacity(count);
    while taken.len() < count {
        let got = answered(channel.basic_get(queue.into(), BasicGetOptions::default())).await?;
        match got {
            Some(message) => taken.push(message),
            None => break,
        }
    }
    Ok(taken)
}

async fn acknowledge(message: &BasicGetMessage) -> Result<(), PublishError> {
    answered(message.delivery.acker.ack(BasicAckOptions::default())).await.map(|_| ())
}

async fn put_back(message: &BasicGetMessage) -> Result<(), PublishError> {
    answered(message.delivery.acker.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }))
        .await
        .map(|_| ())
}

async fn answered<T>(answer: impl Future<Output = Result<T, lapin::Error>>) -> Result<T, PublishError> {
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(PublishError::Connection),
        Err(_) => Err(PublishError::TimedOut(ANSWER_TIMEOUT)),
    }
}
