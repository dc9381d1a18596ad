//! Names people who were granted places that there are not: after Redis lost writes, it gave away again what MySQL
//! knows to be taken. MySQL's guard keeps them out. Only an operator decides who has to go, or raises the capacity.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::hash::{BuildHasher, RandomState};

use shared::comparison::Mode;
use shared::domain::{ActivityId, Signup, SignupStatus, UserId, Version};
use shared::store::StoredActivity;
use tokio::time::Instant;

use crate::aside::Aside;
use crate::report::{StepError, Surplus, SurplusPerson};
use crate::survey::Survey;
use crate::{App, Run};

/// How many people of one activity one run names, and releases.
const MOST: usize = 10_000;

/// How many are named in the report.
const NAMED: usize = 20;

const STEP: &str = "surplus";

/// Names the surplus, and releases it where told to.
pub(crate) async fn surplus(
    app: &App,
    run: Run,
    survey: &Survey,
    release: bool,
    aside: &mut Aside,
) -> Result<Vec<Surplus>, StepError> {
    let mut found = Vec::new();
    for stored in &survey.crowded {
        if Instant::now() >= run.deadline {
            break;
        }
        let surplus = of_activity(app, run, stored, release).await;
        found.extend(aside.unless_damaged(STEP, stored.id, surplus)?.flatten());
    }
    Ok(found)
}

async fn of_activity(
    app: &App,
    run: Run,
    stored: &StoredActivity,
    release: bool,
) -> Result<Option<Surplus>, StepError> {
    // Read again: the comparison may have mended it.
    let standing = app.reservations.standing(stored.id).await?;
    let Some(capacity) = standing.capacity.filter(|capacity| standing.taken > u64::from(*capacity)) else {
        return Ok(None);
    };
    let count = usize::try_from(standing.taken - u64::from(capacity)).unwrap_or(MOST).min(MOST);
    let people = last_without_place(app, stored.id, count).await?;
    let mut released = 0;
    if release && run.mode == Mode::Mend {
        for signup in &people {
            released += u64::from(app.reservations.withdraw(signup).await?);
            shared::fail_point!("surplus.after-withdraw");
        }
    }
    let people = people.into_iter().take(NAMED);
    let people = people.map(|Signup { user_id, sequence, .. }| SurplusPerson { user_id, sequence }).collect();
    Ok(Some(Surplus { activity_id: stored.id, capacity, taken: standing.taken, people, released }))
}

/// Of those who hold a receipt and no place in MySQL, the ones who came last, the last first.
async fn last_without_place(app: &App, id: ActivityId, count: usize) -> Result<Vec<Signup>, StepError> {
    // The one who came first of those kept is on top.
    let mut kept: BinaryHeap<Reverse<(u64, Version, UserId)>> = BinaryHeap::new();
    let hasher = RandomState::new();
    let (mut cursor, mut met) = (0, HashSet::new());
    loop {
        let (next, users) = app.reservations.waiting(id, cursor).await?;
        let users: Vec<UserId> = users.into_iter().filter(|user_id| met.insert(hasher.hash_one(user_id))).collect();
        let users: Vec<&UserId> = users.iter().collect();
        let seen = app.reservations.look(id, &users).await?;
        let rows = app.store.signups_of(id, &users).await?;
        let active = rows.iter().filter(|row| row.status == SignupStatus::SignedUp);
        let active: HashSet<&UserId> = active.map(|row| &row.user_id).collect();
        for (user_id, seen) in users.into_iter().zip(seen) {
            let Some(Ok(receipt)) = seen.receipt else { continue };
            if receipt.is_active() && !active.contains(user_id) {
                kept.push(Reverse((receipt.sequence, receipt.version, user_id.clone())));
                if kept.len() > count {
                    kept.pop();
                }
            }
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    let mut people: Vec<_> = kept.into_iter().map(|Reverse(person)| person).collect();
    people.sort_unstable_by(|a, b| b.cmp(a));
    let users: Vec<&UserId> = people.iter().map(|(.., user_id)| user_id).collect();
    let seen = app.reservations.look(id, &users).await?;
    let people = users
        .into_iter()
        .zip(seen)
        .filter_map(|(user_id, seen)| seen.receipt?.ok().map(|receipt| receipt.into_signup(id, user_id.clone())));
    Ok(people.collect())
}
