//! A sale whose every reply is kept, so that it can be held against the record when all is over.

use std::sync::Mutex;

use futures::StreamExt;
use serde_json::Value;
use shared::domain::ActivityId;

use crate::{Reply, World, call};

/// So many people ask at a time.
const CONCURRENCY: usize = 16;

/// An activity, the function that sells its places, and what it replied.
pub struct Sale<'a> {
    /// Where it takes place.
    pub world: &'a World,
    /// The activity.
    pub id: ActivityId,
    signup: signup::App,
    receipts: Mutex<Vec<Value>>,
}

impl<'a> Sale<'a> {
    /// Opens an activity whose places this function sells.
    pub async fn open(world: &'a World, signup: signup::App, capacity: u32) -> Self {
        Self::open_as(world, signup, crate::random_activity_id(), capacity).await
    }

    /// The same with an id that was chosen.
    pub async fn open_as(world: &'a World, signup: signup::App, id: ActivityId, capacity: u32) -> Self {
        world.put_activity_as(id, serde_json::json!({"title": "Spring hike", "capacity": capacity})).await;
        Self { world, id, signup, receipts: Mutex::default() }
    }

    /// Goes on with another function.
    pub fn goes_on_with(&mut self, signup: signup::App) {
        self.signup = signup;
    }

    /// One call; what it grants or cancels is kept.
    pub async fn call(&self, method: &str, user: &str) -> Reply {
        let reply = call(&self.signup, method, self.id, user).await;
        if reply.status < 300 {
            self.receipts.lock().unwrap().push(reply.body.clone());
        }
        reply
    }

    /// One call with this outcome.
    pub async fn expect(&self, method: &str, user: &str, status: u16) -> Reply {
        let reply = self.call(method, user).await;
        assert_eq!(reply.status, status, "{method} by {user}: {reply:?}");
        reply
    }

    /// So many people get a place each; their ids begin with `name`.
    pub async fn grant(&self, name: &str, people: usize) -> Vec<String> {
        let users: Vec<_> = (0..people).map(|n| format!("{name}-{n:03}")).collect();
        let requests = users.iter().map(|user| self.expect("POST", user, 202));
        futures::stream::iter(requests).buffer_unordered(CONCURRENCY).collect::<Vec<_>>().await;
        users
    }

    /// What people were told so far.
    pub fn receipts(&self) -> Vec<Value> {
        self.receipts.lock().unwrap().clone()
    }

    /// Once all parts are well: what the broker kept goes to the consumer, what it lost is sent again from the outbox,
    /// and then every promise is checked person by person. So many people have to have a place in the end.
    pub async fn comes_home(&self, holders: u64) {
        self.world.pump().await;
        self.world.make_due(self.id).await;
        self.world.assert_sound(self.id, self.receipts()).await;
        assert_eq!(self.world.active(self.id).await, Some(holders));
    }
}
