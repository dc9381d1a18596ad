//! Places granted and given back in Redis, as the messages that tell of them.

use shared::domain::{ActivityId, Signup};
use shared::message;
use shared::reservations::{Release, Reservation};

use crate::World;

impl World {
    /// Grants each of these users a place; the bodies of their messages, which nobody has published.
    pub async fn grant(&self, id: ActivityId, users: &[impl AsRef<str>]) -> Vec<Vec<u8>> {
        let reservations = self.reservations();
        let mut bodies = Vec::new();
        for user in users {
            match reservations.reserve(id, &user.as_ref().parse().unwrap()).await.unwrap() {
                Reservation::Reserved(signup) => bodies.push(message::to_json(&signup)),
                other => panic!("{} got no place: {other:?}", user.as_ref()),
            }
        }
        bodies
    }

    /// Gives a user's place back; the body of the message, which nobody has published.
    pub async fn give_back(&self, id: ActivityId, user: &str) -> Vec<u8> {
        match self.reservations().release(id, &user.parse().unwrap()).await.unwrap() {
            Release::Released(signup) => message::to_json(&signup),
            other => panic!("{user} gave no place back: {other:?}"),
        }
    }
}

/// What a body says.
pub fn fact_of(body: &[u8]) -> Signup {
    message::parse(body).unwrap()
}

/// So many user ids, in the order of the primary key.
pub fn users(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("user-{n:05}")).collect()
}
